// Attention of given sequences laid out in a paged pool, run through the kernels, and its references.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "kernels/cuda/paged_attention.h"
#include "kernels/cuda/paged_attention_shared.h"
#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {

template <class T>
constexpr DType kDTypeOf = std::is_same_v<T, float>    ? DType::kF32
                           : std::is_same_v<T, __half> ? DType::kF16
                                                       : DType::kBF16;

struct AttentionCase {
  AttentionShape shape;  // dtype is filled in
  float scale = 0;       // 0: 1 / sqrt(head_dim)
  float softcap = 0;
  bool has_alibi = false, has_sinks = false;
  int32_t num_ctas = 5;
  int32_t schedule_window = -1;  // -1: shape.window
  // Prefixes that a launch of its own computes, and the queries that share them.
  std::vector<SharedPositions> shared_prefixes;
  std::vector<int32_t> shared_seqs;
  int32_t shared_window = 0;  // that the list of that launch is made for, 0 or the widest of a model's layers
  bool takes_states = true;   // false: as layers whose windows gain nothing, with the same lists and no such launch

  float score_scale() const { return scale > 0 ? scale : 1 / std::sqrt(static_cast<float>(shape.head_dim)); }
  float slope(int32_t head) const { return has_alibi ? 0.02f * static_cast<float>(head + 1) : 0; }
  float sink(int32_t head) const { return 0.5f * static_cast<float>(head % 5) - 1; }
  int64_t q_size() const { return int64_t{shape.num_heads} * shape.head_dim; }
  int64_t kv_size() const { return int64_t{shape.num_kv_heads} * shape.head_dim; }
  int64_t stride() const { return q_size() + 2 * kv_size(); }
};

inline AttentionCase make_case(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t block_size = 16) {
  AttentionCase c;
  c.shape.num_heads = num_heads;
  c.shape.num_kv_heads = num_kv_heads;
  c.shape.head_dim = head_dim;
  c.shape.block_size = block_size;
  return c;
}

// A sequence's q, k and v for every position, fixed by its seed whatever batch it appears in; values that T holds.
struct SequenceData {
  std::vector<float> q, k, v;  // [length, q_size], [length, kv_size] twice
};

template <class T>
std::vector<float> random_values(int64_t n, uint32_t seed, float scale) {
  std::vector<float> values = test::random_normal(n, seed, scale);
  for (float& x : values) x = to_float(from_float<T>(x));
  return values;
}

template <class T>
SequenceData make_sequence(const AttentionCase& c, int32_t length, uint32_t seed) {
  return {random_values<T>(length * c.q_size(), seed, 1.5f), random_values<T>(length * c.kv_size(), seed + 1000, 1.5f),
          random_values<T>(length * c.kv_size(), seed + 2000, 1)};
}

// The last query_len positions of the first context_len of a sequence are new in the step. The schedule counts with
// `ahead` more. Its first blocks are those of an earlier query, whose data begin alike.
struct Query {
  const SequenceData* data;
  int32_t context_len, query_len;
  int32_t ahead = 0;
  int32_t shares_with = -1, num_shared_blocks = 0;
};

// A step's inputs on the host: pools in which blocks are shuffled and everything not written is NaN.
template <class T>
struct AttentionInputs {
  std::vector<int32_t> query_start = {0}, context_len, block_start = {0};
  std::vector<BlockId> ids;
  std::vector<T> qkv, k, v;

  AttentionInputs(const AttentionCase& c, std::span<const Query> queries, uint32_t seed) {
    const int32_t block_size = c.shape.block_size;
    for (const Query& q : queries) {
      query_start.push_back(query_start.back() + q.query_len);
      context_len.push_back(q.context_len);
      block_start.push_back(block_start.back() + static_cast<int32_t>(ceil_div(q.context_len + q.ahead, block_size)));
    }
    const int32_t num_blocks = block_start.back() + 3;
    for (int32_t i = 0; i < num_blocks; ++i) ids.push_back(i);
    std::mt19937 rng(seed);
    std::shuffle(ids.begin(), ids.end(), rng);
    for (size_t i = 0; i < queries.size(); ++i)
      for (int32_t block = 0; block < queries[i].num_shared_blocks; ++block)
        ids[block_start[i] + block] = ids[block_start[queries[i].shares_with] + block];
    const T nan = from_float<T>(std::nanf(""));
    qkv.assign(static_cast<size_t>(query_start.back() * c.stride()), nan);
    k.assign(static_cast<size_t>(num_blocks * c.kv_size() * block_size), nan);
    v = k;
    for (size_t i = 0; i < queries.size(); ++i) write(c, queries[i], i);
  }

