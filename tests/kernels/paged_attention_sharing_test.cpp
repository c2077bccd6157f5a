// Attention over prefixes that sequences share: the bytes are those of each sequence on its own.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "core/shared_prefixes.h"
#include "kernels/cpu/paged_attention.h"
#include "tests/support/kernel_support.h"
#include "tests/support/kv_bytes.h"
#include "tests/support/test_rng.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::KvBytes;
using test::same_bytes;
using test::TestRng;

struct Shape {
  int32_t num_heads, num_kv_heads, head_dim, window;
  float softcap;
  bool has_alibi, has_sinks;

  int64_t q_size() const { return int64_t{num_heads} * head_dim; }
};
constexpr Shape kPlain{6, 2, 16, 0, 0, false, false};

// Sequences whose tables begin with blocks of others. Slots of a sequence's context hold random keys and values, all
// other slots are NaN.
struct Batch {
  int32_t block_size = 16;
  std::vector<std::vector<BlockId>> tables;
  std::vector<int32_t> context_len, query_len;
  int32_t num_blocks = 0;

  // A sequence that shares the first num_shared blocks with sequence `of`.
  void add(int32_t of, int32_t num_shared, int32_t context, int32_t num_new) {
    std::vector<BlockId> table;
    if (num_shared > 0) table.assign(tables[of].begin(), tables[of].begin() + num_shared);
    while (static_cast<int32_t>(table.size()) * block_size < context) table.push_back(num_blocks++);
    tables.push_back(table);
    context_len.push_back(context);
    query_len.push_back(num_new);
  }

  // Its tables, in the given order of sequences.
  StepPlan plan(std::span<const int32_t> order) const {
    StepPlan plan;
    plan.clear();
    plan.block_size = block_size;
    for (const int32_t s : order) {
      plan.entries.emplace_back().base = context_len[s] - query_len[s];
      plan.tokens.resize(plan.tokens.size() + static_cast<size_t>(query_len[s]));
      plan.query_start.push_back(plan.num_tokens());
      plan.block_ids.insert(plan.block_ids.end(), tables[s].begin(), tables[s].end());
      plan.block_start.push_back(static_cast<int32_t>(plan.block_ids.size()));
    }
    return plan;
  }
};

// Runs one plan over one cache, again and again.
class Attention {
 public:
  Attention(const Shape& s, DType dtype, const Batch& batch, const StepPlan& plan, std::span<const int32_t> order)
      : shape_(s), plan_(plan), cache_(dtype, batch.num_blocks, batch.block_size, s.num_kv_heads, s.head_dim) {
    std::vector<int32_t> used(static_cast<size_t>(batch.num_blocks));  // slots of each block
    for (const int32_t i : order) {
      context_len_.push_back(batch.context_len[i]);
      for (size_t b = 0; b < batch.tables[i].size(); ++b)
        used[batch.tables[i][b]] =
            std::max(used[batch.tables[i][b]],
                     std::clamp<int32_t>(batch.context_len[i] - static_cast<int32_t>(b) * batch.block_size, 0,
                                         batch.block_size));
    }
    for (int32_t b = 0; b < batch.num_blocks; ++b) {
      for (int32_t slot = b * batch.block_size; slot < b * batch.block_size + used[b]; ++slot) {
        for (int32_t h = 0; h < s.num_kv_heads; ++h) {
          const auto seed = static_cast<uint32_t>(slot * 8 + h);
          cache_.store(slot, h, test::random_normal(s.head_dim, seed, 1.5f),
                       test::random_normal(s.head_dim, seed + 1000000));
        }
      }
    }
    qkv_ = test::random_normal(plan.num_tokens() * s.q_size(), 5, 1.5f);
    for (int32_t h = 0; h < s.num_heads; ++h) {
      slopes_.push_back(0.3f / static_cast<float>(h + 1));
      sinks_.push_back(static_cast<float>(h % 3) - 0.5f);
    }
  }

  std::vector<float> run(std::span<const SharedPrefix> prefixes, ThreadPool& pool) {
    const Shape& s = shape_;
    AttentionBatch batch{plan_.num_entries(), plan_.query_start.data(), context_len_.data(), plan_.block_start.data(),
                         plan_.block_ids.data()};
    batch.shared_prefixes = prefixes;
    batch.shared_entries = plan_.shared_entries.data();
    const AttentionParams params{
        s.num_heads, 1 / std::sqrt(static_cast<float>(s.head_dim)), s.window,
        s.softcap,   s.has_alibi ? slopes_.data() : nullptr,        s.has_sinks ? sinks_.data() : nullptr};
    GuardedFloats out(plan_.num_tokens() * s.q_size());
    paged_attention(qkv_.data(), s.q_size(), out.data(), batch, params, cache_.view(), pool);
    CHECK(out.guards_untouched());
    return out.copy();
  }
  std::vector<float> run_row_by_row(ThreadPool& pool) { return run({}, pool); }
  std::vector<float> run_together(ThreadPool& pool) { return run(plan_.shared_prefixes, pool); }

