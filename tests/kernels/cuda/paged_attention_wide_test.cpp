// Attention of more than 256 channels, over latents, and over blocks that lie apart.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "tests/kernels/cuda/paged_attention_case.h"

namespace llmb::cuda {
namespace {

using bf16 = __nv_bfloat16;
using test::same_bytes;

// Keys of rope_dim channels and then a latent.
AttentionCase latent_case(int32_t num_heads, int32_t latent_dim, int32_t rope_dim = 64, int32_t block_size = 16) {
  AttentionCase c = make_case(num_heads, 1, rope_dim + latent_dim, block_size);
  c.shape.latent_dim = latent_dim;
  return c;
}

bool is_wide(AttentionCase c) {
  c.shape.dtype = DType::kBF16;
  return attention_tiling(c.shape).wide;
}

// Whole prefill, chunks of it, and single steps of one sequence, alone and among others, on other grids.
void check_invariance(AttentionCase c, int32_t length) {
  c.shape.deterministic = true;
  c.num_ctas = 3;
  const SequenceData data = make_sequence<bf16>(c, length, 3), other = make_sequence<bf16>(c, 120, 4);
  const Query prefill{&data, length, length};
  const std::vector<float> whole = run_attention<bf16>(c, {&prefill, 1}).out;
  const auto rows = [&](const std::vector<float>& from, int32_t first, int32_t n) {
    return std::span(from).subspan(static_cast<size_t>(first * c.out_size()), static_cast<size_t>(n * c.out_size()));
  };
  for (const int32_t chunk : {1, 7, 33}) {
    CAPTURE(chunk);
    std::vector<Query> parts;
    std::vector<int32_t> begins;
    for (int32_t begin = 0; begin < length; begin += chunk == 1 ? 13 : chunk) {
      const int32_t end = std::min(length, begin + chunk);
      parts.push_back({&data, end, end - begin});
      begins.push_back(begin);
      if (parts.size() % 3 == 1) parts.push_back({&other, 120 - begin % 90, 1 + begin % 9}), begins.push_back(-1);
    }
    c.num_ctas = chunk == 7 ? 20 : 3;
    const AttentionRun together = run_attention<bf16>(c, parts, 9);
    CHECK(together.max_cut_rows == 0);
    int32_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const int32_t n = parts[i].query_len;
      if (begins[i] >= 0) CHECK(same_bytes(rows(whole, begins[i], n), rows(together.out, row, n)));
      row += n;
    }
  }
}

}  // namespace

TEST_CASE("as close to fp64 as a naive computation: more than 256 channels, latents, tensor cores and without") {
  for (const AttentionCase& c : {make_case(4, 2, 512), make_case(8, 1, 320), latent_case(4, 512), latent_case(18, 512),
                                 latent_case(5, 40)}) {
    CHECK(is_wide(c));
    const SequenceData data = make_sequence<bf16>(c, 100, 1);
    const Query queries[] = {{&data, 1, 1}, {&data, 100, 1}, {&data, 65, 3}, {&data, 70, 19}};
    check_against_reference<bf16>(c, queries);
    check_against_reference<__half>(c, std::span(queries).first(3));
    check_against_reference<float>(c, std::span(queries).subspan(1, 2));
  }
  for (const AttentionCase& c : {latent_case(4, 18, 6), latent_case(4, 64, 32), latent_case(3, 512, 64, 5)}) {
    CHECK_FALSE(is_wide(c));
    const SequenceData data = make_sequence<bf16>(c, 70, 1);
    const Query queries[] = {{&data, 1, 1}, {&data, 70, 1}, {&data, 35, 7}};
    check_against_reference<bf16>(c, queries);
    check_against_reference<float>(c, queries);
  }
}

