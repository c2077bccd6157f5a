#include <doctest/doctest.h>

#include "base/check.h"
#include "tests/kernels/cuda/paged_attention_case.h"
#include "tests/support/skip.h"

namespace llmb::cuda {
namespace {

using bf16 = __nv_bfloat16;
using test::same_bytes;

// Whether there is a device for these tests; a message where there is none.
bool have_hopper() {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "cudaDeviceGetAttribute");
  if (major == 9 && minor == 0) return true;
  test::skip("no device of compute capability 9.0");
  return false;
}

AttentionCase make_hopper_case(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t block_size = 16) {
  AttentionCase c = make_case(num_heads, num_kv_heads, head_dim, block_size);
  c.shape.hopper = true;
  c.num_ctas = 6;
  CHECK(attention_tiling(c.shape).wgmma == (head_dim == 64 || head_dim == 128));
  return c;
}

TEST_CASE("Hopper: prefill is as close to fp64 as a naive computation, head sizes and types") {
  if (!have_hopper()) return;
  for (const int32_t head_dim : {64, 128}) {
    const AttentionCase c = make_hopper_case(4, 2, head_dim);
    const SequenceData data = make_sequence<bf16>(c, 300, 1);
    const Query queries[] = {{&data, 300, 70}, {&data, 129, 129}, {&data, 90, 33}, {&data, 200, 1}, {&data, 5, 5}};
    check_against_reference<bf16>(c, queries);
    check_against_reference<__half>(c, std::span(queries).first(2));
  }
}

TEST_CASE("Hopper: rows and context lengths around the borders of tiles; any group") {
  if (!have_hopper()) return;
  for (const int32_t group : {1, 3, 8}) {
    const AttentionCase c = make_hopper_case(group, 1, 64);
    const SequenceData data = make_sequence<bf16>(c, 400, 2);
    std::vector<Query> queries;
    for (const int32_t rows : {65, 127, 128, 129, 192, 193})
      for (const int32_t before : {0, 1, 127, 128, 129}) {
        const int32_t tokens = std::max(9, rows / group);
        if (rows % 2 == before % 2) queries.push_back({&data, tokens + before, tokens});
      }
    check_against_reference<bf16>(c, queries);
  }
}

TEST_CASE("Hopper: block sizes, each with boxes of its own height") {
  if (!have_hopper()) return;
  for (const int32_t block_size : {8, 16, 24, 32, 48, 64, 128, 256}) {
    const AttentionCase c = make_hopper_case(2, 1, 128, block_size);
    const SequenceData data = make_sequence<bf16>(c, 300, 3);
    const Query queries[] = {{&data, 300, 40}, {&data, 140, 80}};
    check_against_reference<bf16>(c, queries);
  }
}

TEST_CASE("Hopper: windows, soft cap, ALiBi and sinks; units in pieces") {
  if (!have_hopper()) return;
  AttentionCase c = make_hopper_case(4, 1, 64);
  const SequenceData data = make_sequence<bf16>(c, 900, 4);
  const Query queries[] = {{&data, 900, 40}, {&data, 150, 150}, {&data, 260, 1}};
  for (const int32_t window : {0, 1, 17, 128, 130, 300}) {
    for (const int32_t schedule_window : {-1, 0}) {
      c.shape.window = window;
      c.schedule_window = schedule_window;
      c.num_ctas = window % 2 == 0 ? 27 : 6;
      check_against_reference<bf16>(c, queries);
    }
  }
  c.shape.window = 200;
  c.softcap = 5;
  c.has_alibi = c.has_sinks = true;
  check_against_reference<bf16>(c, queries);
  c.shape.window = 0;
  c.num_ctas = 45;
  const Query longer[] = {{&data, 900, 100}};
  CHECK(check_against_reference<bf16>(c, longer) == 128);
}

TEST_CASE("Hopper: the order of threads, copies and products changes no bit") {
  if (!have_hopper()) return;
  AttentionCase c = make_hopper_case(4, 2, 64);
  const SequenceData data = make_sequence<bf16>(c, 700, 5);
  const Query queries[] = {{&data, 700, 70}, {&data, 130, 130}, {&data, 300, 1}, {&data, 257, 40}};
  std::vector<float> first;
  for (const int32_t num_ctas : {3, 30}) {
    c.num_ctas = num_ctas;
    first.clear();
    test::for_each_order(6, [&](uint64_t seed) {
      const AttentionRun run = run_attention<bf16>(c, queries, static_cast<uint32_t>(seed));
      if (first.empty()) first = run.out;
      CHECK(same_bytes(first, run.out));
    });
  }
}

TEST_CASE("Hopper: deterministic runs and other head sizes go the other way") {
  if (!have_hopper()) return;
  AttentionCase c = make_hopper_case(4, 2, 64);
  c.shape.deterministic = true;
  CHECK_FALSE(attention_tiling(c.shape).wgmma);
  const SequenceData data = make_sequence<bf16>(c, 200, 6);
  const Query query{&data, 200, 100};
  AttentionCase plain = c;
  plain.shape.hopper = false;
  CHECK(same_bytes(run_attention<bf16>(c, {&query, 1}).out, run_attention<bf16>(plain, {&query, 1}).out));
  AttentionCase odd = make_hopper_case(4, 2, 96);
  CHECK_FALSE(attention_tiling(odd.shape).wgmma);
  c.shape.deterministic = false;
  c.num_ctas = 5;
  CHECK_THROWS_AS(run_attention<bf16>(c, {&query, 1}), CheckFailure);
}

}  // namespace
}  // namespace llmb::cuda