 private:
  const Shape shape_;
  const StepPlan& plan_;
  KvBytes cache_;
  std::vector<int32_t> context_len_;
  std::vector<float> qkv_, slopes_, sinks_;
};

std::vector<int32_t> in_order(const Batch& batch) {
  std::vector<int32_t> order(batch.tables.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void check_same(const Shape& s, DType dtype, const Batch& batch, std::span<const int32_t> order) {
  static ThreadPool one(1), two(2), three(3);
  StepPlan plan = batch.plan(order);
  find_shared_prefixes(&plan);
  Attention attention(s, dtype, batch, plan, order);
  const std::vector<float> expected = attention.run_row_by_row(two);
  CHECK(std::none_of(expected.begin(), expected.end(), [](float x) { return std::isnan(x); }));
  for (ThreadPool* pool : {&one, &two, &three}) CHECK(same_bytes(expected, attention.run_together(*pool)));
}

// Up to 7 sequences in a tree of prefixes that end near the borders of segments.
Batch random_batch(TestRng& rng) {
  static constexpr int32_t kBlockSizes[] = {8, 16, 32, 5};
  static constexpr int32_t kBorders[] = {0, 256, 512, 768};
  Batch batch;
  batch.block_size = kBlockSizes[rng.between(0, 3)];
  const int32_t num_seqs = rng.between(2, 7);
  for (int32_t i = 0; i < num_seqs; ++i) {
    const int32_t of = i == 0 ? 0 : rng.between(0, i - 1);
    const int32_t most = i == 0 || rng.chance(0.1) ? 0 : static_cast<int32_t>(batch.tables[of].size());
    const int32_t border = kBorders[rng.between(0, 3)] / batch.block_size + rng.between(-1, 1);
    const int32_t num_shared = std::clamp(border, 0, most);
    // Now and then all of a sequence lies within what it shares.
    const int32_t own = rng.chance(0.1) && num_shared > 0 ? -rng.between(0, batch.block_size - 1) : rng.between(1, 300);
    const int32_t context = std::max(1, num_shared * batch.block_size + own);
    batch.add(of, num_shared, context, std::min(context, rng.chance(0.5) ? 1 : rng.log_between(1, 60)));
  }
  return batch;
}

}  // namespace

TEST_CASE("rows that share a prefix have the bytes of rows on their own: any tree of prefixes, cache type and window") {
  const Shape shapes[] = {kPlain,
                          {7, 1, 24, 0, 4.0f, true, true},
                          {6, 2, 32, 300, 0, true, false},
                          {3, 3, 16, 40, 0, false, true},
                          {8, 2, 64, 0, 0, false, false}};
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    TestRng rng(seed);
    const Batch batch = random_batch(rng);
    std::vector<int32_t> order = in_order(batch);
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[rng.between(0, static_cast<int32_t>(i))]);
    const DType dtype = seed % 3 == 0 ? DType::kF32 : seed % 3 == 1 ? DType::kBF16 : DType::kI8;
    check_same(shapes[seed % 5], dtype, batch, order);
  }
}

TEST_CASE("one shared prefix at every border of a segment and a block, by every instruction set") {
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8}) {
      for (const int32_t num_shared : {1, 15, 16, 17, 31, 32, 33}) {
        CAPTURE(num_shared);
        Batch batch;
        for (int32_t i = 0; i < 5; ++i)
          batch.add(0, i == 0 ? 0 : num_shared, num_shared * 16 + 1 + i * 7, i % 2 == 0 ? 1 : 3);
        check_same(kPlain, dtype, batch, in_order(batch));
      }
    }
  });
}

TEST_CASE("the sequence that computes a prefix in the same step goes with those that share it") {
  Batch batch;
  batch.add(0, 0, 540, 540);
  for (int32_t i = 1; i < 6; ++i) batch.add(0, 33, 530 + i, i);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8}) check_same(kPlain, dtype, batch, in_order(batch));
}

TEST_CASE("a prefix that is named is read through one table for all") {
  ThreadPool pool(2);
  Batch batch;
  batch.add(0, 0, 300, 1);
  batch.add(0, 0, 300, 1);
  const std::vector<int32_t> order = in_order(batch);
  StepPlan apart = batch.plan(order);
  apart.shared_entries = {0, 1};
  const SharedPrefix named{0, 16, 0, 2};  // which is not so
  Attention attention(kPlain, DType::kF32, batch, apart, order);
  const std::vector<float> out = attention.run({&named, 1}, pool);
  StepPlan together = apart;  // with the second's first 256 positions in the first's blocks
  std::copy_n(together.block_ids.begin(), 16, together.block_ids.begin() + together.block_start[1]);
  Attention expected(kPlain, DType::kF32, batch, together, order);
  CHECK(same_bytes(out, expected.run_row_by_row(pool)));
  CHECK_FALSE(same_bytes(out, attention.run_row_by_row(pool)));
}

}  // namespace llmb::cpu
