// Latents expanded to keys and values of every head, and attention of prompts over these.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/cuda/expand_latents.h"
#include "kernels/cuda/paged_attention.h"
#include "tests/kernels/cuda/paged_attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;

// Prompts: so many positions of each are in the pool, the last num_rows of which are rows of the step.
struct Prompt {
  int32_t context_len, num_rows;
};

std::vector<ExpandedBlock> blocks_of(const std::vector<Prompt>& prompts, int32_t block_size, int32_t* num_table_blocks) {
  std::vector<ExpandedBlock> blocks;
  *num_table_blocks = 0;
  for (const Prompt& p : prompts) {
    for (int32_t first = 0; first < p.context_len; first += kExpandedBlock)
      blocks.push_back({*num_table_blocks, first, std::min(kExpandedBlock, p.context_len - first)});
    *num_table_blocks += static_cast<int32_t>(ceil_div(p.context_len, block_size));
  }
  return blocks;
}

template <class T>
struct HeadArrays {
  std::vector<std::vector<T>> numbers;
  std::vector<std::unique_ptr<DeviceArray<T>>> arrays;
  std::vector<const void*> addresses;

  HeadArrays(int64_t num_heads, int64_t rows, int64_t cols, uint32_t seed) {
    for (int64_t h = 0; h < num_heads; ++h) {
      numbers.push_back(converted<T>(random_normal(rows * cols, seed + static_cast<uint32_t>(h), 0.1f)));
      arrays.push_back(std::make_unique<DeviceArray<T>>(numbers.back()));
      addresses.push_back(arrays.back()->data());
    }
  }
};

template <class T>
void check_expansion(ExpandedShape s, int32_t num_heads, const std::vector<Prompt>& prompts, int32_t block_size,
                     int32_t table_stride) {
  CAPTURE(s.rank);
  CAPTURE(block_size);
  int32_t num_table_blocks = 0;
  const std::vector<ExpandedBlock> blocks = blocks_of(prompts, block_size, &num_table_blocks);
  const int64_t latent_dim = s.rope_dim + s.rank, row_dim = s.row_dim();
  s.block_size = block_size, s.block_stride = block_size * latent_dim, s.table_stride = table_stride;
  // Blocks in reverse, with others between them that hold NaN.
  std::vector<BlockId> ids(static_cast<size_t>(num_table_blocks) * static_cast<size_t>(table_stride), -1);
  for (int32_t i = 0; i < num_table_blocks; ++i) ids[static_cast<size_t>(i * table_stride)] = 2 * (num_table_blocks - 1 - i);
  std::vector<T> cache = converted<T>(random_normal(2 * num_table_blocks * s.block_stride, 5));
  for (int64_t i = 0; i < static_cast<int64_t>(cache.size()); ++i)
    if (i / s.block_stride % 2 == 1) cache[static_cast<size_t>(i)] = from_float<T>(NAN);
  const HeadArrays<T> keys(num_heads, s.rank, s.key_dim, 100), values(num_heads, s.value_dim, s.rank, 300);
  const DeviceArray<BlockId> device_ids(ids);
  const DeviceArray<T> latents(cache);
  const DeviceArray<ExpandedBlock> device_blocks(blocks);
  DeviceArray<T> workspace(static_cast<size_t>(expansion_workspace(s, num_heads)));
  const size_t size = blocks.size() * static_cast<size_t>(num_heads * kExpandedBlock * row_dim);
  DeviceArray<T> out(std::vector<T>(size, from_float<T>(99)));
  expand_latents<T>(s, keys.addresses, values.addresses, latents.data(), device_ids.data(), device_blocks.data(),
                    static_cast<int64_t>(blocks.size()), workspace.data(), out.data(), nullptr);
  CHECK((out.check_guards() && workspace.check_guards()));
  const std::vector<float> got = out.download_floats();
  std::vector<float> naive, made;
  std::vector<double> exact;
  for (size_t b = 0; b < blocks.size(); ++b)
    for (int32_t h = 0; h < num_heads; ++h)
      for (int32_t p = 0; p < kExpandedBlock; ++p) {
        const size_t row = ((b * static_cast<size_t>(num_heads) + static_cast<size_t>(h)) * kExpandedBlock +
                            static_cast<size_t>(p)) * static_cast<size_t>(row_dim);
        const bool is_there = p < blocks[b].num_positions;
        const int32_t at = blocks[b].first_position + p;
        const T* const latent =
            is_there ? &cache[static_cast<size_t>(
                           ids[static_cast<size_t>((blocks[b].table_start + at / block_size) * table_stride)] *
                               s.block_stride + at % block_size * latent_dim)]
                     : nullptr;
        for (int64_t c = 0; c < row_dim; ++c) {
          if (!is_there) {
            REQUIRE(got[row + static_cast<size_t>(c)] == 99);
            continue;
          }
          if (c >= s.key_dim && c < s.key_dim + s.rope_dim) {
            REQUIRE(got[row + static_cast<size_t>(c)] == to_float(latent[c - s.key_dim]));
            continue;
          }
          double sum = 0;
          float rounded = 0;
          for (int64_t k = 0; k < s.rank; ++k) {
            const auto head = static_cast<size_t>(h);
            const T w = c < s.key_dim ? keys.numbers[head][static_cast<size_t>(k * s.key_dim + c)]
                                      : values.numbers[head][static_cast<size_t>((c - s.key_dim - s.rope_dim) * s.rank + k)];
            sum += double{to_float(latent[s.rope_dim + k])} * double{to_float(w)};
            rounded += to_float(latent[s.rope_dim + k]) * to_float(w);
          }
          made.push_back(got[row + static_cast<size_t>(c)]);
          exact.push_back(sum);
          naive.push_back(to_float(from_float<T>(rounded)));
        }
      }
  CHECK(test::relative_error(made, exact) <= 2 * test::relative_error(naive, exact) + 2.4e-7);
}

