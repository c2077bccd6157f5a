#include "kernels/cuda/paged_attention_schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "base/check.h"
#include "kernels/cuda/tuning.h"

namespace llmb::cuda {
namespace {

struct Step {
  std::vector<int32_t> query_start = {0}, context_len, block_start = {0};

  void add(int32_t context, int32_t query_len) {
    query_start.push_back(query_start.back() + query_len);
    context_len.push_back(context);
    block_start.push_back(block_start.back() + static_cast<int32_t>(ceil_div(context, 16)));
  }
  AttentionBatch batch() const {
    return {static_cast<int32_t>(context_len.size()), query_start.data(), context_len.data(), block_start.data()};
  }
  int32_t num_tokens() const { return query_start.back(); }
};

AttentionShape make_shape(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim = 128) {
  AttentionShape shape;
  shape.num_heads = num_heads;
  shape.num_kv_heads = num_kv_heads;
  shape.head_dim = head_dim;
  return shape;
}

// A unit's pieces in order of positions, by what names the unit.
using UnitName = std::tuple<int32_t, int32_t, int32_t, int32_t>;  // query_start, kv_head, row_begin, num_rows
using Units = std::map<UnitName, std::vector<AttentionItem>>;

Units collect_units(const AttentionSchedule& schedule) {
  Units units;
  for (const AttentionItem& item : schedule.items)
    units[{item.query_start, item.kv_head, item.row_begin, item.num_rows}].push_back(item);
  for (auto& [name, pieces] : units)
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.kv_begin < b.kv_begin; });
  return units;
}

int32_t tile_of(const AttentionTiling& tiling, const AttentionItem& item) {
  return tiling.wgmma && item.num_rows > AttentionTiling::kTileRows ? AttentionTiling::kWgmmaTile : tiling.kv_tile;
}

void check_pieces(const std::vector<AttentionItem>& pieces, int32_t kv_tile, std::vector<int>* partial_rows,
                  std::vector<int>* splits) {
  const AttentionItem& first = pieces.front();
  if (pieces.size() == 1) {
    CHECK(first.partial == -1);
    return;
  }
  ++splits->at(static_cast<size_t>(first.split));
  for (size_t i = 0; i < pieces.size(); ++i) {
    const AttentionItem& piece = pieces[i];
    const bool agrees = piece.kv_begin % kv_tile == 0 && piece.kv_begin < piece.kv_end &&
                        piece.first_partial == first.partial && piece.split == first.split &&
                        piece.num_pieces == static_cast<int32_t>(pieces.size()) &&
                        piece.partial == first.partial + static_cast<int32_t>(i) * first.num_rows;
    CHECK(agrees);
    if (i > 0) CHECK(piece.kv_begin == pieces[i - 1].kv_end);
    for (int32_t row = 0; row < piece.num_rows; ++row) ++partial_rows->at(static_cast<size_t>(piece.partial + row));
  }
}

