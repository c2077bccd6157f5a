#include <doctest/doctest.h>

#include "tests/kernels/cuda/paged_attention_case.h"

namespace llmb::cuda {
namespace {

using test::same_bytes;

// Whole prefill, chunks of it, and single steps of one sequence, alone and among others, on other grids.
template <class T>
void check_invariance(AttentionCase c, int32_t length, int32_t decode_stride) {
  CAPTURE(c.shape.num_heads);
  CAPTURE(c.shape.head_dim);
  CAPTURE(c.shape.window);
  c.shape.deterministic = true;
  c.num_ctas = 3;
  const SequenceData data = make_sequence<T>(c, length, 3), other = make_sequence<T>(c, 500, 4);
  const Query prefill{&data, length, length};
  check_against_reference<T>(c, {&prefill, 1});
  const std::vector<float> whole = run_attention<T>(c, {&prefill, 1}).out;
  const auto rows = [&](const std::vector<float>& from, int32_t first, int32_t n) {
    return std::span(from).subspan(static_cast<size_t>(first * c.q_size()), static_cast<size_t>(n * c.q_size()));
  };
  for (const int32_t chunk : {1, 7, 16, 33, 64, 100}) {
    CAPTURE(chunk);
    std::vector<Query> parts;
    std::vector<int32_t> begins;
    for (int32_t begin = 0; begin < length; begin += chunk == 1 ? decode_stride : chunk) {
      const int32_t end = std::min(length, begin + chunk);
      // Between others of very different lengths, all parts of the sequence in one step: each is in blocks of its own.
      parts.push_back({&data, end, end - begin});
      begins.push_back(begin);
      if (parts.size() % 3 == 1) parts.push_back({&other, 500 - 7 * begin % 400, 1 + begin % 40}), begins.push_back(-1);
    }
    c.num_ctas = chunk % 2 == 0 ? 40 : 3;
    const AttentionRun together = run_attention<T>(c, parts, 9);
    CHECK(together.max_cut_rows == 0);
    int32_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      CAPTURE(begins[i]);
      const int32_t n = parts[i].query_len;
      if (begins[i] >= 0) CHECK(same_bytes(rows(whole, begins[i], n), rows(together.out, row, n)));
      row += n;
    }
    const std::vector<float> alone = run_attention<T>(c, {&parts[0], 1}, 10).out;
    CHECK(same_bytes(rows(whole, 0, parts[0].query_len), alone));
  }
}

TEST_CASE("deterministic: whole prefill, chunks, single steps and any batch give identical bits") {
  check_invariance<__nv_bfloat16>(make_case(4, 2, 64), 200, 9);
  check_invariance<__half>(make_case(7, 1, 128, 32), 150, 13);
  check_invariance<__nv_bfloat16>(make_case(2, 1, 256, 8), 140, 17);
  check_invariance<__nv_bfloat16>(make_case(3, 1, 80), 140, 11);
}

TEST_CASE("deterministic: also with windows, soft cap, ALiBi and sinks") {
  AttentionCase c = make_case(4, 1, 64);
  c.has_sinks = true;
  for (const int32_t window : {1, 40, 64, 100}) {
    c.shape.window = window;
    check_invariance<__nv_bfloat16>(c, 170, 11);
  }
  c.softcap = 4;
  c.has_alibi = true;
  check_invariance<__nv_bfloat16>(c, 150, 11);
}

TEST_CASE("deterministic: also over int8 and e4m3 keys and values") {
  for (AttentionCase c : {make_case(4, 2, 64), make_case(7, 1, 128, 32), make_case(3, 1, 80)}) {
    for (const KvCode code : {KvCode::kInt8, KvCode::kFp8}) {
      c.shape.kv_code = code;
      check_invariance<__nv_bfloat16>(c, 140, 13);
    }
  }
}

TEST_CASE("deterministic: also without tensor cores") {
  check_invariance<float>(make_case(4, 2, 24), 110, 7);
  AttentionCase c = make_case(2, 1, 33, 5);
  c.shape.window = 20;
  check_invariance<float>(c, 90, 7);
  check_invariance<__nv_bfloat16>(c, 90, 7);
}

TEST_CASE("not deterministic: small batches do cut, which is what determinism gives up") {
  AttentionCase c = make_case(4, 2, 64);
  c.num_ctas = 40;
  const SequenceData data = make_sequence<__nv_bfloat16>(c, 900, 5);
  const Query query{&data, 900, 1};
  CHECK(run_attention<__nv_bfloat16>(c, {&query, 1}).max_cut_rows > 0);
  c.shape.deterministic = true;
  CHECK(run_attention<__nv_bfloat16>(c, {&query, 1}).max_cut_rows == 0);
}

}  // namespace
}  // namespace llmb::cuda
