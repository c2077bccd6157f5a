// Attention over int8 and e4m3 keys and values, beside fp64 over the numbers that they stand for.
#include <doctest/doctest.h>

#include "tests/kernels/cuda/paged_attention_case.h"

namespace llmb::cuda {
namespace {

using bf16 = __nv_bfloat16;
using test::same_bytes;

constexpr KvCode kCodes[] = {KvCode::kInt8, KvCode::kFp8};

AttentionCase scaled_case(KvCode code, int32_t num_heads, int32_t num_kv_heads, int32_t head_dim) {
  AttentionCase c = make_case(num_heads, num_kv_heads, head_dim);
  c.shape.kv_code = code;
  return c;
}

TEST_CASE("as close to fp64 as a naive computation: head sizes, with tensor cores and without") {
  for (const KvCode code : kCodes) {
    for (const int32_t head_dim : {64, 80, 96, 128, 256, 8, 40, 104, 136, 2, 33, 264}) {
      const AttentionCase c = scaled_case(code, 4, 2, head_dim);
      const SequenceData data = make_sequence<bf16>(c, 150, 1);
      const Query queries[] = {{&data, 1, 1}, {&data, 150, 1}, {&data, 65, 3}, {&data, 70, 35}, {&data, 140, 68}};
      check_against_reference<bf16>(c, queries);
      check_against_reference<__half>(c, std::span(queries).first(4));
      if (head_dim <= 80) check_against_reference<float>(c, std::span(queries).first(4));
    }
  }
}

TEST_CASE("context lengths around every border of strips, tiles and blocks, as decode and as a chunk") {
  for (const KvCode code : kCodes) {
    AttentionCase c = scaled_case(code, 4, 1, 64);
    const SequenceData data = make_sequence<bf16>(c, 300, 2);
    std::vector<Query> decode, chunk;
    for (const int32_t border : {8, 16, 32, 64, 128, 256}) {
      for (const int32_t n : {border - 1, border, border + 1}) {
        decode.push_back({&data, n, 1});
        chunk.push_back({&data, n, std::min(n, 17)});
      }
    }
    for (const int32_t block_size : {8, 32, 24}) {
      c.shape.block_size = block_size;
      check_against_reference<bf16>(c, decode);
      check_against_reference<bf16>(c, chunk);
    }
  }
}

TEST_CASE("groups, windows, soft cap, ALiBi and sinks") {
  for (const KvCode code : kCodes) {
    for (const auto& [heads, kv_heads] : {std::pair{3, 3}, {14, 2}, {32, 2}, {71, 1}}) {
      const AttentionCase c = scaled_case(code, heads, kv_heads, 64);
      const SequenceData data = make_sequence<bf16>(c, 90, 4);
      const Query queries[] = {{&data, 90, 1}, {&data, 80, 11}, {&data, 20, 20}};
      check_against_reference<bf16>(c, queries);
    }
    AttentionCase c = scaled_case(code, 4, 2, 128);
    const SequenceData data = make_sequence<bf16>(c, 200, 5);
    const Query queries[] = {{&data, 200, 1}, {&data, 160, 70}};
    for (const int32_t window : {1, 40, 64, 100}) {
      c.shape.window = window;
      check_against_reference<bf16>(c, queries);
    }
    c.has_sinks = c.has_alibi = true;
    check_against_reference<bf16>(c, queries);
    c.softcap = 4;
    check_against_reference<bf16>(c, queries);
  }
}

TEST_CASE("units in pieces") {
  for (const KvCode code : kCodes) {
    for (const int32_t num_ctas : {2, 40}) {
      AttentionCase c = scaled_case(code, 4, 2, 64);
      c.num_ctas = num_ctas;
      const SequenceData data = make_sequence<bf16>(c, 900, 6);
      const Query queries[] = {{&data, 900, 1}, {&data, 500, 40}};
      CHECK((check_against_reference<bf16>(c, queries) > 0) == (num_ctas == 40));
    }
  }
}

TEST_CASE("any order of threads and blocks gives the same") {
  for (const KvCode code : kCodes) {
    const AttentionCase c = scaled_case(code, 4, 2, 64);
    const SequenceData data = make_sequence<bf16>(c, 150, 7);
    const Query queries[] = {{&data, 150, 1}, {&data, 70, 35}};
    const std::vector<float> expected = run_attention<bf16>(c, queries).out;
    test::for_each_order(4, [&](uint64_t) { CHECK(same_bytes(run_attention<bf16>(c, queries).out, expected)); });
  }
}

TEST_CASE("on Hopper, too, tiles are those of the kernel without tensor copies") {
  for (const KvCode code : kCodes) {
    AttentionShape shape = scaled_case(code, 4, 2, 128).shape;
    shape.hopper = true;
    CHECK(!attention_tiling(shape).wgmma);
  }
}

}  // namespace
}  // namespace llmb::cuda
