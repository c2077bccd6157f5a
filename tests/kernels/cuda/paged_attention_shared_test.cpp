// Attention over shared prefixes: one launch for all rows that see them, then each sequence goes on by itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/cuda/hopper.h"
#include "tests/kernels/cuda/paged_attention_case.h"
#include "tests/support/skip.h"

namespace llmb::cuda {
namespace {

using bf16 = __nv_bfloat16;
using test::same_bytes;

// Whether the device runs code for Hopper; a message where it does not.
bool have_hopper() {
  if (has_hopper_code(nullptr)) return true;
  test::skip("no device of compute capability 9.0");
  return false;
}

// Sequences that begin alike, as a step's queries.
template <class T>
struct Sharing {
  AttentionCase c;
  std::vector<std::unique_ptr<SequenceData>> data;
  std::vector<Query> queries;

  explicit Sharing(const AttentionCase& of) : c(of) {}

  // A sequence of its own, or one whose first blocks are those of query `like`.
  int32_t add(int32_t context, int32_t query_len, int32_t like = -1, int32_t num_blocks = 0) {
    const auto seed = static_cast<uint32_t>(50 + queries.size());
    data.push_back(std::make_unique<SequenceData>(make_sequence<T>(c, context, seed)));
    if (like >= 0) {
      const auto count = num_blocks * c.shape.block_size * c.kv_size();
      std::copy_n(data[like]->k.begin(), count, data.back()->k.begin());
      std::copy_n(data[like]->v.begin(), count, data.back()->v.begin());
    }
    queries.push_back({data.back().get(), context, query_len, 0, like, num_blocks});
    return static_cast<int32_t>(queries.size()) - 1;
  }
  void share(int32_t num_blocks, const std::vector<int32_t>& seqs) {
    const auto begin = static_cast<int32_t>(c.shared_seqs.size());
    c.shared_seqs.insert(c.shared_seqs.end(), seqs.begin(), seqs.end());
    c.shared_prefixes.push_back({num_blocks * c.shape.block_size, begin, static_cast<int32_t>(c.shared_seqs.size())});
  }
  AttentionRun run(bool shares) const {
    AttentionCase own = c;
    if (!shares) own.shared_prefixes.clear();
    const AttentionRun result = run_attention<T>(own, queries);
    CHECK((result.num_shared_items > 0) == shares);
    return result;
  }
};

// Own parts of 1 token, up to, on and behind a tile's border; groups of rows; one row that shares nothing between them.
template <class T>
Sharing<T> make_sharing(AttentionCase c, int32_t shared_blocks) {
  Sharing<T> s(c);
  const int32_t length = shared_blocks * c.shape.block_size;
  s.add(length + 1, 1);
  s.add(length + 63, 1, 0, shared_blocks);
  s.add(90, 3);
  s.add(length + 64, 1, 0, shared_blocks);
  s.add(length + 70, 5, 0, shared_blocks);
  s.add(length + 129, 2, 0, shared_blocks);
  s.add(length + 3, 3, 0, shared_blocks);
  s.share(shared_blocks, {5, 0, 6, 3, 1, 4});
  return s;
}

template <class T>
void check_same_bits(AttentionCase c, int32_t shared_blocks) {
  CAPTURE(c.shape.num_heads);
  CAPTURE(c.shape.head_dim);
  c.shape.deterministic = true;
  for (const int32_t num_ctas : {1, 4}) {
    c.num_ctas = num_ctas;
    const Sharing<T> s = make_sharing<T>(c, shared_blocks);
    CHECK(same_bytes(s.run(true).out, s.run(false).out));
  }
}

TEST_CASE("deterministic: the bits of each sequence by itself, head sizes, groups and types") {
  check_same_bits<bf16>(make_case(4, 2, 64), 12);
  check_same_bits<__half>(make_case(7, 1, 128, 32), 7);
  check_same_bits<bf16>(make_case(3, 3, 256, 8), 19);
  check_same_bits<__half>(make_case(4, 4, 40), 9);
  check_same_bits<bf16>(make_case(8, 2, 96, 64), 3);
  check_same_bits<bf16>(make_case(16, 1, 80), 16);
}

TEST_CASE("deterministic: also over int8 and e4m3 keys and values") {
  for (const KvCode code : {KvCode::kInt8, KvCode::kFp8}) {
    AttentionCase c = make_case(4, 2, 64);
    c.shape.kv_code = code;
    check_same_bits<bf16>(c, 12);
    c = make_case(7, 1, 128, 32);
    c.shape.kv_code = code;
    check_same_bits<__half>(c, 7);
  }
}

TEST_CASE("deterministic: also with soft cap, ALiBi and sinks") {
  AttentionCase c = make_case(4, 2, 64);
  c.has_sinks = true;
  check_same_bits<bf16>(c, 12);
  c.has_alibi = true;
  check_same_bits<bf16>(c, 12);
  c.softcap = 5;
  check_same_bits<bf16>(c, 9);
}

TEST_CASE("cut into pieces: as close to fp64 as a naive computation") {
  for (const int32_t head_dim : {64, 128, 256})
    for (const int32_t num_ctas : {2, 30}) {
      AttentionCase c = make_case(4, 2, head_dim);
      c.num_ctas = num_ctas;
      const Sharing<bf16> s = make_sharing<bf16>(c, 40);
      check_against_reference<bf16>(s.c, s.queries);
      const int32_t num_units = 2 * static_cast<int32_t>(ceil_div(13 * 2, attention_tiling(c.shape).max_rows));
      CHECK((s.run(true).num_shared_items > num_units) == (num_ctas == 30));
    }
  AttentionCase c = make_case(6, 2, 80, 24);
  c.has_alibi = c.has_sinks = true;
  c.num_ctas = 30;
  const Sharing<__half> s = make_sharing<__half>(c, 22);
  check_against_reference<__half>(s.c, s.queries);
}

TEST_CASE("places that are known only on the device: items are clipped behind the shared positions") {
  for (const int32_t num_ctas : {2, 40}) {
    AttentionCase c = make_case(4, 2, 64);
    c.num_ctas = num_ctas;
    Sharing<bf16> s = make_sharing<bf16>(c, 48);
    for (size_t i = 0; i < s.queries.size(); ++i) s.queries[i].ahead = static_cast<int32_t>(i % 3) * 7;
    check_against_reference<bf16>(s.c, s.queries);
    s.c.shape.deterministic = true;
    CHECK(same_bytes(s.run(true).out, s.run(false).out));
  }
}

// Rows of all lengths of own parts: windows that hold the whole prefix for some of them, begin before, on and behind a
// border of blocks and of tiles, hold less than the own part of others, or nothing of the prefix at all.
const std::vector<int32_t> kWindows = {1, 63, 64, 65, 127, 128, 129, 193, 330};

TEST_CASE("deterministic, with windows: the bits of each sequence by itself, whatever window the list is made for") {
  for (const int32_t window : kWindows) {
    CAPTURE(window);
    for (const int32_t shared_window : {0, window + window % 2 * 40}) {
      AttentionCase c = make_case(4, 2, 64);
      c.shape.deterministic = c.has_sinks = true;
      c.shape.window = window, c.schedule_window = 0;
      c.shared_window = shared_window;
      c.num_ctas = 2;
      Sharing<bf16> s = make_sharing<bf16>(c, 12);
      const AttentionRun together = run_attention<bf16>(s.c, s.queries);
      CHECK((together.num_shared_items > 0) == (shared_window == 0 || shared_window >= 127));
      CHECK(same_bytes(together.out, s.run(false).out));
    }
  }
}

TEST_CASE("with windows, head sizes, types, transformed scores, pieces and places known on the device only") {
  for (const auto& [head_dim, window, num_ctas] :
       {std::tuple{40, 200, 40}, {128, 100, 40}, {256, 333, 40}, {64, 640, 1}}) {
    AttentionCase c = make_case(4, 2, head_dim, 8);
    c.shape.window = window, c.schedule_window = 0;
    c.shared_window = head_dim == 128 ? 0 : window;
    c.num_ctas = num_ctas;
    c.has_alibi = head_dim == 128;
    c.softcap = head_dim == 256 ? 5.0f : 0;
    Sharing<__half> s = make_sharing<__half>(c, 48);
    for (size_t i = 0; i < s.queries.size(); ++i) s.queries[i].ahead = static_cast<int32_t>(i % 3) * 7;
    check_against_reference<__half>(s.c, s.queries);
    s.c.shape.deterministic = true;
    CHECK(same_bytes(run_attention<__half>(s.c, s.queries).out, s.run(false).out));
  }
}

TEST_CASE("layers whose windows gain nothing take the same lists and none of the states") {
  for (const int32_t window : {1, 50, 900}) {
    CAPTURE(window);
    AttentionCase c = make_case(2, 1, 64);
    c.num_ctas = 20;
    c.shape.window = window;
    c.schedule_window = 0;
    c.takes_states = false;
    Sharing<bf16> s = make_sharing<bf16>(c, 40);
    check_against_reference<bf16>(s.c, s.queries);
    s.c.shape.deterministic = true;
    CHECK(same_bytes(s.run(true).out, s.run(false).out));
  }
}

// Many rows on Hopper: the launch is of wgmma, whose units are of 65 rows, two of them, and a part of one.
TEST_CASE("Hopper: as close to fp64 as a naive computation, head sizes, types, pieces and transformed scores") {
  if (!have_hopper()) return;
  for (const int32_t head_dim : {64, 128})
    for (const int32_t num_ctas : {3, 30}) {
      AttentionCase c = make_case(20, 2, head_dim);
      c.shape.hopper = true;
      c.num_ctas = num_ctas;
      const Sharing<bf16> s = make_sharing<bf16>(c, 40);
      check_against_reference<bf16>(s.c, s.queries);
      const AttentionRun run = s.run(true);
      CHECK(run.shares_by_wgmma);
      CHECK((run.num_shared_items > 4) == (num_ctas == 30));
    }
  AttentionCase c = make_case(5, 1, 64, 24);
  c.shape.hopper = c.has_alibi = c.has_sinks = true;
  c.softcap = 6;
  c.num_ctas = 6;
  const Sharing<__half> s = make_sharing<__half>(c, 22);
  check_against_reference<__half>(s.c, s.queries);
  CHECK(s.run(true).shares_by_wgmma);
  c.shape.num_heads = 4;  // 52 rows
  CHECK_FALSE(make_sharing<__half>(c, 22).run(true).shares_by_wgmma);
}

TEST_CASE("Hopper, with windows: as close to fp64 as a naive computation") {
  if (!have_hopper()) return;
  for (const auto& [window, num_ctas] : {std::pair{1, 30}, {129, 3}, {200, 30}, {257, 30}, {900, 3}}) {
    CAPTURE(window);
    AttentionCase c = make_case(20, 2, 64);
    c.shape.hopper = true;
    c.shape.window = window, c.schedule_window = 0;
    c.has_alibi = window == 200;
    c.num_ctas = num_ctas;
    const Sharing<bf16> s = make_sharing<bf16>(c, 24);
    check_against_reference<bf16>(s.c, s.queries);
    CHECK(s.run(true).shares_by_wgmma);
  }
}

TEST_CASE("prefixes within prefixes: each sequence shares where the most is saved") {
  AttentionCase c = make_case(4, 2, 64);
  c.shape.deterministic = true;
  c.num_ctas = 2;
  for (const int32_t inner : {10, 40}) {  // blocks: all sequences share 8 of them, five share these
    Sharing<bf16> s(c);
    for (int32_t i = 0; i < 10; ++i) {
      const bool is_inner = i >= 5;
      s.add((is_inner ? inner : 8) * 16 + 3 + i, 1, i == 0 ? -1 : i <= 5 ? 0 : 5, is_inner && i > 5 ? inner : 8);
    }
    s.share(8, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    s.c.shared_prefixes.push_back({inner * 16, 5, 10});
    const AttentionRun run = s.run(true);
    CHECK(run.num_shared_positions == (inner == 10 ? 128 : 640));
    CHECK(same_bytes(run.out, s.run(false).out));
  }
}

TEST_CASE("little to share, prompts, and prefixes of less than a tile go row by row") {
  AttentionCase c = make_case(4, 2, 64);
  c.num_ctas = 4;
  for (const auto& [shared_blocks, query_len] : {std::pair{40, 33}, {3, 1}, {40, 32}}) {
    CAPTURE(query_len);
    Sharing<bf16> s(c);
    for (int32_t i = 0; i < 4; ++i)
      s.add(shared_blocks * 16 + query_len, query_len, i == 0 ? -1 : 0, i == 0 ? 0 : shared_blocks);
    s.share(shared_blocks, {0, 1, 2, 3});
    CHECK((run_attention<bf16>(s.c, s.queries).num_shared_items > 0) == (query_len == 32));
  }
  c.num_ctas = 7;  // two heads save 496 positions each, a launch costs 2 tiles of 64 a block
  Sharing<bf16> two(c);
  for (int32_t i = 0; i < 2; ++i) two.add(32 * 16 + 1 + i, 1, i - 1, i == 0 ? 0 : 32);
  two.share(32, {0, 1});
  CHECK(run_attention<bf16>(two.c, two.queries).num_shared_items > 0);
  two.c.num_ctas = 8;
  CHECK(run_attention<bf16>(two.c, two.queries).num_shared_items == 0);
}

}  // namespace
}  // namespace llmb::cuda