// Invariants 1 to 4 of the header.
void check_schedule(const Step& step, const AttentionShape& shape, int32_t num_ctas, const AttentionSchedule& schedule,
                    const AttentionLimits& limits) {
  const AttentionTiling tiling = attention_tiling(shape);
  REQUIRE(schedule.cta_start.size() == static_cast<size_t>(num_ctas) + 1);
  CHECK(std::is_sorted(schedule.cta_start.begin(), schedule.cta_start.end()));
  CHECK(schedule.cta_start.front() == 0);
  CHECK(schedule.cta_start.back() == static_cast<int32_t>(schedule.items.size()));
  CHECK(static_cast<int64_t>(schedule.items.size()) <= limits.max_items);
  CHECK(schedule.num_partial_rows <= limits.max_partial_rows);
  CHECK(schedule.num_splits <= limits.max_splits);
  if (shape.deterministic) CHECK(schedule.num_splits == 0);
  const int32_t first_wgmma_item = schedule.cta_start[tiling.first_wgmma_cta(num_ctas)];
  for (size_t i = 0; i < schedule.items.size(); ++i) {
    const bool tall = schedule.items[i].num_rows > AttentionTiling::kTileRows;
    CHECK((static_cast<int32_t>(i) >= first_wgmma_item) == (tiling.wgmma && tall));
  }

  std::vector<int> partial_rows(static_cast<size_t>(schedule.num_partial_rows));
  std::vector<int> splits(static_cast<size_t>(schedule.num_splits));
  std::vector<int64_t> rows_seen(static_cast<size_t>(step.num_tokens()) * shape.num_heads);
  const Units units = collect_units(schedule);
  for (const auto& [name, pieces] : units) {
    check_pieces(pieces, tile_of(tiling, pieces.front()), &partial_rows, &splits);
    const AttentionItem& item = pieces.front();
    const auto seq = std::upper_bound(step.query_start.begin(), step.query_start.end(), item.query_start) -
                     step.query_start.begin() - 1;
    const int32_t num_tokens = step.query_start[seq + 1] - item.query_start;
    CHECK(item.block_start == step.block_start[seq]);
    CHECK(item.first_position == step.context_len[seq] - num_tokens);
    CHECK((item.num_rows > 0 && item.num_rows <= tiling.max_rows));
    for (int32_t row = item.row_begin; row < item.row_begin + item.num_rows; ++row) {
      const int32_t token = row / shape.group(), position = item.first_position + token;
      REQUIRE(token < num_tokens);
      const int32_t first_seen = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
      CHECK((item.kv_begin <= first_seen && pieces.back().kv_end > position));
      CHECK(pieces.back().kv_end <= step.context_len[seq]);
      const int64_t head = item.kv_head * shape.group() + row % shape.group();
      ++rows_seen[(item.query_start + token) * shape.num_heads + head];
    }
  }
  const auto once = [](const auto& counts) {
    return std::all_of(counts.begin(), counts.end(), [](auto n) { return n == 1; });
  };
  CHECK(once(rows_seen));
  CHECK(once(partial_rows));
  CHECK(once(splits));
}

TEST_CASE("every row sees its positions exactly once, within the promised sizes: random steps, shapes and grids") {
  std::mt19937 rng(1);
  const auto draw = [&](int32_t from, int32_t to) { return std::uniform_int_distribution<int32_t>(from, to)(rng); };
  AttentionSchedule schedule;
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const int32_t kv_heads = draw(1, 4), dims[] = {64, 96, 128, 256, 33};
    AttentionShape shape = make_shape(kv_heads * draw(1, 9), kv_heads, dims[draw(0, 4)]);
    shape.window = draw(0, 2) == 0 ? draw(1, 300) : 0;
    shape.deterministic = draw(0, 3) == 0;
    shape.hopper = draw(0, 1) == 1;
    const int32_t num_ctas = (draw(1, 4) == 1 ? draw(1, 3) : draw(4, 50)) * attention_tiling(shape).ctas_per_sm;
    const int32_t max_len = draw(0, 1) ? 60 : 3000;
    Step step;
    for (int32_t n = draw(0, 12); n > 0; --n) {
      const int32_t context = draw(1, max_len);
      step.add(context, draw(0, 2) > 0 ? 1 : draw(0, std::min(context, 200)));
    }
    schedule_attention(step.batch(), shape, num_ctas, &schedule);
    check_schedule(step, shape, num_ctas, schedule,
                   attention_limits(shape, num_ctas, step.batch().num_seqs, step.num_tokens()));
  }
}

struct Balance {
  double max_share = 0;  // of the block with the most, in mean loads
  double overhead = 0;   // cost added by cutting, as a share
};

Balance balance_of(const Step& step, AttentionShape shape, int32_t num_ctas) {
  AttentionSchedule schedule;
  schedule_attention(step.batch(), shape, num_ctas, &schedule);
  check_schedule(step, shape, num_ctas, schedule,
                 attention_limits(shape, num_ctas, step.batch().num_seqs, step.num_tokens()));
  int64_t total = 0, max = 0;
  for (const int64_t cost : schedule.cta_cost) total += cost, max = std::max(max, cost);
  // One block does everything, whole.
  AttentionSchedule whole;
  schedule_attention(step.batch(), shape, 1, &whole);
  const double least = static_cast<double>(whole.cta_cost[0]);
  return {static_cast<double>(max) * num_ctas / least, static_cast<double>(total) / least - 1};
}