 private:
  // Positions that no new token sees are left NaN.
  void write(const AttentionCase& c, const Query& query, size_t seq) {
    const SequenceData* const data = query.data;
    const int32_t context = query.context_len, query_len = query.query_len;
    const int32_t dim = c.shape.head_dim, block_size = c.shape.block_size;
    const int32_t first = c.shape.window > 0 ? std::max(0, context - query_len - c.shape.window + 1) : 0;
    for (int32_t p = first; p < context; ++p) {
      const int64_t block = ids[block_start[seq] + p / block_size];
      for (int32_t h = 0; h < c.shape.num_kv_heads; ++h) {
        const int64_t to = ((block * c.shape.num_kv_heads + h) * block_size + p % block_size) * dim;
        for (int32_t i = 0; i < dim; ++i) {
          k[to + i] = from_float<T>(data->k[p * c.kv_size() + h * dim + i]);
          v[to + i] = from_float<T>(data->v[p * c.kv_size() + h * dim + i]);
        }
      }
    }
    for (int32_t t = 0; t < query_len; ++t)
      for (int64_t i = 0; i < c.q_size(); ++i)
        qkv[(query_start[seq] + t) * c.stride() + i] =
            from_float<T>(data->q[(context - query_len + t) * c.q_size() + i]);
  }
};

// Clips the items as the device does: each query follows a group that gives one token of ahead + 1.
inline void clip_items(const AttentionCase& c, std::span<const Query> queries, const int32_t* num_items,
                       AttentionItem* items) {
  std::vector<StepRow> rows;
  std::vector<StepEntry> entries(queries.size());
  for (size_t i = 0; i < queries.size(); ++i) {
    for (int32_t row = 0; row < queries[i].query_len; ++row) rows.push_back({static_cast<int32_t>(i), row, row});
    entries[i].base = queries[i].context_len - queries[i].query_len - 1;
    entries[i].follows = 0;
    entries[i].max_ahead = queries[i].ahead + 1;
  }
  test::DeviceArray<int32_t> counts(std::vector<int32_t>{1}), places(2 * rows.size());
  test::DeviceArray<TokenId> tokens(std::vector<TokenId>(rows.size(), 0));
  const test::DeviceArray<StepRow> device_rows(rows);
  const test::DeviceArray<StepEntry> device_entries(entries);
  UnresolvedStep step;
  step.num_tokens = static_cast<int32_t>(rows.size());
  step.num_layer_groups = 0;
  step.rows = device_rows.data(), step.entries = device_entries.data(), step.tokens = tokens.data();
  step.positions = places.data(), step.slots = places.data() + rows.size();
  step.items = items, step.num_items = num_items;
  step.attention_group = c.shape.group();
  resolve_step(step, {counts.data(), nullptr}, nullptr);
  CHECK(places.check_guards());
}

// The launch over shared prefixes of a case: the list, and everything of it on the device.
struct SharedRun {
  SharedAttentionSchedule schedule;
  test::DeviceArray<AttentionItem> items;
  test::DeviceArray<int32_t> cta_start, tokens, positions;
  test::DeviceArray<float> values, stats;

  SharedRun(const AttentionCase& c, const AttentionBatch& batch, SharedAttentionSchedule made, int32_t num_tokens,
            const std::vector<int32_t>& position_of)
      : schedule(std::move(made)),
        items(schedule.items),
        cta_start(schedule.cta_start),
        tokens(schedule.tokens),
        positions(position_of),
        values(num_states(c, batch, num_tokens) * static_cast<size_t>(c.shape.head_dim)),
        stats(num_states(c, batch, num_tokens) * kStateStats) {}

  static size_t num_states(const AttentionCase& c, const AttentionBatch& batch, int32_t num_tokens) {
    return static_cast<size_t>(shared_attention_limits(c.shape, c.num_ctas, batch.num_seqs, num_tokens).max_states);
  }
  SharedAttentionWork work() {
    if (schedule.items.empty()) return {};
    return {static_cast<int32_t>(schedule.cta_start.size()) - 1,
            items.data(),
            cta_start.data(),
            tokens.data(),
            positions.data(),
            values.data(),
            stats.data(),
            schedule.uses_wgmma};
  }
  bool check_guards() const { return values.check_guards() && stats.check_guards(); }
};

