// Attention within chunks of positions, as Llama 4 has it: a token sees those of its own chunk, up to its own.
#include <doctest/doctest.h>

#include <vector>

#include "tests/kernels/cuda/paged_attention_case.h"

namespace llmb::cuda {
namespace {

using bf16 = __nv_bfloat16;

AttentionCase make_chunked_case(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t chunk) {
  AttentionCase c = make_case(num_heads, num_kv_heads, head_dim);
  c.shape.chunk = chunk;
  return c;
}

TEST_CASE("chunks around the borders of tiles, with decode rows and prompts on both sides of a border") {
  for (const int32_t chunk : {1, 7, 11, 32, 63, 64, 65, 128, 200}) {
    CAPTURE(chunk);
    AttentionCase c = make_chunked_case(4, 2, 64, chunk);
    const SequenceData data = make_sequence<bf16>(c, 300, 1);
    std::vector<Query> queries = {{&data, 300, 130}, {&data, 150, 150}, {&data, 2, 2}};
    for (const int32_t n : {chunk, chunk + 1, 2 * chunk, 2 * chunk + 1})
      if (n <= 300) queries.push_back({&data, n, 1});
    for (const bool deterministic : {false, true}) {
      c.shape.deterministic = deterministic;
      check_against_reference<bf16>(c, queries);
    }
    check_against_reference<float>(c, std::span(queries).subspan(1));
  }
}

TEST_CASE("head sizes, many heads for a KV head, int8 keys and values, units in pieces") {
  for (const int32_t head_dim : {128, 256, 40, 33, 264}) {
    const AttentionCase c = make_chunked_case(4, 2, head_dim, 70);
    const SequenceData data = make_sequence<bf16>(c, 150, 2);
    const Query queries[] = {{&data, 150, 1}, {&data, 71, 1}, {&data, 145, 90}};
    check_against_reference<bf16>(c, queries);
  }
  AttentionCase many = make_chunked_case(40, 1, 64, 13);
  const SequenceData data = make_sequence<bf16>(many, 60, 3);
  const Query queries[] = {{&data, 60, 31}, {&data, 14, 1}};
  check_against_reference<bf16>(many, queries);
  AttentionCase int8 = make_chunked_case(4, 2, 64, 50);
  int8.shape.kv_code = KvCode::kInt8;
  const SequenceData rounded = make_sequence<bf16>(int8, 130, 4);
  const Query of_int8[] = {{&rounded, 130, 60}, {&rounded, 99, 1}};
  check_against_reference<bf16>(int8, of_int8);
  AttentionCase cut = make_chunked_case(2, 1, 64, 1000);
  cut.num_ctas = 16;
  const SequenceData longer = make_sequence<bf16>(cut, 1990, 5);
  const Query of_pieces[] = {{&longer, 1990, 1}, {&longer, 1100, 130}, {&longer, 5, 1}};
  CHECK(check_against_reference<bf16>(cut, of_pieces) > 0);
}

TEST_CASE("rows of a layer that has no key of the first position: one for each sequence, over a list of other layers'") {
  for (const int32_t head_dim : {64, 128, 256, 33, 576, 512}) {
    CAPTURE(head_dim);
    AttentionCase c = make_chunked_case(6, head_dim == 576 ? 1 : 2, head_dim, 1 << 30);
    if (head_dim == 576) c.shape.latent_dim = 512;
    c.first_position = 1;
    const SequenceData data = make_sequence<bf16>(c, 700, 8);
    std::vector<Query> queries;
    for (const int32_t n : {2, 3, 16, 17, 32, 33, 64, 65, 700}) queries.push_back({&data, n, 1});
    for (const bool hopper : {false, true}) {
      c.shape.hopper = hopper;
      for (const int32_t num_ctas : {3, 12}) {
        c.num_ctas = num_ctas;
        check_against_reference<bf16>(c, queries);
      }
    }
    check_against_reference<float>(c, std::span(queries).first(6));
  }
}

TEST_CASE("deterministic: a row's bits do not depend on how its sequence was cut") {
  for (const int32_t head_dim : {64, 33}) {
    AttentionCase c = make_chunked_case(4, 2, head_dim, 45);
    c.shape.deterministic = true;
    const SequenceData data = make_sequence<bf16>(c, 140, 6);
    const Query whole[] = {{&data, 140, 140}}, last[] = {{&data, 140, 1}}, chunk[] = {{&data, 140, 60}};
    const std::vector<float> expected = run_attention<bf16>(c, whole).out;
    for (const auto& queries : {std::span<const Query>(last), std::span<const Query>(chunk)}) {
      const std::vector<float> out = run_attention<bf16>(c, queries).out;
      CHECK(
          test::same_bytes(out, std::vector<float>(expected.end() - static_cast<int64_t>(out.size()), expected.end())));
    }
  }
}

}  // namespace
}  // namespace llmb::cuda
