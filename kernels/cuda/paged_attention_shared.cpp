#include "kernels/cuda/paged_attention_shared.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "core/layer_groups.h"
#include "kernels/cuda/tuning.h"

namespace llmb::cuda {
namespace {

using namespace tuning;
using Chosen = SharedAttentionSchedule::Chosen;

// Where prefixes are not cut, more units of fewer rows keep more of the device busy.
int32_t unit_rows(const AttentionShape& shape, const AttentionTiling& tiling) {
  return shape.deterministic ? AttentionTiling::kTileRows : tiling.max_rows;
}

class SharedScheduler {
 public:
  SharedScheduler(const AttentionBatch& batch, const SharedAttentionBatch& shared, const AttentionShape& shape,
                  int32_t num_ctas, int64_t max_tokens, SharedAttentionSchedule* schedule)
      : batch_(batch),
        shared_(shared),
        shape_(shape),
        tiling_(attention_tiling(shape)),
        tile_(tiling_.wgmma ? AttentionTiling::kWgmmaTile : tiling_.kv_tile),
        unit_rows_(unit_rows(shape, tiling_)),
        max_ctas_(num_ctas),
        max_states_(
            shared_attention_limits(shape, num_ctas, batch.num_seqs, static_cast<int32_t>(max_tokens)).max_states),
        max_tokens_(max_tokens),
        schedule_(*schedule) {}

  void run() {
    schedule_.tokens.clear();
    schedule_.items.clear();
    schedule_.states.assign(static_cast<size_t>(batch_.num_seqs), SharedStates());
    weigh();
    if (!choose()) return;
    schedule_.uses_wgmma = tiling_.wgmma && std::any_of(schedule_.chosen.begin(), schedule_.chosen.end(), [&](auto& c) {
                             return c.num_tokens * shape_.group() > AttentionTiling::kTileRows;
                           });
    num_ctas_ = shared_ctas(tiling_, max_ctas_, schedule_.uses_wgmma);
    schedule_.cta_start.assign(static_cast<size_t>(num_ctas_) + 1, 0);
    cut();
    place_states();
    make_items();
  }

  // The prefixes that are chosen, all together.
  bool is_worth_it() const {
    int64_t total = 0;
    for (const Chosen& c : schedule_.chosen) total += gain_of(c.prefix);
    return is_worth(total);
  }

 private:
  int32_t num_tokens(int32_t seq) const { return batch_.query_start[seq + 1] - batch_.query_start[seq]; }
  bool takes_part(int32_t seq) const { return shares_positions(shape_, num_tokens(seq)); }
  std::span<const int32_t> seqs(const SharedPositions& prefix) const {
    return shared_.seqs.subspan(static_cast<size_t>(prefix.seq_begin),
                                static_cast<size_t>(prefix.seq_end - prefix.seq_begin));
  }
  int32_t num_tiles(const SharedPositions& prefix) const { return prefix.num_positions / tile_; }
  int32_t least_position(int32_t seq) const {
    return shared_.least_position != nullptr ? shared_.least_position[seq] : batch_.context_len[seq] - num_tokens(seq);
  }
  // The first of the prefix's tiles that a row at `position` or behind it sees.
  int32_t first_tile(const SharedPositions& prefix, int32_t position) const {
    return std::min(first_seen(shape_.window, position) / tile_, num_tiles(prefix));
  }
  int32_t first_tile(const Chosen& c) const { return first_tile(c.prefix, least_position(c.widest_seq)); }

  // Positions of a KV head that need not be read again, less what states cost.
  int64_t gain_of(const SharedPositions& prefix) const {
    int64_t total = 0, most = 0, num_rows = 0;
    for (const int32_t seq : seqs(prefix)) {
      if (!takes_part(seq)) continue;
      const int64_t num_seen =
          std::max(0, num_tiles(prefix) * tile_ - first_seen(shape_.window, least_position(seq)));
      total += num_seen;
      most = std::max(most, num_seen);
      num_rows += int64_t{num_tokens(seq)} * shape_.group();
    }
    return std::max<int64_t>(0, total - most - shared_.state_positions * num_rows);
  }
  bool is_worth(int64_t gain) const {
    return gain * shape_.num_kv_heads >=
           int64_t{shared_.least_gain_tiles} * tiling_.kv_tile * shared_ctas(tiling_, max_ctas_, /*uses_wgmma=*/false);
  }

  // gain: of each prefix by itself; best: the most that it or prefixes within it gain.
  void weigh() {
    const size_t count = shared_.prefixes.size();
    schedule_.gain.resize(count);
    schedule_.best.assign(count, 0);
    schedule_.parent.assign(count, -1);
    for (size_t i = 0; i < count; ++i) {
      schedule_.gain[i] = gain_of(shared_.prefixes[i]);
      int32_t around = static_cast<int32_t>(i) - 1;
      while (around >= 0 && shared_.prefixes[around].seq_end < shared_.prefixes[i].seq_end)
        around = schedule_.parent[around];
      schedule_.parent[i] = around;
    }
    for (size_t i = count; i-- > 0;) {
      schedule_.best[i] = std::max(schedule_.best[i], schedule_.gain[i]);
      if (schedule_.parent[i] >= 0) schedule_.best[schedule_.parent[i]] += schedule_.best[i];
    }
  }