template <class T>
SharedRun make_shared_run(const AttentionCase& c, const AttentionBatch& batch, const AttentionInputs<T>& in) {
  std::vector<int32_t> positions, least_position;
  for (int32_t s = 0; s < batch.num_seqs; ++s) {
    least_position.push_back(in.context_len[s] - (in.query_start[s + 1] - in.query_start[s]));
    for (int32_t row = in.query_start[s]; row < in.query_start[s + 1]; ++row)
      positions.push_back(in.context_len[s] - (in.query_start[s + 1] - row));
  }
  SharedAttentionSchedule schedule;
  AttentionShape shape = c.shape;
  shape.dtype = kDTypeOf<T>;
  shape.window = c.shared_window;
  if (!c.shared_prefixes.empty())
    schedule_shared_attention(batch, {c.shared_prefixes, c.shared_seqs, least_position.data()}, shape, c.num_ctas,
                              in.query_start.back(), &schedule);
  return SharedRun(c, batch, std::move(schedule), in.query_start.back(), positions);
}

struct AttentionRun {
  std::vector<float> out;        // [num_tokens, q_size]
  int32_t num_shared_items = 0;
  int32_t num_shared_positions = 0;  // most of a sequence
  bool shares_by_wgmma = false;
  int32_t max_cut_rows = 0;      // of the units in pieces
  int32_t num_empty_pieces = 0;  // after clipping
};

// Checks what holds for every run: guards, inputs and counters as they were.
template <class T>
AttentionRun run_attention(const AttentionCase& c, std::span<const Query> queries, uint32_t seed = 7) {
  AttentionParams params{c.shape, c.score_scale(), c.softcap};
  params.shape.dtype = kDTypeOf<T>;
  const AttentionInputs<T> in(c, queries, seed);
  std::vector<int32_t> context_len = in.context_len;
  for (size_t i = 0; i < queries.size(); ++i) context_len[i] += queries[i].ahead;
  const bool clips = context_len != in.context_len;
  AttentionBatch batch{static_cast<int32_t>(queries.size()), in.query_start.data(), context_len.data(),
                       in.block_start.data()};
  SharedRun shared = make_shared_run(c, batch, in);
  if (!shared.schedule.items.empty()) batch.shared = shared.schedule.states.data();
  AttentionShape scheduled = params.shape;
  if (c.schedule_window >= 0) scheduled.window = c.schedule_window;
  AttentionSchedule schedule;
  schedule_attention(batch, scheduled, c.num_ctas, &schedule);
  const AttentionLimits limits = attention_limits(scheduled, c.num_ctas, batch.num_seqs, in.query_start.back());
  std::vector<float> slopes, sinks;
  for (int32_t h = 0; h < c.shape.num_heads; ++h) slopes.push_back(c.slope(h)), sinks.push_back(c.sink(h));

  test::DeviceArray<T> qkv(in.qkv), k(in.k), v(in.v), out(static_cast<size_t>(in.query_start.back() * c.q_size()));
  test::DeviceArray<BlockId> ids(in.ids);
  test::DeviceArray<AttentionItem> items(schedule.items);
  test::DeviceArray<int32_t> cta_start(schedule.cta_start);
  test::DeviceArray<float> device_slopes(slopes), device_sinks(sinks);
  test::DeviceArray<float> partials(static_cast<size_t>(limits.max_partial_rows * c.shape.head_dim));
  test::DeviceArray<float> stats(static_cast<size_t>(limits.max_partial_rows * 2));
  const std::vector<int32_t> zeros(static_cast<size_t>(limits.max_splits), 0);
  test::DeviceArray<int32_t> counters(zeros);
  if (c.has_alibi) params.alibi_slopes = device_slopes.data();
  if (c.has_sinks) params.sinks = device_sinks.data();
  const bool decodes = c.shape.group() <= AttentionTiling::kTileRows &&
                       std::all_of(queries.begin(), queries.end(), [](const Query& q) { return q.query_len <= 1; });
  if (clips) clip_items(c, queries, cta_start.data() + c.num_ctas, items.data());
  const AttentionWork work{c.num_ctas,
                           items.data(),
                           cta_start.data(),
                           partials.data(),
                           stats.data(),
                           counters.data(),
                           !decodes,
                           static_cast<int32_t>(in.ids.size()),
                           {},
                           c.takes_states ? shared.work() : SharedAttentionWork()};
  paged_attention<T>(qkv.data(), c.stride(), out.data(), k.data(), v.data(), ids.data(), work, params, nullptr);

  AttentionRun result{out.download_floats()};
  result.num_shared_items = static_cast<int32_t>(shared.schedule.items.size());
  for (const SharedStates& states : shared.schedule.states)
    result.num_shared_positions = std::max(result.num_shared_positions, states.num_positions);
  result.shares_by_wgmma = shared.schedule.uses_wgmma;
  CHECK(shared.check_guards());
  for (const AttentionItem& item : schedule.items)
    if (item.partial >= 0) result.max_cut_rows = std::max(result.max_cut_rows, item.num_rows);
  for (const AttentionItem& item : items.download()) result.num_empty_pieces += item.kv_begin >= item.kv_end;
  CHECK((out.check_guards() && partials.check_guards() && stats.check_guards() && counters.check_guards()));
  CHECK((qkv.holds(in.qkv) && k.holds(in.k) && v.holds(in.v) && ids.holds(in.ids)));
  CHECK(((clips || items.holds(schedule.items)) && cta_start.holds(schedule.cta_start)));
  CHECK((device_slopes.holds(slopes) && device_sinks.holds(sinks) && counters.holds(zeros)));
  return result;
}