TEST_CASE("context lengths around every border of tiles and blocks") {
  for (const AttentionCase& c : {latent_case(2, 512), latent_case(2, 512, 64, 8), make_case(2, 1, 512)}) {
    const SequenceData data = make_sequence<bf16>(c, 130, 2);
    std::vector<Query> queries;
    for (const int32_t n : {7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129})
      queries.push_back({&data, n, n % 3 == 0 ? std::min(n, 11) : 1});
    check_against_reference<bf16>(c, queries);
  }
}

TEST_CASE("units in pieces, on few and many blocks of the grid") {
  for (AttentionCase c : {latent_case(2, 512), latent_case(20, 512), make_case(2, 1, 512)}) {
    const SequenceData data = make_sequence<bf16>(c, 700, 6);
    const Query queries[] = {{&data, 700, 1}, {&data, 3, 1}, {&data, 300, 2}};
    for (const int32_t num_ctas : {1, 9}) {
      c.num_ctas = num_ctas;
      const int32_t rows = check_against_reference<bf16>(c, queries);
      CHECK((rows > 0) == (num_ctas > 1));
    }
  }
}

TEST_CASE("windows, soft cap, ALiBi, sinks and a clipped context") {
  for (AttentionCase c : {latent_case(4, 512), make_case(4, 2, 512)}) {
    const SequenceData data = make_sequence<bf16>(c, 100, 7);
    const Query queries[] = {{&data, 100, 1}, {&data, 90, 20}, {&data, 40, 3, 5}};
    for (const int32_t window : {1, 20, 32, 70}) {
      c.shape.window = window;
      check_against_reference<bf16>(c, queries);
    }
    c.shape.window = 0;
    c.softcap = 4;
    c.has_alibi = c.has_sinks = true;
    check_against_reference<bf16>(c, queries);
  }
}

TEST_CASE("chunks around the borders of tiles, and positions behind a token's own") {
  for (AttentionCase c : {latent_case(4, 512), latent_case(20, 512), make_case(4, 2, 512)}) {
    const SequenceData data = make_sequence<bf16>(c, 140, 10);
    const Query queries[] = {{&data, 140, 1}, {&data, 96, 20}, {&data, 33, 33}, {&data, 1, 1}};
    for (const int32_t chunk : {1, 31, 33, 1 << 30}) {
      CAPTURE(chunk);
      c.shape.chunk = chunk;
      CHECK(is_wide(c));
      check_against_reference<bf16>(c, queries);
    }
    c.shape.chunk = 0;
    c.shape.later = AttentionShape::kAllLater;
    CHECK(is_wide(c));
    const Query whole[] = {{&data, 140, 140}, {&data, 33, 33}, {&data, 1, 1}};
    check_against_reference<bf16>(c, whole);
  }
}

TEST_CASE("blocks that lie apart: whole rows of the pool with tensor cores, any distance without") {
  for (const auto& [head_dim, extra] : {std::pair{64, 64 * 40}, {128, 128 * 3}, {512, 512}, {12, 5}, {64, 24}}) {
    CAPTURE(head_dim);
    AttentionCase c = make_case(4, 2, head_dim);
    c.shape.block_stride = c.shape.dense_stride() + extra;
    const SequenceData data = make_sequence<bf16>(c, 70, 8);
    const Query queries[] = {{&data, 1, 1}, {&data, 70, 1}, {&data, 50, 37}};
    check_against_reference<bf16>(c, queries);
    check_against_reference<float>(c, std::span(queries).first(2));
  }
}

TEST_CASE("deterministic: whole prefill, chunks, single steps and any batch give identical bits") {
  check_invariance(latent_case(5, 512), 90);
  check_invariance(make_case(4, 2, 512, 8), 70);
  AttentionCase chunked = latent_case(5, 512);
  chunked.shape.chunk = 45;
  check_invariance(chunked, 90);
  AttentionCase c = latent_case(20, 512);
  c.shape.window = 40;
  c.has_sinks = true;
  check_invariance(c, 60);
}

}  // namespace llmb::cuda
