// Attention over positions behind a token's own, as in encoders: all of a sequence, or a window on both sides.
#include <doctest/doctest.h>

#include <vector>

#include "kernels/cuda/tuning.h"
#include "tests/kernels/cuda/paged_attention_case.h"

namespace llmb::cuda {
namespace {

using bf16 = __nv_bfloat16;

AttentionCase make_later_case(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t block_size = 16) {
  AttentionCase c = make_case(num_heads, num_kv_heads, head_dim, block_size);
  c.shape.later = AttentionShape::kAllLater;
  return c;
}

// Each token sees so many on either side; the list is that of layers which see all.
void set_reach(int32_t reach, AttentionCase* c) {
  c->schedule_later = AttentionShape::kAllLater, c->schedule_window = 0;
  c->shape.later = reach, c->shape.window = 2 * reach + 1;
}

std::vector<Query> whole_sequences(const SequenceData& data, const std::vector<int32_t>& lengths) {
  std::vector<Query> queries;
  for (const int32_t n : lengths) queries.push_back({&data, n, n});
  return queries;
}

TEST_CASE("tokens that see their whole sequence: head sizes, with tensor cores and without") {
  for (const int32_t head_dim : {64, 80, 96, 128, 256, 8, 32, 40, 2, 33, 264}) {
    const AttentionCase c = make_later_case(4, 2, head_dim);
    const SequenceData data = make_sequence<bf16>(c, 140, 1);
    const std::vector<Query> queries = whole_sequences(data, {1, 5, 17, 35, 70, 140});
    check_against_reference<bf16>(c, queries);
    check_against_reference<__half>(c, std::span(queries).first(4));
    if (head_dim <= 80) check_against_reference<float>(c, std::span(queries).first(4));
  }
}

TEST_CASE("lengths around every border of strips, tiles and blocks") {
  for (const bool deterministic : {false, true})
    for (const int32_t block_size : {8, 24, 32}) {
      AttentionCase c = make_later_case(2, 2, 64, block_size);
      c.shape.deterministic = deterministic;
      const SequenceData data = make_sequence<bf16>(c, 260, 2);
      std::vector<int32_t> lengths;
      for (const int32_t border : {8, 16, 32, 64, 128, 256})
        for (const int32_t n : {border - 1, border, border + 1}) lengths.push_back(n);
      check_against_reference<bf16>(c, whole_sequences(data, lengths));
    }
}

TEST_CASE("windows on both sides, shorter than a tile and longer, with lists that know of them and such that do not") {
  for (const int32_t reach : {1, 7, 8, 15, 16, 31, 32, 63, 64, 65, 130}) {
    CAPTURE(reach);
    AttentionCase c = make_later_case(4, 2, 64);
    const SequenceData data = make_sequence<bf16>(c, 300, 3);
    const std::vector<Query> queries = whole_sequences(data, {1, 2, 9, 33, 64, 65, 129, 200, 300});
    for (const bool deterministic : {false, true}) {
      c.shape.deterministic = deterministic;
      set_reach(reach, &c);
      check_against_reference<bf16>(c, queries);
      c.schedule_later = c.schedule_window = -1;
      check_against_reference<bf16>(c, queries);
    }
    set_reach(reach, &c);
    check_against_reference<float>(c, std::span(queries).first(6));
  }
}

TEST_CASE("units in pieces: few and many blocks of the grid") {
  AttentionCase c = make_later_case(2, 1, 64);
  const SequenceData data = make_sequence<bf16>(c, 900, 4);
  const std::vector<Query> queries = whole_sequences(data, {900, 3, 64});
  int32_t num_cut = 0;
  for (const int32_t num_ctas : {1, 16, 61}) {
    c.num_ctas = num_ctas;
    for (const int32_t reach : {0, 40}) {
      c.shape.later = AttentionShape::kAllLater, c.shape.window = 0;
      c.schedule_later = c.schedule_window = -1;
      if (reach > 0) set_reach(reach, &c);
      num_cut += check_against_reference<bf16>(c, queries) > 0;
    }
  }
  if (tuning::kBothWaysLeastGain <= 60) CHECK(num_cut > 0);
  // Where only much gain is worth a cut.
  c.shape.later = AttentionShape::kAllLater, c.shape.window = 0;
  const SequenceData longer = make_sequence<bf16>(c, 12000, 5);
  CHECK(check_against_reference<bf16>(c, std::vector<Query>{{&longer, 12000, 3}}) > 0);
}

TEST_CASE("caps, sinks, and int8 keys and values") {
  AttentionCase c = make_later_case(4, 2, 64);
  c.softcap = 5;
  c.has_sinks = true;
  const SequenceData data = make_sequence<bf16>(c, 80, 5);
  check_against_reference<bf16>(c, whole_sequences(data, {80, 7, 33}));
  for (const int32_t reach : {0, 20}) {
    AttentionCase int8 = make_later_case(4, 2, 64);
    int8.shape.kv_code = KvCode::kInt8;
    if (reach > 0) set_reach(reach, &int8);
    const SequenceData rounded = make_sequence<bf16>(int8, 150, 6);
    check_against_reference<bf16>(int8, whole_sequences(rounded, {1, 15, 70, 150}));
  }
}

TEST_CASE("deterministic: a row's bits are its sequence's, whatever else the step has") {
  for (const int32_t head_dim : {64, 256, 33})
    for (const int32_t reach : {0, 20}) {
      AttentionCase c = make_later_case(4, 2, head_dim);
      c.shape.deterministic = true;
      if (reach > 0) set_reach(reach, &c);
      const SequenceData data = make_sequence<bf16>(c, 200, 7), other = make_sequence<bf16>(c, 150, 8);
      const std::vector<Query> alone = whole_sequences(data, {130});
      const std::vector<float> expected = run_attention<bf16>(c, alone).out;
      std::vector<Query> batch = whole_sequences(other, {150, 1, 77});
      batch.insert(batch.begin() + 1, alone[0]);
      c.num_ctas = 23;
      const std::vector<float> out = run_attention<bf16>(c, batch, 11).out;
      const auto begin = out.begin() + 150 * c.out_size();
      CHECK(test::same_bytes(std::vector<float>(begin, begin + 130 * c.out_size()), expected));
    }
}

}  // namespace
}  // namespace llmb::cuda
