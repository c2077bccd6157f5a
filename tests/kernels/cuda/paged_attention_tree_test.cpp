// Rows of trees that lie behind their place, and work lists that were made for a longer context than there is.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "tests/kernels/cuda/paged_attention_case.h"

namespace llmb::cuda {
namespace {

using test::same_bytes;

// Rows behind `num_cached` positions of `data`; row i has the q, k and v of position num_cached + i there, and is the
// child of parents[i].
struct Tree {
  const SequenceData* data;
  int32_t num_cached;
  std::vector<int32_t> parents;  // parents[0] = -1

  std::vector<StepRow> rows() const {
    std::vector<StepRow> rows;
    for (int32_t i = 0; i < static_cast<int32_t>(parents.size()); ++i)
      rows.push_back({0, i, parents[i] < 0 ? 0 : rows[parents[i]].depth + 1});
    return rows;
  }
  // The chain that ends with a row.
  SequenceData path(const AttentionCase& c, int32_t row) const {
    std::vector<int32_t> positions;
    for (int32_t i = row; i >= 0; i = parents[i]) positions.push_back(num_cached + i);
    SequenceData chain;
    const auto take = [&](const std::vector<float>& from, int64_t width, std::vector<float>* to) {
      to->assign(from.begin(), from.begin() + num_cached * width);
      for (auto p = positions.rbegin(); p != positions.rend(); ++p)
        to->insert(to->end(), from.begin() + *p * width, from.begin() + (*p + 1) * width);
    };
    take(data->q, c.q_size(), &chain.q);
    take(data->k, c.kv_size(), &chain.k);
    take(data->v, c.kv_size(), &chain.v);
    return chain;
  }
};

// One step with the tree's rows, as the backend lays it out.
template <class T>
std::vector<float> run_tree(const AttentionCase& c, const Tree& tree) {
  const auto num_rows = static_cast<int32_t>(tree.parents.size());
  const std::vector<StepRow> rows = tree.rows();
  const Query whole{tree.data, tree.num_cached + num_rows, num_rows};
  const AttentionInputs<T> in(c, {&whole, 1}, 11);
  std::vector<int32_t> query_start = {0}, context_len, block_start, slots;
  for (int32_t i = 0; i < num_rows; ++i) {
    const int32_t at = tree.num_cached + i;
    slots.push_back(in.ids[at / c.shape.block_size] * c.shape.block_size + at % c.shape.block_size);
    if (rows[i].is_in_place() && i + 1 < num_rows && rows[i + 1].is_in_place()) continue;
    query_start.push_back(i + 1);
    context_len.push_back(tree.num_cached + rows[i].depth + 1);
    block_start.push_back(0);
  }
  AttentionParams params{c.shape, c.score_scale(), c.softcap};
  params.shape.dtype = kDTypeOf<T>;
  const auto num_seqs = static_cast<int32_t>(context_len.size());
  AttentionSchedule schedule;
  schedule_attention({num_seqs, query_start.data(), context_len.data(), block_start.data()}, params.shape, c.num_ctas,
                     &schedule);
  const AttentionLimits limits = attention_limits(params.shape, c.num_ctas, num_seqs, num_rows);
  std::vector<float> slopes, sinks;
  for (int32_t h = 0; h < c.shape.num_heads; ++h) slopes.push_back(c.slope(h)), sinks.push_back(c.sink(h));
  KvOnDevice<T> kv(c, in);
  test::DeviceArray<T> qkv(in.qkv), out(static_cast<size_t>(num_rows * c.q_size()));
  const test::DeviceArray<BlockId> ids(in.ids);
  const test::DeviceArray<AttentionItem> items(schedule.items);
  const test::DeviceArray<int32_t> cta_start(schedule.cta_start), parents(tree.parents), device_slots(slots);
  const test::DeviceArray<StepRow> device_rows(rows);
  const test::DeviceArray<float> device_slopes(slopes), device_sinks(sinks);
  test::DeviceArray<float> partials(static_cast<size_t>(limits.max_partial_rows * c.shape.head_dim));
  test::DeviceArray<float> stats(static_cast<size_t>(limits.max_partial_rows * 2));
  test::DeviceArray<int32_t> counters(std::vector<int32_t>(static_cast<size_t>(limits.max_splits), 0));
  if (c.has_alibi) params.alibi_slopes = device_slopes.data();
  if (c.has_sinks) params.sinks = device_sinks.data();
  const AttentionWork work{c.num_ctas,
                           items.data(),
                           cta_start.data(),
                           partials.data(),
                           stats.data(),
                           counters.data(),
                           true,
                           static_cast<int32_t>(in.ids.size()),
                           {device_rows.data(), parents.data(), device_slots.data()}};
  kv.attend(qkv.data(), c.stride(), out.data(), ids.data(), work, params);
  CHECK((out.check_guards() && partials.check_guards() && stats.check_guards() && counters.check_guards()));
  return out.download_floats();
}

// 9 rows: a prefix of two in a chain, branches of different lengths, two of them behind the same row.
const std::vector<int32_t> kParents = {-1, 0, 1, 1, 3, 1, 4, 2, 6};

template <class T>
void check_tree(AttentionCase c, const std::vector<int32_t>& contexts) {
  CAPTURE(c.shape.head_dim);
  CAPTURE(c.shape.block_size);
  CAPTURE(c.shape.window);
  for (const int32_t num_cached : contexts) {
    CAPTURE(num_cached);
    const SequenceData data = make_sequence<T>(c, num_cached + static_cast<int32_t>(kParents.size()), 5);
    const Tree tree{&data, num_cached, kParents};
    c.shape.deterministic = true;
    const std::vector<float> exact = run_tree<T>(c, tree);
    std::vector<double> reference_rows;
    std::vector<float> naive_rows;
    for (int32_t row = 0; row < static_cast<int32_t>(kParents.size()); ++row) {
      CAPTURE(row);
      const SequenceData chain = tree.path(c, row);
      const auto length = static_cast<int32_t>(chain.k.size()) / static_cast<int32_t>(c.kv_size());
      // path() gives the row's own q last, behind its ancestors'.
      const Query query{&chain, length, 1};
      const std::vector<float> alone = run_attention<T>(c, {&query, 1}).out;
      CHECK(same_bytes(
          alone, std::span(exact).subspan(static_cast<size_t>(row * c.q_size()), static_cast<size_t>(c.q_size()))));
      for (const double x : reference<T, double>(c, {&query, 1})) reference_rows.push_back(x);
      for (const float x : reference<T, float>(c, {&query, 1})) naive_rows.push_back(x);
    }
    c.shape.deterministic = false;
    const double error = test::relative_error(run_tree<T>(c, tree), reference_rows);
    CHECK(error <= 2 * test::relative_error(naive_rows, reference_rows) + 1.2e-7);
  }
}

TEST_CASE("a row of a tree sees its ancestors alone, with the bits of a chain where runs are deterministic") {
  check_tree<__nv_bfloat16>(make_case(4, 2, 64), {0, 1, 15, 59, 64, 130});
  check_tree<__half>(make_case(7, 1, 128, 8), {3, 57});
  for (const KvCode code : {KvCode::kInt8, KvCode::kFp8}) {
    AttentionCase c = make_case(4, 2, 64);
    c.shape.kv_code = code;
    check_tree<__nv_bfloat16>(c, {1, 15, 64, 130});
    c = make_case(4, 2, 20, 5);
    c.shape.kv_code = code;
    check_tree<float>(c, {1, 33});
  }
  check_tree<__nv_bfloat16>(make_case(2, 1, 256, 32), {28, 40});
  check_tree<__nv_bfloat16>(make_case(3, 3, 80), {62});
  check_tree<float>(make_case(4, 2, 24, 5), {0, 4, 30, 77});
}

TEST_CASE("also with windows shorter than a path, soft cap, ALiBi and sinks") {
  AttentionCase c = make_case(4, 1, 64);
  c.has_sinks = true;
  for (const int32_t window : {1, 3, 40}) {
    c.shape.window = window;
    check_tree<__nv_bfloat16>(c, {6, 63});
  }
  c.softcap = 4;
  c.has_alibi = true;
  check_tree<__nv_bfloat16>(c, {33});
}

// Contexts that turn out shorter than the schedule says. Returns how many pieces became empty.
template <class T>
int32_t check_clipped(AttentionCase c, const std::vector<Query>& queries) {
  CAPTURE(c.shape.head_dim);
  CAPTURE(c.shape.hopper);
  c.shape.deterministic = false;
  c.schedule_window = 0;
  check_against_reference<T>(c, queries);
  const int32_t num_empty = run_attention<T>(c, queries).num_empty_pieces;
  c.shape.deterministic = true;
  std::vector<Query> exact = queries;
  for (Query& query : exact) query.ahead = 0;
  CHECK(same_bytes(run_attention<T>(c, queries).out, run_attention<T>(c, exact).out));
  return num_empty;
}

TEST_CASE("items made for a longer context are clipped: empty pieces, too, and windows") {
  AttentionCase c = make_case(4, 2, 64);
  c.num_ctas = 12;
  const SequenceData data = make_sequence<__nv_bfloat16>(c, 700, 6);
  int32_t num_empty = check_clipped<__nv_bfloat16>(c, {{&data, 1, 1, 9}});
  // A piece has two tiles of 64 positions at least: with many positions ahead one may begin behind the context.
  for (const int32_t context : {250, 256, 257, 383, 384, 640})
    for (const int32_t num_ctas : {12, 40}) {
      c.num_ctas = num_ctas;
      num_empty += check_clipped<__nv_bfloat16>(c, {{&data, context, 1, 1}, {&data, context, 4, 9}});
      num_empty += check_clipped<__nv_bfloat16>(c, {{&data, context, 3, 200}});
    }
  CHECK(num_empty > 0);
  c.shape.window = 50;
  num_empty = check_clipped<__nv_bfloat16>(c, {{&data, 256, 1, 9}, {&data, 384, 30, 5}});
  num_empty += check_clipped<__nv_bfloat16>(c, {{&data, 384, 1, 200}});
  CHECK(num_empty > 0);
  AttentionCase scalar = make_case(4, 2, 24);
  const SequenceData floats = make_sequence<float>(scalar, 300, 7);
  num_empty = 0;
  for (const int32_t num_ctas : {12, 40})
    for (const int32_t context : {90, 96, 97, 256}) {
      scalar.num_ctas = num_ctas;
      num_empty += check_clipped<float>(scalar, {{&floats, context, 2, 100}});
    }
  CHECK(num_empty > 0);
}

TEST_CASE("Hopper's tall units are clipped, too") {
  AttentionCase c = make_case(8, 1, 64);
  c.shape.hopper = true;
  const SequenceData data = make_sequence<__nv_bfloat16>(c, 1100, 8);
  int32_t num_empty = 0;
  for (const int32_t num_ctas : {6, 12, 24, 48})
    for (const int32_t context : {256, 383, 384, 512, 515, 1024}) {
      c.num_ctas = num_ctas;
      num_empty += check_clipped<__nv_bfloat16>(c, {{&data, context, 12, context % 2 == 0 ? 300 : 9}});
    }
  CHECK(num_empty > 0);
  c.shape.window = 90;
  check_clipped<__nv_bfloat16>(c, {{&data, 384, 12, 9}, {&data, 600, 40, 3}});
}

}  // namespace
}  // namespace llmb::cuda