  // Whether there is anything to share. A prefix that gains as much as all within it stands for them.
  bool choose() {
    schedule_.chosen.clear();
    std::vector<char>& is_covered = schedule_.is_covered;
    is_covered.assign(shared_.prefixes.size(), 0);
    int64_t total = 0;
    for (size_t i = 0; i < shared_.prefixes.size(); ++i) {
      if (const int32_t around = schedule_.parent[i]; around >= 0) is_covered[i] = is_covered[around];
      if (is_covered[i] || schedule_.gain[i] == 0 || schedule_.gain[i] < schedule_.best[i]) continue;
      if (!add_tokens(shared_.prefixes[i])) continue;
      is_covered[i] = 1;
      total += schedule_.gain[i];
    }
    return is_worth(total);
  }

  bool add_tokens(const SharedPositions& prefix) {
    std::vector<int32_t>& tokens = schedule_.tokens;
    const size_t first = tokens.size();
    int32_t widest_seq = -1;
    for (const int32_t seq : seqs(prefix)) {
      if (!takes_part(seq)) continue;
      if (widest_seq < 0 || least_position(seq) < least_position(widest_seq)) widest_seq = seq;
      for (int32_t row = batch_.query_start[seq]; row < batch_.query_start[seq + 1]; ++row) tokens.push_back(row);
    }
    if (static_cast<int64_t>(tokens.size()) > max_tokens_) {
      tokens.resize(first);
      return false;
    }
    const auto count = static_cast<int32_t>(tokens.size() - first);
    const int64_t num_units = ceil_div(int64_t{count} * shape_.group(), unit_rows_);
    schedule_.chosen.push_back(
        {prefix, static_cast<int32_t>(first), count, static_cast<int32_t>(num_units), 1, widest_seq});
    return true;
  }

  // Into pieces, so that there is one for each block of the grid, as far as states have room.
  void cut() {
    if (shape_.deterministic) return;
    int64_t total = 0;
    for (const Chosen& c : schedule_.chosen)
      total += int64_t{c.num_units} * shape_.num_kv_heads * (num_tiles(c.prefix) - first_tile(c));
    const int64_t least = schedule_.uses_wgmma ? kWgmmaMinTiles : kTallMinTiles;
    int64_t tiles_of_piece = std::max(least, ceil_div(total, num_ctas_));
    for (int64_t num_states = max_states_ + 1; num_states > max_states_; tiles_of_piece *= 2) {
      num_states = 0;
      for (Chosen& c : schedule_.chosen) {
        c.num_pieces = static_cast<int32_t>(
            std::clamp<int64_t>((num_tiles(c.prefix) - first_tile(c)) / tiles_of_piece, 1, kMaxStatePieces));
        num_states += int64_t{c.num_pieces} * c.num_tokens * shape_.num_heads;
      }
    }
  }

  void place_states() {
    int32_t first = 0;
    for (const Chosen& c : schedule_.chosen) {
      const int32_t stride = c.num_tokens * shape_.num_heads;
      int32_t own = first;
      for (const int32_t seq : seqs(c.prefix)) {
        if (!takes_part(seq)) continue;
        schedule_.states[seq] = {num_tiles(c.prefix) * tile_, own, c.num_pieces, stride};
        own += num_tokens(seq) * shape_.num_heads;
      }
      first += stride * c.num_pieces;
    }
  }

  // The costliest first, each to the block with the least to do.
  void make_items() {
    std::vector<AttentionItem>& items = schedule_.items;
    for (const Chosen& c : schedule_.chosen)
      for (int32_t unit = 0; unit < c.num_units; ++unit)
        for (int32_t piece = 0; piece < c.num_pieces; ++piece)
          for (int32_t head = 0; head < shape_.num_kv_heads; ++head) items.push_back(make_item(c, unit, piece, head));
    const auto cost = [&](const AttentionItem& item) {
      const bool is_tall = schedule_.uses_wgmma || item.num_rows > AttentionTiling::kTileRows;
      const int64_t rate = is_tall ? kTallestTileCost : kTallTileCost;
      return (item.kv_end - item.kv_begin) * rate;
    };
    std::stable_sort(items.begin(), items.end(),
                     [&](const AttentionItem& a, const AttentionItem& b) { return cost(a) > cost(b); });
    std::vector<std::pair<int64_t, int32_t>>& loads = schedule_.loads;
    loads.clear();
    for (int32_t cta = 0; cta < num_ctas_; ++cta) loads.emplace_back(0, cta);
    schedule_.cta.clear();
    for (const AttentionItem& item : items) {
      std::pop_heap(loads.begin(), loads.end(), std::greater<>());
      schedule_.cta.push_back(loads.back().second);
      loads.back().first += cost(item) + kTallItemCost * tile_;
      std::push_heap(loads.begin(), loads.end(), std::greater<>());
    }
    sort_by_cta();
  }