// A range of heads of a step with more of them.
template <class T>
int32_t check_attention(AttentionShape shape, const std::vector<Prompt>& prompts, int32_t num_ctas) {
  CAPTURE(shape.head_dim);
  CAPTURE(shape.hopper);
  constexpr int32_t kOtherHeads = 1;  // in front of these
  shape.dtype = kDTypeOf<T>;
  const int32_t heads = shape.num_heads, all_heads = heads + kOtherHeads, value_dim = shape.joined_value_dim;
  std::vector<int32_t> query_start = {0}, context_len, block_start;
  std::vector<uint8_t> is_left_out;
  int32_t num_blocks = 0;
  for (const Prompt& p : prompts) {
    query_start.push_back(query_start.back() + p.num_rows);
    context_len.push_back(p.context_len);
    block_start.push_back(num_blocks);
    is_left_out.push_back(p.context_len == 7);  // another list has it
    num_blocks += static_cast<int32_t>(ceil_div(p.context_len, shape.block_size));
  }
  const AttentionBatch batch{static_cast<int32_t>(prompts.size()), query_start.data(), context_len.data(),
                             block_start.data(), nullptr, is_left_out.data()};
  AttentionSchedule schedule;
  schedule_attention(batch, shape, num_ctas, &schedule);
  const AttentionLimits limits = attention_limits(shape, num_ctas, batch.num_seqs, query_start.back());
  CHECK(static_cast<int64_t>(schedule.items.size()) <= limits.max_items);
  std::vector<BlockId> ids;
  for (int32_t i = 0; i < num_blocks; ++i) ids.push_back(num_blocks - 1 - i);
  const int64_t row_dim = shape.row_dim(), query_stride = int64_t{all_heads} * shape.head_dim;
  std::vector<T> pool_numbers = converted<T>(random_normal(num_blocks * shape.dense_stride(), 11));
  const std::vector<T> query_numbers = converted<T>(random_normal(query_start.back() * query_stride, 12));
  const auto row_of = [&](size_t seq, int32_t head, int32_t position) {
    const int32_t block = ids[static_cast<size_t>(block_start[seq] + position / shape.block_size)];
    return ((int64_t{block} * heads + head) * shape.block_size + position % shape.block_size) * row_dim;
  };
  for (size_t s = 0; s < prompts.size(); ++s)  // behind a sequence's last position
    for (int32_t p = prompts[s].context_len; p % shape.block_size != 0; ++p)
      for (int32_t h = 0; h < heads; ++h)
        std::fill_n(pool_numbers.begin() + row_of(s, h, p), row_dim, from_float<T>(NAN));
  const DeviceArray<T> pool(pool_numbers), queries(query_numbers);
  const int64_t out_stride = int64_t{all_heads} * value_dim;
  DeviceArray<T> out(std::vector<T>(static_cast<size_t>(query_start.back() * out_stride), from_float<T>(99)));
  const DeviceArray<BlockId> device_ids(ids);
  const DeviceArray<AttentionItem> items(schedule.items);
  const DeviceArray<int32_t> cta_start(schedule.cta_start);
  DeviceArray<float> partials(static_cast<size_t>(limits.max_partial_rows * value_dim)),
      stats(static_cast<size_t>(limits.max_partial_rows * 2));
  DeviceArray<int32_t> counters(std::vector<int32_t>(static_cast<size_t>(limits.max_splits), 0));
  AttentionWork work{};
  work.num_ctas = num_ctas, work.items = items.data(), work.cta_start = cta_start.data();
  work.partials = partials.data(), work.partial_stats = stats.data(), work.counters = counters.data();
  work.num_blocks = num_blocks;
  const float scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  expanded_attention<T>(queries.data() + kOtherHeads * shape.head_dim, query_stride, out.data() + kOtherHeads * value_dim,
                        out_stride, pool.data(), device_ids.data(), work, {shape, scale}, nullptr);
  CHECK((out.check_guards() && partials.check_guards() && stats.check_guards() && counters.check_guards()));
  const std::vector<float> got = out.download_floats();
  std::vector<float> made, naive;
  std::vector<double> exact;
  for (size_t s = 0; s < prompts.size(); ++s)
    for (int32_t row = 0; row < prompts[s].num_rows; ++row) {
      const int64_t token = query_start[s] + row;
      const int32_t position = prompts[s].context_len - prompts[s].num_rows + row;
      for (int32_t h = -kOtherHeads; h < heads; ++h) {
        const float* const own = &got[static_cast<size_t>(token * out_stride + (h + kOtherHeads) * value_dim)];
        if (h < 0 || is_left_out[s] != 0) {
          for (int32_t c = 0; c < value_dim; ++c) REQUIRE(own[c] == 99);
          continue;
        }
        const T* const q = &query_numbers[static_cast<size_t>(token * query_stride + (h + kOtherHeads) * shape.head_dim)];
        const auto attend = [&]<class F>(F) {
          std::vector<F> p;
          F max = -INFINITY, sum = 0;
          for (int32_t i = 0; i <= position; ++i) {
            F score = 0;
            for (int32_t d = 0; d < shape.head_dim; ++d)
              score += static_cast<F>(to_float(q[d])) * static_cast<F>(to_float(pool_numbers[static_cast<size_t>(row_of(s, h, i) + d)]));
            p.push_back(score * scale);
            max = std::max(max, p.back());
          }
          for (F& x : p) sum += x = std::exp(x - max);
          std::vector<F> values(static_cast<size_t>(value_dim), 0);
          for (int32_t c = 0; c < value_dim; ++c) {
            for (int32_t i = 0; i <= position; ++i) {
              const F numerator = std::is_same_v<F, double> ? p[static_cast<size_t>(i)]
                                                            : static_cast<F>(to_float(from_float<T>(static_cast<float>(p[static_cast<size_t>(i)]))));
              values[static_cast<size_t>(c)] += numerator * static_cast<F>(to_float(pool_numbers[static_cast<size_t>(row_of(s, h, i) + shape.head_dim + c)]));
            }
            values[static_cast<size_t>(c)] /= sum;
          }
          return values;
        };
        const std::vector<double> right = attend(double());
        const std::vector<float> rounded = attend(float());
        for (int32_t c = 0; c < value_dim; ++c) {
          made.push_back(own[c]);
          exact.push_back(right[static_cast<size_t>(c)]);
          naive.push_back(to_float(from_float<T>(rounded[static_cast<size_t>(c)])));
        }
      }
    }
  CHECK(test::relative_error(made, exact) <= 2 * test::relative_error(naive, exact) + 1.2e-7);
  int32_t max_cut_rows = 0;
  for (const AttentionItem& item : schedule.items)
    if (item.partial >= 0) max_cut_rows = std::max(max_cut_rows, item.num_rows);
  return max_cut_rows;
}

