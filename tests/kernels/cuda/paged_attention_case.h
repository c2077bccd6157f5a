// Attention of given sequences laid out in a paged pool, run through the kernels, and its references.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/cuda/paged_attention.h"
#include "kernels/cuda/paged_attention_shared.h"
#include "tests/kernels/cuda/paged_attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device_array.h"

namespace llmb::cuda {

constexpr int32_t kLeastGainTiles = 2, kStatePositions = 4;  // small cases share too, whatever tuning.h says

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
  step.lists[1] = {items, num_items, c.shape.group()};
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
    schedule_shared_attention(
        batch, {c.shared_prefixes, c.shared_seqs, least_position.data(), kLeastGainTiles, kStatePositions}, shape,
        c.num_ctas, in.query_start.back(), &schedule);
  return SharedRun(c, batch, std::move(schedule), in.query_start.back(), positions);
}

struct AttentionRun {
  std::vector<float> out;        // [num_tokens, out_size]
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
  if (c.schedule_later >= 0) scheduled.later = c.schedule_later;
  if (c.first_position > 0) scheduled.chunk = 0;
  AttentionSchedule schedule;
  schedule_attention(batch, scheduled, c.num_ctas, &schedule);
  for (AttentionItem& item : schedule.items) item.kv_begin = std::max(item.kv_begin, c.first_position);
  const AttentionLimits limits = attention_limits(scheduled, c.num_ctas, batch.num_seqs, in.query_start.back());
  std::vector<float> slopes, sinks;
  for (int32_t h = 0; h < c.shape.num_heads; ++h) slopes.push_back(c.slope(h)), sinks.push_back(c.sink(h));

  KvOnDevice<T> kv(c, in);
  test::DeviceArray<T> qkv(in.qkv), out(static_cast<size_t>(in.query_start.back() * c.out_size()));
  test::DeviceArray<BlockId> ids(in.ids);
  test::DeviceArray<AttentionItem> items(schedule.items);
  test::DeviceArray<int32_t> cta_start(schedule.cta_start);
  test::DeviceArray<float> device_slopes(slopes), device_sinks(sinks);
  test::DeviceArray<float> partials(static_cast<size_t>(limits.max_partial_rows * c.shape.value_dim()));
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
  kv.attend(qkv.data(), c.stride(), out.data(), ids.data(), work, params);

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
  CHECK((qkv.holds(in.qkv) && kv.are_unchanged(in) && ids.holds(in.ids)));
  CHECK(((clips || items.holds(schedule.items)) && cta_start.holds(schedule.cta_start)));
  CHECK((device_slopes.holds(slopes) && device_sinks.holds(sinks) && counters.holds(zeros)));
  return result;
}

// One row's attention over all positions that it sees. F: the precision of all arithmetic; then numerators and result
// are rounded to T, as every computation with T inputs to the value product does (double: not).
template <class T, class F>
void reference_row(const AttentionCase& c, const SequenceData& data, int32_t context_len, int32_t position,
                   int32_t head, F* out) {
  const int32_t dim = c.shape.head_dim;
  const auto rounded = [](F x) {
    return std::is_same_v<F, double> ? x : static_cast<F>(to_float(from_float<T>(static_cast<float>(x))));
  };
  const float* q = &data.q[position * c.q_size() + head * dim];
  const int64_t kv_at = head / c.shape.group() * dim;
  const int32_t last_seen = position + c.shape.later, last = std::min(last_seen, context_len - 1);
  const int32_t first_seen = c.shape.chunk > 0    ? position / c.shape.chunk * c.shape.chunk
                             : c.shape.window > 0 ? std::max(0, last_seen - c.shape.window + 1)
                                                  : 0;
  const int32_t first = std::max(first_seen, c.first_position);
  std::vector<F> p;
  F max = c.has_sinks ? static_cast<F>(c.sink(head)) : -INFINITY, sum = 0;
  for (int32_t i = first; i <= last; ++i) {
    F score = 0;
    for (int32_t d = 0; d < dim; ++d) score += static_cast<F>(q[d]) * data.k[i * c.kv_size() + kv_at + d];
    score *= c.score_scale();
    if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
    p.push_back(score + static_cast<F>(c.slope(head)) * (i - position));
    max = std::max(max, p.back());
  }
  for (F& x : p) sum += x = std::exp(x - max);
  if (c.has_sinks) sum += std::exp(c.sink(head) - max);
  const std::vector<float>& values = c.shape.latent_dim > 0 ? data.k : data.v;
  const int64_t value_at = kv_at + dim - c.shape.value_dim();
  for (int32_t d = 0; d < c.shape.value_dim(); ++d) {
    F acc = 0;
    for (int32_t i = first; i <= last; ++i) acc += rounded(p[i - first]) * values[i * c.kv_size() + value_at + d];
    out[d] = rounded(acc / sum);
  }
}

template <class T, class F>
std::vector<F> reference(const AttentionCase& c, std::span<const Query> queries) {
  std::vector<F> out;
  for (const Query& q : queries) {
    for (int32_t position = q.context_len - q.query_len; position < q.context_len; ++position) {
      for (int32_t head = 0; head < c.shape.num_heads; ++head) {
        out.resize(out.size() + static_cast<size_t>(c.shape.value_dim()));
        reference_row<T>(c, *q.data, q.context_len, position, head,
                         &out[out.size() - static_cast<size_t>(c.shape.value_dim())]);
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
