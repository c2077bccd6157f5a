// paged_attention_parts: ranks with the keys and values of some positions each find the bytes of one that has all.
#include "kernels/cpu/paged_attention_parts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "base/shared_ranks.h"
#include "kernels/cpu/paged_attention.h"
#include "tests/support/check_ok.h"
#include "tests/support/kernel_support.h"
#include "tests/support/narrow_room.h"
#include "tests/support/test_rng.h"

namespace llmb::cpu {
namespace {

using test::GuardedFloats;
using test::NarrowRoom;
using test::same_bytes;
using test::TestRng;

struct Shape {
  int32_t num_heads, num_kv_heads, head_dim;
  DType dtype = DType::kF32;
  int32_t window = 0;
  float softcap = 0;
  bool has_sinks = false, has_alibi = false;
  int32_t latent_dim = 0;
  bool sees_later = false;
  int32_t reach = 0;

  int64_t q_size() const { return int64_t{num_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{num_kv_heads} * head_dim; }
  int64_t out_size() const { return int64_t{num_heads} * (latent_dim > 0 ? latent_dim : head_dim); }
};

struct Sequence {
  int32_t context_len, query_len;
  std::vector<float> k, v;  // [context_len, kv_size]
};

struct Batch {
  std::vector<Sequence> sequences;
  std::vector<float> q;  // [rows, q_size]
  std::vector<int32_t> query_start = {0}, context_len;
  int64_t num_rows() const { return query_start.back(); }
};

Batch make_batch(const Shape& s, const std::vector<std::pair<int32_t, int32_t>>& lengths, uint32_t seed) {
  Batch batch;
  for (const auto& [context, query] : lengths) {
    seed += 10;
    batch.sequences.push_back({context, query, test::random_normal(context * s.kv_size(), seed, 1.5f),
                               test::random_normal(context * s.kv_size(), seed + 1)});
    batch.query_start.push_back(batch.query_start.back() + query);
    batch.context_len.push_back(context);
  }
  batch.q = test::random_normal(batch.num_rows() * s.q_size(), seed + 2, 1.5f);
  return batch;
}

// A pool with the positions that `has` says, everything else NaN. A block is `slice` positions of a rank.
struct Pool {
  std::vector<int32_t> block_start;
  std::vector<BlockId> block_ids;
  std::vector<float> memory;
  KvCacheView view;