// One row's attention over all positions that it sees. F: the precision of all arithmetic; then numerators and result
// are rounded to T, as every computation with T inputs to the value product does (double: not).
template <class T, class F>
void reference_row(const AttentionCase& c, const SequenceData& data, int32_t position, int32_t head, F* out) {
  const int32_t dim = c.shape.head_dim;
  const auto rounded = [](F x) {
    return std::is_same_v<F, double> ? x : static_cast<F>(to_float(from_float<T>(static_cast<float>(x))));
  };
  const float* q = &data.q[position * c.q_size() + head * dim];
  const int64_t kv_at = head / c.shape.group() * dim;
  const int32_t first = c.shape.window > 0 ? std::max(0, position - c.shape.window + 1) : 0;
  std::vector<F> p;
  F max = c.has_sinks ? static_cast<F>(c.sink(head)) : -INFINITY, sum = 0;
  for (int32_t i = first; i <= position; ++i) {
    F score = 0;
    for (int32_t d = 0; d < dim; ++d) score += static_cast<F>(q[d]) * data.k[i * c.kv_size() + kv_at + d];
    score *= c.score_scale();
    if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
    p.push_back(score + static_cast<F>(c.slope(head)) * (i - position));
    max = std::max(max, p.back());
  }
  for (F& x : p) sum += x = std::exp(x - max);
  if (c.has_sinks) sum += std::exp(c.sink(head) - max);
  for (int32_t d = 0; d < dim; ++d) {
    F acc = 0;
    for (int32_t i = first; i <= position; ++i) acc += rounded(p[i - first]) * data.v[i * c.kv_size() + kv_at + d];
    out[d] = rounded(acc / sum);
  }
}

template <class T, class F>
std::vector<F> reference(const AttentionCase& c, std::span<const Query> queries) {
  std::vector<F> out;
  for (const Query& q : queries) {
    for (int32_t position = q.context_len - q.query_len; position < q.context_len; ++position) {
      for (int32_t head = 0; head < c.shape.num_heads; ++head) {
        out.resize(out.size() + static_cast<size_t>(c.shape.head_dim));
        reference_row<T>(c, *q.data, position, head, &out[out.size() - static_cast<size_t>(c.shape.head_dim)]);
      }
    }
  }
  return out;
}

// At most twice the error of a naive computation in the same precision, both against fp64. Returns the
// run's max_cut_rows.
template <class T>
int32_t check_against_reference(const AttentionCase& c, std::span<const Query> queries, uint32_t seed = 7) {
  CAPTURE(c.shape.num_heads);
  CAPTURE(c.shape.num_kv_heads);
  CAPTURE(c.shape.head_dim);
  CAPTURE(c.shape.block_size);
  CAPTURE(c.num_ctas);
  for (const Query& q : queries) {
    CAPTURE(q.context_len);
    CAPTURE(q.query_len);
  }
  const AttentionRun run = run_attention<T>(c, queries, seed);
  const std::vector<double> exact = reference<T, double>(c, queries);
  const std::vector<float> naive = reference<T, float>(c, queries);
  CHECK(test::relative_error(run.out, exact) <= 2 * test::relative_error(naive, exact) + 1.2e-7);
  return run.max_cut_rows;
}

}  // namespace llmb::cuda
