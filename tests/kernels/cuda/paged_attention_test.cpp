#include "kernels/cuda/paged_attention.h"

#include <doctest/doctest.h>

#include "base/check.h"
#include "tests/kernels/cuda/paged_attention_case.h"

namespace llmb::cuda {
namespace {

using bf16 = __nv_bfloat16;
using test::for_each_order;
using test::same_bytes;

TEST_CASE("attention is as close to fp64 as a naive computation: head sizes, with tensor cores and without") {
  for (const int32_t head_dim : {64, 80, 96, 128, 256, 8, 40, 72, 104, 136, 248, 2, 33, 264}) {
    const AttentionCase c = make_case(4, 2, head_dim);
    const SequenceData data = make_sequence<bf16>(c, 150, 1);
    const Query queries[] = {{&data, 1, 1}, {&data, 150, 1}, {&data, 65, 3}, {&data, 70, 35}, {&data, 140, 68}};
    check_against_reference<bf16>(c, queries);
    check_against_reference<__half>(c, std::span(queries).first(4));
    if (head_dim <= 80) check_against_reference<float>(c, std::span(queries).first(4));
  }
}

TEST_CASE("context lengths around every border of strips, tiles and blocks, as decode and as a chunk") {
  AttentionCase c = make_case(4, 1, 64);
  const SequenceData data = make_sequence<bf16>(c, 520, 2);
  std::vector<Query> decode, chunk;
  for (const int32_t border : {8, 16, 32, 64, 128, 192, 256, 512}) {
    for (const int32_t n : {border - 1, border, border + 1}) {
      decode.push_back({&data, n, 1});
      chunk.push_back({&data, n, std::min(n, 17)});
    }
  }
  for (const int32_t block_size : {8, 32}) {
    c.shape.block_size = block_size;
    check_against_reference<bf16>(c, decode);
    check_against_reference<bf16>(c, chunk);
  }
  const AttentionCase wide = make_case(2, 1, 256);
  const SequenceData wide_data = make_sequence<bf16>(wide, 130, 2);
  std::vector<Query> queries;
  for (const int32_t n : {15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129})
    queries.push_back({&wide_data, n, n % 3 == 0 ? std::min(n, 33) : 1});
  check_against_reference<bf16>(wide, queries);
}

TEST_CASE("row counts around every border of the kernels' row tiles, at the end of a context and as all of it") {
  for (const int32_t group : {1, 4}) {
    const AttentionCase c = make_case(group, 1, 64);
    const SequenceData data = make_sequence<bf16>(c, 300, 3);
    for (const int32_t rows : {15, 16, 17, 63, 64, 65, 127, 128, 129, 256, 260}) {
      CAPTURE(rows);
      const int32_t tokens = std::max(1, rows / group);
      const Query queries[] = {{&data, tokens, tokens}, {&data, std::min(300, tokens + 37), tokens}};
      check_against_reference<bf16>(c, queries);
    }
  }
}

TEST_CASE("group sizes 1 to 16 and more rows for a token than a tile has") {
  for (const auto& [heads, kv_heads] : {std::pair{3, 3}, {4, 2}, {8, 2}, {14, 2}, {7, 1}, {16, 2}, {32, 2}, {71, 1}}) {
    const AttentionCase c = make_case(heads, kv_heads, 64);
    const SequenceData data = make_sequence<bf16>(c, 90, 4);
    const Query queries[] = {{&data, 90, 1}, {&data, 33, 1}, {&data, 80, 11}, {&data, 20, 20}, {&data, 70, 2}};
    check_against_reference<bf16>(c, queries);
  }
  for (const int32_t group : {3, 5, 6, 9, 10, 11, 12, 13, 14, 15}) {
    const AttentionCase c = make_case(group, 1, 64);
    const SequenceData data = make_sequence<bf16>(c, 40, 4);
    const Query queries[] = {{&data, 40, 1}, {&data, 33, 3}, {&data, 17, 17}};
    check_against_reference<bf16>(c, queries);
  }
  const AttentionCase c = make_case(260, 1, 8);
  const SequenceData data = make_sequence<bf16>(c, 40, 4);
  const Query queries[] = {{&data, 40, 1}, {&data, 7, 7}};
  check_against_reference<bf16>(c, queries);
}

TEST_CASE("block sizes: powers of two, other multiples of 8, and such that need the scalar kernel") {
  for (const int32_t block_size : {8, 16, 32, 24, 40, 256, 1, 5, 12}) {
    const AttentionCase c = make_case(4, 2, 64, block_size);
    const SequenceData data = make_sequence<bf16>(c, 270, 5);
    const Query queries[] = {{&data, 270, 1}, {&data, 70, 30}, {&data, 256, 1}, {&data, 41, 41}};
    check_against_reference<bf16>(c, queries);
    if (block_size < 16) check_against_reference<float>(c, std::span(queries).subspan(1));
  }
}

TEST_CASE("skewed lengths on few and many blocks of the grid: units in pieces of every kind") {
  AttentionCase c = make_case(4, 2, 64);
  const SequenceData data = make_sequence<bf16>(c, 2100, 6);
  const Query decode[] = {{&data, 2100, 1}, {&data, 3, 1}, {&data, 700, 1}, {&data, 64, 1}, {&data, 130, 1}};
  const Query chunk[] = {{&data, 1100, 20}, {&data, 40, 1}};
  const Query prefill[] = {{&data, 1200, 64}, {&data, 9, 9}, {&data, 1300, 1}};
  for (const int32_t num_ctas : {1, 2, 16, 61}) {
    c.num_ctas = num_ctas;
    const bool many = num_ctas > 2;
    const int32_t decode_rows = check_against_reference<bf16>(c, decode);
    if (num_ctas != 2) CHECK(decode_rows == (many ? 2 : 0));
    const int32_t chunk_rows = check_against_reference<bf16>(c, chunk);
    if (num_ctas != 2) CHECK(chunk_rows == (many ? 40 : 0));
    const int32_t prefill_rows = check_against_reference<__half>(c, prefill);
    if (num_ctas != 2) CHECK(prefill_rows == (many ? 128 : 0));
  }
  AttentionCase wide = make_case(2, 1, 256);
  const SequenceData wide_data = make_sequence<bf16>(wide, 700, 6);
  wide.num_ctas = 9;
  const Query wide_queries[] = {{&wide_data, 700, 40}, {&wide_data, 600, 1}};
  CHECK(check_against_reference<bf16>(wide, wide_queries) > 0);
  AttentionCase odd = make_case(2, 1, 24, 5);
  odd.num_ctas = 9;
  const SequenceData odd_data = make_sequence<float>(odd, 400, 6);
  const Query odd_queries[] = {{&odd_data, 400, 1}, {&odd_data, 300, 12}};
  CHECK(check_against_reference<float>(odd, odd_queries) > 0);
}

TEST_CASE("sliding windows, also shorter than a tile, with schedules that know of them and such that do not") {
  AttentionCase c = make_case(4, 2, 64);
  const SequenceData data = make_sequence<bf16>(c, 400, 7);
  const Query queries[] = {{&data, 400, 1}, {&data, 390, 40}, {&data, 150, 150}, {&data, 16, 1}, {&data, 1, 1}};
  for (const int32_t window : {1, 2, 15, 16, 17, 63, 64, 65, 130, 1000}) {
    CAPTURE(window);
    c.shape.window = window;
    for (const int32_t schedule_window : {-1, 0, window + 50}) {
      CAPTURE(schedule_window);
      if (window % 2 == 0 && schedule_window > 0) continue;
      c.schedule_window = schedule_window;
      c.num_ctas = schedule_window == 0 ? 14 : 5;
      check_against_reference<bf16>(c, queries);
    }
  }
  AttentionCase scalar = make_case(2, 1, 24);
  const SequenceData scalar_data = make_sequence<float>(scalar, 200, 7);
  const Query scalar_queries[] = {{&scalar_data, 200, 1}, {&scalar_data, 100, 40}};
  for (const int32_t window : {1, 31, 33, 70}) {
    scalar.shape.window = window;
    scalar.schedule_window = window == 70 ? 0 : -1;
    check_against_reference<float>(scalar, scalar_queries);
  }
}

TEST_CASE("soft cap, ALiBi slopes and sinks, alone and together, whole units and pieces") {
  for (const int32_t head_dim : {64, 256}) {
    AttentionCase c = make_case(8, 2, head_dim);
    const SequenceData data = make_sequence<bf16>(c, 330, 8);
    const Query queries[] = {{&data, 330, 1}, {&data, 300, 20}, {&data, 75, 40}};
    for (int features = 1; features < 16; ++features) {
      if (head_dim == 256 && features != 15) continue;
      CAPTURE(features);
      c.softcap = features & 1 ? 5.0f : 0;
      c.has_alibi = features & 2;
      c.has_sinks = features & 4;
      c.shape.window = features & 8 ? 100 : 0;
      c.num_ctas = features % 3 == 0 ? 13 : 2;
      check_against_reference<bf16>(c, std::span(queries).first(head_dim == 64 ? 3 : 2));
      if (features % 4 == 3) check_against_reference<float>(c, std::span(queries).first(1));
    }
  }
}

TEST_CASE("scores of any size are safe: huge equal, huge different, very negative, and with a cap") {
  AttentionCase c = make_case(2, 1, 64);
  for (const float q : {0.0f, 1e4f, -1e4f}) {
    SequenceData data = make_sequence<bf16>(c, 200, 9);
    std::fill(data.q.begin(), data.q.end(), to_float(from_float<bf16>(q)));
    for (int32_t p = 0; p < 200; ++p)
      for (int32_t i = 0; i < 64; ++i) data.k[p * 64 + i] = static_cast<float>(p % 7);
    const Query queries[] = {{&data, 200, 1}, {&data, 150, 30}};
    for (const float softcap : {0.0f, 30.0f}) {
      c.softcap = softcap;
      check_against_reference<bf16>(c, queries);
      check_against_reference<float>(c, queries);
    }
  }
}

TEST_CASE("a NaN in one sequence's keys or values reaches no other sequence") {
  for (const int32_t num_ctas : {2, 15}) {
    AttentionCase c = make_case(4, 2, 64);
    c.num_ctas = num_ctas;
    const SequenceData good = make_sequence<bf16>(c, 420, 10);
    for (const bool in_key : {true, false}) {
      SequenceData bad = make_sequence<bf16>(c, 420, 11);
      (in_key ? bad.k : bad.v)[20 * c.kv_size() + 3] = std::nanf("");
      const Query mixed[] = {{&bad, 420, 1}, {&good, 420, 1}, {&bad, 60, 30}, {&good, 90, 70}};
      const Query clean[] = {{&good, 420, 1}, {&good, 420, 1}, {&good, 60, 30}, {&good, 90, 70}};
      const std::vector<float> out = run_attention<bf16>(c, mixed).out, expected = run_attention<bf16>(c, clean).out;
      const auto rows = [&](const std::vector<float>& from, int64_t first, int64_t n) {
        return std::span(from).subspan(static_cast<size_t>(first * c.q_size()), static_cast<size_t>(n * c.q_size()));
      };
      CHECK(same_bytes(rows(out, 1, 1), rows(expected, 1, 1)));
      CHECK(same_bytes(rows(out, 32, 70), rows(expected, 32, 70)));
      // Head 0 reads the KV head with the NaN, in the channel with it.
      CHECK(std::isnan(out[3]));
      CHECK(std::isnan(out[31 * c.q_size() + 3]));
    }
  }
}

TEST_CASE("the order of threads and blocks changes no bit, and neither does the order of KV blocks") {
  AttentionCase c = make_case(4, 2, 64);
  c.num_ctas = 12;
  c.has_sinks = true;
  const SequenceData data = make_sequence<bf16>(c, 600, 12);
  const Query queries[] = {{&data, 600, 1}, {&data, 333, 20}, {&data, 100, 66}, {&data, 2, 2}};
  std::vector<float> first;
  for_each_order(6, [&](uint64_t seed) {
    const AttentionRun run = run_attention<bf16>(c, queries, static_cast<uint32_t>(seed));
    CHECK(run.max_cut_rows > 0);
    if (first.empty()) first = run.out;
    CHECK(same_bytes(first, run.out));
  });
  AttentionCase scalar = make_case(4, 2, 24, 3);
  scalar.num_ctas = 12;
  const SequenceData scalar_data = make_sequence<float>(scalar, 200, 12);
  const Query scalar_queries[] = {{&scalar_data, 200, 1}, {&scalar_data, 70, 9}};
  first.clear();
  for_each_order(4, [&](uint64_t seed) {
    const AttentionRun run = run_attention<float>(scalar, scalar_queries, static_cast<uint32_t>(seed));
    if (first.empty()) first = run.out;
    CHECK(same_bytes(first, run.out));
  });
}

TEST_CASE("an empty step is nothing to do; mistakes of the caller are refused") {
  AttentionCase c = make_case(4, 2, 64);
  CHECK(run_attention<bf16>(c, {}).out.empty());
  const SequenceData data = make_sequence<bf16>(c, 5, 13);
  const Query with_empty[] = {{&data, 5, 0}, {&data, 5, 2}, {&data, 3, 0}};
  check_against_reference<bf16>(c, with_empty);
  const AttentionCase uneven = make_case(5, 2, 64);
  const SequenceData uneven_data = make_sequence<bf16>(uneven, 5, 13);
  const Query uneven_query[] = {{&uneven_data, 5, 1}};
  CHECK_THROWS_AS(run_attention<bf16>(uneven, uneven_query), CheckFailure);
  const AttentionWork work{1};
  CHECK_THROWS_AS(
      paged_attention<bf16>(nullptr, 512, nullptr, nullptr, nullptr, nullptr, work, {c.shape, -1.0f}, nullptr),
      CheckFailure);
}

}  // namespace
}  // namespace llmb::cuda