AttentionShape joined_shape(int32_t num_heads, int32_t head_dim, int32_t value_dim, int32_t block_size = kExpandedBlock) {
  AttentionShape shape;
  shape.num_heads = shape.num_kv_heads = num_heads;
  shape.head_dim = head_dim;
  shape.joined_value_dim = value_dim;
  shape.block_size = block_size;
  return shape;
}

}  // namespace

TEST_CASE_TEMPLATE("each head's keys and values are as close to fp64 as naive arithmetic, and nothing else is written", T,
                   float, __nv_bfloat16, __half) {
  const std::vector<Prompt> prompts = {{1, 1}, {128, 3}, {129, 1}, {70, 70}};
  check_expansion<T>({512, 64, 128, 128}, 2, {{33, 33}}, 16, 1);
  check_expansion<T>({40, 64, 10, 12}, 3, prompts, 8, 1);
  check_expansion<T>({72, 8, 136, 16}, 2, prompts, 4, 2);
  check_expansion<T>({18, 6, 10, 12}, 3, prompts, 5, 1);
  check_expansion<T>({16, 8, 8, 8}, 130, {{9, 9}}, 16, 1);
}

TEST_CASE("attention over expanded latents is as close to fp64 as a naive computation") {
  const std::vector<Prompt> prompts = {{65, 65}, {7, 7}, {130, 20}, {1, 1}, {200, 129}};
  for (const auto& [head_dim, value_dim] : {std::pair{192, 128}, {96, 64}, {24, 16}, {256, 256}, {16, 12}}) {
    check_attention<__nv_bfloat16>(joined_shape(2, head_dim, value_dim), prompts, 7);
    check_attention<__half>(joined_shape(1, head_dim, value_dim), {{129, 129}}, 3);
  }
  check_attention<float>(joined_shape(2, 16, 12), prompts, 5);
  check_attention<__nv_bfloat16>(joined_shape(1, 192, 128, 8), prompts, 2);
}

TEST_CASE("units in pieces, on few and many blocks of the grid") {
  for (const int32_t num_ctas : {1, 9}) {
    AttentionShape shape = joined_shape(1, 192, 128);
    CHECK((check_attention<__nv_bfloat16>(shape, {{900, 100}}, num_ctas) > 0) == (num_ctas > 1));
  }
}

TEST_CASE("Hopper: borders of tiles and items, more items than blocks, and units in pieces") {
  AttentionShape shape = joined_shape(2, 192, 128);
  shape.hopper = true;
  shape.dtype = DType::kBF16;
  CHECK(attention_tiling(shape).only_wgmma);
  for (const int32_t n : {1, 64, 65, 127, 128, 129})
    check_attention<__nv_bfloat16>(shape, {{n, n}, {7, 7}, {n + 130, 70}}, 2);
  check_attention<__half>(shape, {{300, 300}}, 3);
  CHECK(check_attention<__nv_bfloat16>(shape, {{900, 100}}, 9) > 0);
}

}  // namespace llmb::cuda
