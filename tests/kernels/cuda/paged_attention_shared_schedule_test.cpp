#include "kernels/cuda/paged_attention_shared.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "core/layer_groups.h"

namespace llmb::cuda {
namespace {

constexpr int32_t kTableBlocks = 200;
constexpr int32_t kLeastGainTiles = 2, kStatePositions = 4;  // whatever tuning.h says: cases are small

// A step of sequences that begin as the paths of a random tree.
struct Step {
  std::vector<int32_t> query_start = {0}, context_len, block_start = {0}, seqs;
  std::vector<SharedPositions> prefixes;

  int32_t first_position(int32_t seq) const {
    return context_len[seq] - (query_start[seq + 1] - query_start[seq]);
  }
  int32_t position(int32_t row) const {
    const auto behind = std::upper_bound(query_start.begin(), query_start.end(), row);
    const auto seq = static_cast<int32_t>(behind - query_start.begin()) - 1;
    return first_position(seq) + row - query_start[seq];
  }
  SharedAttentionBatch shared() const { return {prefixes, seqs, nullptr, kLeastGainTiles, kStatePositions}; }
  AttentionBatch batch() const {
    return {static_cast<int32_t>(context_len.size()), query_start.data(), context_len.data(), block_start.data()};
  }
};

int32_t draw(std::mt19937& rng, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(rng);
}

// Sequences [begin, end) share `length` positions; parts of them share more.
void grow(std::mt19937& rng, int32_t begin, int32_t end, int32_t length, Step* step, std::vector<int32_t>* shared) {
  if (length > 0) step->prefixes.push_back({length, begin, end});
  for (int32_t i = begin; i < end; ++i) (*shared)[i] = length;
  for (int32_t first = begin; end - first >= 2;) {
    const int32_t size = draw(rng, 1, end - first);
    if (size >= 2 && size < end - begin) grow(rng, first, first + size, length + 16 * draw(rng, 1, 30), step, shared);
    first += size;
  }
}

Step random_step(std::mt19937& rng) {
  Step step;
  const int32_t num_seqs = draw(rng, 1, 40);
  std::vector<int32_t> shared(static_cast<size_t>(num_seqs));
  for (int32_t begin = 0; begin < num_seqs;) {
    const int32_t end = draw(rng, begin + 1, num_seqs);
    if (end - begin >= 2) grow(rng, begin, end, 16 * draw(rng, 1, 60), &step, &shared);
    begin = end;
  }
  std::vector<int32_t> order(static_cast<size_t>(num_seqs));
  for (int32_t i = 0; i < num_seqs; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), rng);
  std::vector<int32_t> shared_of(static_cast<size_t>(num_seqs));
  for (int32_t i = 0; i < num_seqs; ++i) shared_of[order[i]] = shared[i];
  step.seqs = order;
  for (int32_t s = 0; s < num_seqs; ++s) {
    const int32_t num_tokens = draw(rng, 0, 9) == 0 ? draw(rng, 17, 90) : draw(rng, 0, 3);
    step.query_start.push_back(step.query_start.back() + num_tokens);
    step.context_len.push_back(shared_of[s] + num_tokens + draw(rng, 0, 100));
    step.block_start.push_back(step.block_start.back() + kTableBlocks);
  }
  return step;
}

struct Found {
  int64_t num_items = 0, num_pieces = 0;
};

// Every row and position is computed once: by a shared item, whose states are the sequence's, or by its own items.
Found check_step(const Step& step, const AttentionShape& shape, int32_t num_ctas, int32_t max_tokens) {
  const AttentionBatch batch = step.batch();
  const AttentionTiling tiling = attention_tiling(shape);
  SharedAttentionSchedule shared;
  schedule_shared_attention(batch, step.shared(), shape, num_ctas, max_tokens, &shared);
  const SharedAttentionLimits limits = shared_attention_limits(shape, num_ctas, batch.num_seqs, max_tokens);
  REQUIRE(shared.states.size() == static_cast<size_t>(batch.num_seqs));
  if (shared.items.empty()) return {};
  CHECK(static_cast<int64_t>(shared.items.size()) <= limits.max_items);
  CHECK(static_cast<int64_t>(shared.tokens.size()) <= limits.max_tokens);
  CHECK(static_cast<int32_t>(shared.cta_start.size()) == shared_ctas(tiling, num_ctas, shared.uses_wgmma) + 1);
  const int32_t tile = tiling.wgmma ? AttentionTiling::kWgmmaTile : tiling.kv_tile;
  CHECK(shared.cta_start.front() == 0);
  CHECK(shared.cta_start.back() == static_cast<int32_t>(shared.items.size()));
  CHECK(std::is_sorted(shared.cta_start.begin(), shared.cta_start.end()));

  struct Written {
    int32_t token, head, kv_begin, kv_end;
  };
  std::map<int64_t, Written> written;  // by state
  for (const AttentionItem& item : shared.items) {
    CHECK((item.kv_begin % tile == 0 && item.kv_end % tile == 0 && item.kv_begin < item.kv_end));
    CHECK((item.num_rows > 0 && item.num_rows <= tiling.max_rows));
    if (tiling.wgmma && item.num_rows > AttentionTiling::kTileRows) CHECK(shared.uses_wgmma);
    for (int32_t row = item.row_begin; row < item.row_begin + item.num_rows; ++row) {
      const int32_t token = row / shape.group(), head = item.kv_head * shape.group() + row % shape.group();
      const int64_t state = item.shared.first + int64_t{token} * shape.num_heads + head;
      CHECK((state >= 0 && state < limits.max_states));
      const Written own{shared.tokens[item.query_start + token], head, item.kv_begin, item.kv_end};
      CHECK(written.insert({state, own}).second);
      CHECK(item.first_position + item.row_begin / shape.group() <= step.position(own.token));
      CHECK(step.first_position(item.block_start / kTableBlocks) <= step.position(own.token));
    }
  }
  Found found{static_cast<int64_t>(shared.items.size()), 0};
  size_t num_read = 0;
  AttentionBatch own = batch;
  own.shared = shared.states.data();
  for (int32_t s = 0; s < batch.num_seqs; ++s) {
    const SharedStates& states = shared.states[s];
    found.num_pieces += states.num_pieces;
    for (int32_t piece = 0, position = -1; piece < states.num_pieces; ++piece) {
      int32_t end = 0;
      for (int32_t row = batch.query_start[s]; row < batch.query_start[s + 1]; ++row)
        for (int32_t head = 0; head < shape.num_heads; ++head, ++num_read) {
          const auto at = written.find(states.first + int64_t{piece} * states.stride +
                                       int64_t{row - batch.query_start[s]} * shape.num_heads + head);
          REQUIRE(at != written.end());
          if (position < 0) position = at->second.kv_begin;
          const bool is_its = at->second.token == row && at->second.head == head && at->second.kv_begin == position;
          CHECK(is_its);
          const int32_t seen = first_seen(shape.window, step.first_position(s));
          if (piece == 0) CHECK((position <= seen || position + tile == states.num_positions));
          if (piece == 0 && shape.window == 0) CHECK(position == 0);
          end = at->second.kv_end;
        }
      position = end;
      if (piece == states.num_pieces - 1) CHECK(position == states.num_positions);
    }
    CHECK(states.num_positions <= batch.context_len[s] - (batch.query_start[s + 1] - batch.query_start[s]));
  }
  CHECK(num_read == written.size());
  AttentionSchedule schedule;
  AttentionShape full = shape;
  full.window = 0;
  schedule_attention(own, full, num_ctas, &schedule);
  std::map<std::pair<int32_t, int32_t>, int64_t> covered;  // by row and KV head: its own positions
  for (const AttentionItem& item : schedule.items) {
    const int32_t begin = item.shared.num_pieces > 0 ? item.shared.num_positions : item.kv_begin;
    if (item.shared.num_pieces > 0) CHECK(item.kv_begin == 0);
    covered[{item.query_start * 1000 + item.row_begin, item.kv_head}] += item.kv_end - begin;
  }
  for (int32_t s = 0; s < batch.num_seqs; ++s)
    if (shared.states[s].num_pieces > 0)
      CHECK(covered[{batch.query_start[s] * 1000, 0}] == batch.context_len[s] - shared.states[s].num_positions);
  return found;
}

TEST_CASE("random trees of prefixes: every row and position once, states apart, sizes within the limits") {
  std::mt19937 rng(3);
  Found all;
  for (int i = 0; i < 2000; ++i) {
    const Step step = random_step(rng);
    AttentionShape shape;
    shape.num_kv_heads = draw(rng, 1, 3);
    shape.num_heads = shape.num_kv_heads * draw(rng, 1, 5);
    shape.head_dim = i % 3 == 0 ? 256 : 64;
    shape.deterministic = i % 2 == 0;
    shape.hopper = i % 5 == 0;
    shape.window = i % 4 == 0 ? draw(rng, 1, 1200) : 0;
    const int32_t num_ctas = 3 * draw(rng, 1, 20);
    const Found found = check_step(step, shape, num_ctas, std::max(1, draw(rng, step.query_start.back() / 2, 400)));
    all.num_items += found.num_items;
    all.num_pieces += shape.deterministic ? 0 : found.num_pieces;
    if (shape.deterministic) CHECK(found.num_pieces <= static_cast<int64_t>(step.context_len.size()));
  }
  CHECK(all.num_items > 10000);
  CHECK(all.num_pieces > 10000);
}

TEST_CASE("with a window: tiles that no row sees are not read, and the launch is worth it for what is seen") {
  Step step;
  for (int32_t s = 0; s < 8; ++s) {
    step.seqs.push_back(s);
    step.query_start.push_back(s + 1);
    step.context_len.push_back(1025 + 10 * (s + 3) % 80);
    step.block_start.push_back(step.block_start.back() + kTableBlocks);
  }
  step.prefixes = {{1000, 0, 8}};
  const auto schedule = [&](int32_t window) {
    AttentionShape shape;
    shape.num_heads = shape.num_kv_heads = 1;
    shape.head_dim = 64;
    shape.deterministic = true;
    shape.window = window;
    SharedAttentionSchedule shared;
    schedule_shared_attention(step.batch(), step.shared(), shape, 1, 100, &shared);
    return shared;
  };
  const auto begin = [&](int32_t window) { return schedule(window).items.at(0).kv_begin; };
  CHECK(begin(0) == 0);
  CHECK(begin(1025) == 0);  // the fifth sequence's row, whose table it is, at 1024
  CHECK(schedule(0).items[0].block_start == 5 * kTableBlocks);
  CHECK(begin(961) == 64);  // sees 64 and what is behind
  CHECK(begin(962) == 0);
  CHECK(begin(200) == 768);
  CHECK(schedule(200).items[0].kv_end == 960);
  CHECK(schedule(60).items.empty());
  SharedAttentionSchedule full = schedule(0);
  for (const auto& [window, gains] : {std::pair{60, false}, {130, true}, {900, true}}) {
    AttentionShape shape;
    shape.num_heads = shape.num_kv_heads = 1;
    shape.head_dim = 64;
    shape.window = window;
    CHECK(gains_by_sharing(step.batch(), step.shared(), shape, 1, &full) == gains);
  }
}

// Positions read of a KV head, when every sequence takes the prefix that a choice among all antichains gives it.
int64_t most_saved(const Step& step, size_t first, int32_t seq_end, size_t* next) {
  int64_t total = 0;
  size_t i = first;
  while (i < step.prefixes.size() && step.prefixes[i].seq_begin < seq_end) {
    size_t behind = i + 1;
    const SharedPositions& p = step.prefixes[i];
    const int64_t within = most_saved(step, i + 1, p.seq_end, &behind);
    const int64_t count = p.seq_end - p.seq_begin;
    const int64_t own = std::max<int64_t>(0, int64_t{p.num_positions} / 64 * 64 * (count - 1) - kStatePositions * count);
    total += std::max(own, within);
    i = behind;
  }
  *next = i;
  return total;
}

TEST_CASE("of prefixes within prefixes those are shared that save the most") {
  std::mt19937 rng(4);
  int num_shared = 0;
  for (int i = 0; i < 500; ++i) {
    Step step = random_step(rng);
    for (size_t s = 0; s < step.context_len.size(); ++s)  // one token each
      step.context_len[s] += 1 - (step.query_start[s + 1] - step.query_start[s]);
    for (size_t s = 0; s < step.query_start.size(); ++s) step.query_start[s] = static_cast<int32_t>(s);
    AttentionShape shape;
    shape.num_heads = shape.num_kv_heads = 1;
    shape.head_dim = 64;
    shape.deterministic = true;
    SharedAttentionSchedule shared;
    schedule_shared_attention(step.batch(), step.shared(), shape, 1, 100, &shared);
    int64_t saved = 0;
    std::map<int32_t, std::pair<int64_t, int64_t>> by_block;  // first token's table: positions, sequences
    for (const AttentionItem& item : shared.items)
      by_block[item.query_start] = {item.kv_end, item.row_begin + item.num_rows};
    for (const auto& [first, of] : by_block) saved += of.first * (of.second - 1) - kStatePositions * of.second;
    size_t end = 0;
    const int64_t most = most_saved(step, 0, static_cast<int32_t>(step.seqs.size()), &end);
    const bool is_worth_it = most >= kLeastGainTiles * 64;
    CHECK(saved == (is_worth_it ? most : 0));
    num_shared += is_worth_it;
  }
  CHECK(num_shared > 200);
}

}  // namespace
}  // namespace llmb::cuda