TEST_CASE("blocks finish together: decode, prefill and both, even and skewed lengths, on 264 blocks") {
  const AttentionShape llama = make_shape(32, 8);
  const auto decode = [](int32_t num_seqs, int32_t context) {
    Step step;
    for (int32_t i = 0; i < num_seqs; ++i) step.add(context, 1);
    return step;
  };
  CHECK(balance_of(decode(64, 1024), llama, 264).max_share < 1.08);
  CHECK(balance_of(decode(64, 4096), llama, 264).max_share < 1.03);
  CHECK(balance_of(decode(64, 8192), llama, 264).max_share < 1.02);
  CHECK(balance_of(decode(256, 1000), llama, 264).max_share < 1.03);
  CHECK(balance_of(decode(33, 2000), llama, 264).max_share < 1.01);
  CHECK(balance_of(decode(34, 2000), llama, 264).max_share < 1.1);
  CHECK(balance_of(decode(1, 100000), llama, 264).max_share < 1.1);
  CHECK(balance_of(decode(1, 30000), make_shape(8, 1), 264).max_share < 8);  // at most 64 pieces

  Step skewed = decode(63, 300);
  skewed.add(60000, 1);
  CHECK(balance_of(skewed, llama, 264).max_share < 1.06);
  Step geometric;
  for (int32_t i = 0; i < 64; ++i) geometric.add(128 << (i % 8), 1);
  CHECK(balance_of(geometric, llama, 264).max_share < 1.05);

  Step mixed = decode(128, 1500);
  mixed.add(3000, 512);
  CHECK(balance_of(mixed, llama, 264).max_share < 1.05);
  Step prefill;
  prefill.add(4096, 4096);
  CHECK(balance_of(prefill, llama, 264).max_share < 1.05);
  Step chunk;
  chunk.add(32768, 512);
  CHECK(balance_of(chunk, llama, 264).max_share < 1.05);
  AttentionShape hopper = llama;
  hopper.hopper = true;
  for (const Step& step : {prefill, chunk}) {
    AttentionSchedule schedule;
    schedule_attention(step.batch(), hopper, 396, &schedule);
    const auto [least, most] = std::minmax_element(schedule.cta_cost.begin() + 264, schedule.cta_cost.end());
    CHECK(static_cast<double>(*most) < 1.06 * static_cast<double>(*least));
  }
  Step prompts;
  for (int32_t i = 0; i < 8; ++i) prompts.add(400 + 150 * i, 400 + 150 * i);
  CHECK(balance_of(prompts, llama, 264).max_share < 1.15);
}

TEST_CASE("cutting costs little: no more than a piece a block") {
  Step step;
  for (int32_t i = 0; i < 100; ++i) step.add(100 + 37 * i, 1);
  AttentionSchedule schedule;
  schedule_attention(step.batch(), make_shape(32, 8), 264, &schedule);
  CHECK(schedule.items.size() <= 800 + 263);
  CHECK(balance_of(step, make_shape(32, 8), 264).overhead < 0.05);
  // Enough even units for all blocks stay whole.
  Step even;
  for (int32_t i = 0; i < 33; ++i) even.add(640, 64);
  schedule_attention(even.batch(), make_shape(16, 8), 264, &schedule);
  CHECK(schedule.num_splits == 0);
}

TEST_CASE("deterministic: units stay whole and are spread by their cost") {
  AttentionShape shape = make_shape(32, 8);
  shape.deterministic = true;
  Step step;
  for (int32_t i = 0; i < 128; ++i) step.add(100 + 50 * i, 1);
  CHECK(balance_of(step, shape, 264).max_share < 1.1);
}