  void sort_by_cta() {
    std::vector<int32_t>& start = schedule_.cta_start;
    for (const int32_t cta : schedule_.cta) ++start[cta + 1];
    for (int32_t cta = 0; cta < num_ctas_; ++cta) start[cta + 1] += start[cta];
    std::vector<int32_t> next(start.begin(), start.end() - 1);
    std::vector<AttentionItem> sorted(schedule_.items.size());
    for (size_t i = 0; i < sorted.size(); ++i) sorted[next[schedule_.cta[i]]++] = schedule_.items[i];
    schedule_.items = std::move(sorted);
  }

  AttentionItem make_item(const Chosen& c, int32_t unit, int32_t piece, int32_t head) const {
    const int32_t first = first_tile(c), tiles = num_tiles(c.prefix) - first;
    const auto position_of = [&](int32_t p) {
      return (first + static_cast<int32_t>(int64_t{tiles} * p / c.num_pieces)) * tile_;
    };
    AttentionItem item{};
    item.query_start = c.first_token;
    item.block_start = batch_.block_start[c.widest_seq];
    item.kv_head = head;
    item.row_begin = unit * unit_rows_;
    item.first_position = least_position(c.widest_seq) - item.row_begin / shape_.group();
    item.num_rows = std::min(unit_rows_, c.num_tokens * shape_.group() - item.row_begin);
    item.kv_begin = position_of(piece);
    item.kv_end = position_of(piece + 1);
    item.partial = item.first_partial = -1;
    item.num_pieces = 1;
    item.shared.first = first_state(c) + piece * c.num_tokens * shape_.num_heads;
    return item;
  }

  // The prefix's first sequence that takes part has the first states.
  int32_t first_state(const Chosen& c) const {
    for (const int32_t seq : seqs(c.prefix))
      if (takes_part(seq)) return schedule_.states[seq].first;
    return 0;
  }

  const AttentionBatch& batch_;
  const SharedAttentionBatch& shared_;
  const AttentionShape& shape_;
  const AttentionTiling tiling_;
  const int32_t tile_;  // positions: a multiple of every kernel's that goes on from states
  const int32_t unit_rows_;
  const int32_t max_ctas_;
  int32_t num_ctas_ = 0;
  const int64_t max_states_, max_tokens_;
  SharedAttentionSchedule& schedule_;
};

}  // namespace

int32_t shared_ctas(const AttentionTiling& tiling, int32_t num_ctas, bool uses_wgmma) {
  const int32_t first = tiling.first_wgmma_cta(num_ctas);
  return uses_wgmma ? num_ctas - first : first;
}

bool can_share_positions(const AttentionShape& shape) {
  const AttentionTiling tiling = attention_tiling(shape);
  return !tiling.scalar && !tiling.wide && shape.later == 0 && shape.chunk == 0;
}

bool shares_positions(const AttentionShape& shape, int32_t num_tokens) {
  return num_tokens > 0 && num_tokens <= AttentionTiling::kTileRows / shape.group();
}

SharedAttentionLimits shared_attention_limits(const AttentionShape& shape, int32_t num_ctas, int32_t max_num_seqs,
                                              int32_t max_num_tokens) {
  const AttentionTiling tiling = attention_tiling(shape);
  const int64_t max_units = int64_t{max_num_tokens} * shape.group() / unit_rows(shape, tiling) + max_num_seqs / 2;
  SharedAttentionLimits limits;
  limits.max_tokens = max_num_tokens;
  limits.max_items = max_units * shape.num_kv_heads + tiling.first_wgmma_cta(num_ctas);
  limits.max_states = int64_t{max_num_tokens} * shape.num_heads;
  if (!shape.deterministic) limits.max_states += int64_t{num_ctas} * tiling.max_rows;
  return limits;
}

void schedule_shared_attention(const AttentionBatch& batch, const SharedAttentionBatch& shared,
                               const AttentionShape& shape, int32_t num_ctas, int64_t max_tokens,
                               SharedAttentionSchedule* schedule) {
  LLMB_CHECK(num_ctas > 0 && !attention_tiling(shape).scalar);
  SharedScheduler(batch, shared, shape, num_ctas, max_tokens, schedule).run();
}

bool gains_by_sharing(const AttentionBatch& batch, const SharedAttentionBatch& shared, const AttentionShape& shape,
                      int32_t num_ctas, SharedAttentionSchedule* schedule) {
  return SharedScheduler(batch, shared, shape, num_ctas, /*max_tokens=*/0, schedule).is_worth_it();
}

}  // namespace llmb::cuda