  template <class Has>
  Pool(const Shape& s, const Batch& batch, int32_t slice, const Has& has) {
    for (const Sequence& sequence : batch.sequences) {
      block_start.push_back(static_cast<int32_t>(block_ids.size()));
      for (int64_t i = 0; i < ceil_div(sequence.context_len, slice); ++i)
        block_ids.push_back(static_cast<BlockId>(block_ids.size()));
    }
    std::reverse(block_ids.begin(), block_ids.end());
    view = {nullptr, s.dtype, slice, s.num_kv_heads, s.head_dim, 0, s.latent_dim};
    memory.assign(block_ids.size() * static_cast<size_t>(view.block_bytes()) / 4, std::nanf(""));
    view.data = reinterpret_cast<uint8_t*>(memory.data());
    for (size_t i = 0; i < batch.sequences.size(); ++i)
      for (int32_t p = 0; p < batch.sequences[i].context_len; ++p)
        if (has(p))
          write_kv_slot(&batch.sequences[i].k[p * s.kv_size()], &batch.sequences[i].v[p * s.kv_size()],
                        int64_t{block_ids[static_cast<size_t>(block_start[i] + p / slice)]} * slice + p % slice, view);
  }
  AttentionBatch batch(const Batch& of) const {
    return {static_cast<int32_t>(of.sequences.size()), of.query_start.data(), of.context_len.data(),
            block_start.data(), block_ids.data(), {}, nullptr};
  }
};

struct Params {
  std::vector<float> slopes, sinks;
  AttentionParams params;
  explicit Params(const Shape& s) {
    for (int32_t h = 0; h < s.num_heads; ++h) {
      slopes.push_back(0.3f / static_cast<float>(h + 1));
      sinks.push_back(static_cast<float>(h % 3) - 0.5f);
    }
    params = {s.num_heads, 0.2f, s.window, s.softcap, s.has_alibi ? slopes.data() : nullptr,
              s.has_sinks ? sinks.data() : nullptr, /*chunk=*/0, s.sees_later, s.reach};
  }
};

std::vector<float> alone(const Shape& s, const Batch& batch) {
  const Pool pool(s, batch, 16, [](int32_t) { return true; });
  const Params params(s);
  ThreadPool threads(2);
  GuardedFloats out(batch.num_rows() * s.out_size());
  paged_attention(batch.q.data(), s.q_size(), out.data(), pool.batch(batch), params.params, pool.view, threads);
  return out.copy();
}

// bounds: [ranks + 1] rows that each wants; empty: each wants all. The largest number of messages of a rank is added.
std::vector<float> over_ranks(const Shape& s, const Batch& batch, int32_t num_ranks, int32_t slice,
                              const std::vector<int64_t>& bounds, int64_t room_bytes, int* num_messages) {
  ChannelMembers all;
  for (int r = 0; r < num_ranks; ++r) all.ranks.push_back(r);
  auto ranks = SharedRanks::create(num_ranks, {all});
  test::check_ok(ranks.status());
  std::vector<std::vector<float>> outs(static_cast<size_t>(num_ranks));
  std::vector<int> counts(outs.size());
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < num_ranks; ++r)
    threads.emplace_back([&, r] {
      NarrowRoom messages(SharedRanks::join(*ranks, 0, r), room_bytes);
      const Pool pool(s, batch, slice,
                      [&](int32_t p) { return owner_of_position(p, slice, num_ranks) == r; });
      const Params params(s);
      ThreadPool own_threads(1 + r % 2);  // how work is cut into items must not show
      const int64_t first = bounds.empty() ? 0 : bounds[static_cast<size_t>(r)];
      const int64_t end = bounds.empty() ? batch.num_rows() : bounds[static_cast<size_t>(r) + 1];
      GuardedFloats out((end - first) * s.out_size());
      paged_attention_parts(batch.q.data(), s.q_size(), out.data(), first, end - first, pool.batch(batch),
                            params.params, pool.view, messages, own_threads);
      CHECK(out.guards_untouched());
      outs[static_cast<size_t>(r)] = out.copy();
      counts[static_cast<size_t>(r)] = messages.num_turns();
    });
  for (std::thread& thread : threads) thread.join();
  *num_messages += *std::max_element(counts.begin(), counts.end());
  if (bounds.empty()) {
    for (const auto& out : outs) CHECK(same_bytes(out, outs[0]));
    return outs[0];
  }
  std::vector<float> joined;
  for (const auto& out : outs) joined.insert(joined.end(), out.begin(), out.end());
  return joined;
}

const std::vector<Shape> kShapes = {
    {6, 2, 32},
    {9, 3, 64, DType::kBF16},
    {4, 4, 16, DType::kI8},
    {4, 1, 20, DType::kBF16},
    {4, 2, 32, DType::kF32, /*window=*/300},
    {4, 2, 32, DType::kF32, /*window=*/40, /*softcap=*/20},
    {4, 2, 32, DType::kBF16, 0, 0, /*has_sinks=*/true, /*has_alibi=*/true},
    {40, 1, 48, DType::kBF16, 0, 0, false, false, /*latent_dim=*/32},
    {4, 4, 32, DType::kF32, 0, 0, false, false, 0, /*sees_later=*/true},
    {4, 2, 32, DType::kBF16, 0, 0, false, false, 0, /*sees_later=*/true, /*reach=*/280},
};

}  // namespace

TEST_CASE("contexts that end around borders of slices and segments, prompts and single rows, two and three ranks") {
  int num_messages = 0;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    const Shape& s = kShapes[i];
    for (const int32_t slice : {256, 512}) {
      std::vector<std::pair<int32_t, int32_t>> lengths = {{1, 1}, {600, 600}, {1030, 20}};
      for (const int32_t border : {256, 512, 1024})
        for (const int32_t more : {-1, 0, 1}) lengths.emplace_back(border + more, 1 + (border + more) % 3);
      const Batch batch = make_batch(s, lengths, 100 * static_cast<uint32_t>(i));
      const std::vector<float> expected = alone(s, batch);
      for (const int32_t num_ranks : {1, 2, 3}) {
        CAPTURE(i);
        CAPTURE(slice);
        CAPTURE(num_ranks);
        CHECK(same_bytes(expected, over_ranks(s, batch, num_ranks, slice, {}, int64_t{1} << 20, &num_messages)));
      }
    }
  }
}

TEST_CASE("rows that ranks share out at random, messages that hold a few states, lengths at random") {
  TestRng rng(3);
  int num_messages = 0;
  for (int round = 0; round < 40; ++round) {
    const Shape& s = kShapes[static_cast<size_t>(rng.between(0, static_cast<int>(kShapes.size()) - 1))];
    std::vector<std::pair<int32_t, int32_t>> lengths;
    for (int i = rng.between(1, 5); i > 0; --i) {
      const int32_t context = rng.between(1, 1500);
      lengths.emplace_back(context, rng.chance(0.5) ? 1 : rng.between(1, std::min(context, 200)));
    }
    const Batch batch = make_batch(s, lengths, static_cast<uint32_t>(7000 + round));
    const int32_t num_ranks = rng.between(2, 4);
    std::vector<int64_t> bounds = {0, batch.num_rows()};
    for (int32_t i = 1; i < num_ranks; ++i) bounds.push_back(rng.between(0, static_cast<int>(batch.num_rows())));
    std::sort(bounds.begin(), bounds.end());
    const int64_t of_token = s.num_heads * (ceil_div(s.out_size() / s.num_heads, 16) * 16 + 2) * 4;
    const int64_t room_bytes = ceil_div(of_token * rng.between(1, 40), 64) * 64;
    CAPTURE(round);
    CHECK(same_bytes(alone(s, batch), over_ranks(s, batch, num_ranks, 256, bounds, room_bytes, &num_messages)));
  }
  CHECK(num_messages > 200);
}

}  // namespace llmb::cpu