TEST_CASE("both ways: units are cut only where that takes enough from the block with most to do") {
  int num_cut = 0, num_whole = 0;
  for (const AttentionShape& model : {make_shape(12, 12, 64), make_shape(3, 1, 256), make_shape(1, 1, 64)})
    for (const int32_t num_texts : {1, 3, 16, 185})
      for (const int32_t length : {40, 512, 2048, 8192}) {
        Step step;
        for (int32_t i = 0; i < num_texts; ++i) step.add(length, length);
        AttentionShape shape = model;
        shape.later = AttentionShape::kAllLater;
        AttentionSchedule schedule, whole;
        schedule_attention(step.batch(), shape, 264, &schedule);
        shape.deterministic = true;
        schedule_attention(step.batch(), shape, 264, &whole);
        const int64_t most = *std::max_element(whole.cta_cost.begin(), whole.cta_cost.end());
        const int64_t mean = std::accumulate(whole.cta_cost.begin(), whole.cta_cost.end(), int64_t{0}) / 264;
        if (schedule.num_splits > 0) CHECK(most - mean >= tuning::kBothWaysLeastGain);
        else CHECK(schedule.cta_cost == whole.cta_cost);
        ++(schedule.num_splits > 0 ? num_cut : num_whole);
      }
  CHECK(num_cut > 0);
  CHECK(num_whole > 0);
}

TEST_CASE("a schedule object that is used again gives what a new one gives") {
  AttentionSchedule used;
  for (const int32_t n : {50, 3, 200, 0, 7}) {
    Step step;
    for (int32_t i = 0; i < n; ++i) step.add(10 + i * 31 % 2000, i % 9 == 0 ? std::min(40, 10 + i * 31 % 2000) : 1);
    AttentionSchedule fresh;
    for (AttentionSchedule* schedule : {&used, &fresh})
      schedule_attention(step.batch(), make_shape(8, 2), 60, schedule);
    CHECK(used.cta_start == fresh.cta_start);
    CHECK((used.items.size() == fresh.items.size() &&
           (n == 0 ||
            std::memcmp(used.items.data(), fresh.items.data(), fresh.items.size() * sizeof(AttentionItem)) == 0)));
  }
}

TEST_CASE("tilings: which sizes have tensor-core kernels; limits hold for the largest step") {
  AttentionShape shape = make_shape(8, 2, 72);
  CHECK(attention_tiling(shape).padded_dim == 80);
  CHECK_FALSE(attention_tiling(shape).scalar);
  shape.head_dim = 256;
  CHECK_FALSE(attention_tiling(shape).scalar);
  for (const int32_t head_dim : {257, 520, 60, 1}) {
    shape.head_dim = head_dim;
    CHECK(attention_tiling(shape).scalar);
  }
  for (const int32_t head_dim : {264, 512}) {
    shape.head_dim = head_dim;
    CHECK((attention_tiling(shape).wide && !attention_tiling(shape).scalar));
  }
  // 64 rotated channels in front of up to 512 latent ones.
  for (const auto& [rope_dim, latent_dim] : {std::pair{64, 512}, {64, 520}, {32, 512}}) {
    AttentionShape latents = make_shape(8, 1, rope_dim + latent_dim);
    latents.latent_dim = latent_dim;
    CHECK(attention_tiling(latents).wide == (rope_dim == 64 && latent_dim <= 512));
    CHECK(attention_tiling(latents).scalar == !attention_tiling(latents).wide);
  }
  shape.head_dim = 64;
  shape.block_size = 20;
  CHECK(attention_tiling(shape).scalar);
  shape.block_size = 16;
  shape.dtype = DType::kF32;
  CHECK(attention_tiling(shape).scalar);
}

TEST_CASE("mistakes of the caller are refused") {
  Step step;
  step.add(10, 1);
  AttentionSchedule schedule;
  CHECK_THROWS_AS(schedule_attention(step.batch(), make_shape(5, 2), 4, &schedule), CheckFailure);
  CHECK_THROWS_AS(schedule_attention(step.batch(), make_shape(4, 2), 0, &schedule), CheckFailure);
  step.context_len[0] = 0;
  CHECK_THROWS_AS(schedule_attention(step.batch(), make_shape(4, 2), 4, &schedule), CheckFailure);
}

}  // namespace
}  // namespace llmb::cuda
