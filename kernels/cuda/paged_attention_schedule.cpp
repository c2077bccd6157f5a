// Cost goes by tiles of positions. Units are handed out whole, the longest first, each to the block with the least to
// do, where that is even enough. Otherwise only those of more than a few rows (prefill) are, and then blocks are filled
// up to one level with the positions of decode-like units, cut wherever a block is full (as Stream-K cuts matrix
// products). Where the prefill units alone are too few or too uneven for that, they are cut too.
#include "kernels/cuda/paged_attention_schedule.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "kernels/cuda/tuning.h"

namespace llmb::cuda {
namespace {

using Unit = AttentionSchedule::Unit;
using Piece = AttentionSchedule::Piece;

using namespace tuning;

bool is_small(const Unit& unit) { return unit.num_rows <= AttentionTiling::kSmallRows; }
int32_t min_tiles(const Unit& unit) {
  return is_small(unit) ? kSmallMinTiles : unit.wgmma ? kWgmmaMinTiles : kTallMinTiles;
}

void set_cost(const AttentionTiling& tiling, bool deterministic, Unit* unit) {
  const bool few = is_small(*unit) && !deterministic;
  unit->item_cost = few ? kSmallItemCost : kTallItemCost;
  if (tiling.scalar) {
    unit->tile_cost = kSmallTileCost * static_cast<int32_t>(ceil_div(unit->num_rows, 4));
  } else if (few) {
    unit->tile_cost = kSmallTileCost;
  } else if (unit->wgmma) {
    unit->tile_cost = kWgmmaTileCost;
  } else {
    unit->tile_cost = unit->num_rows <= AttentionTiling::kTileRows ? kTallTileCost : kTallestTileCost;
  }
}

// The row behind the last one in the chunk of `row`, both counted from a sequence's first new token.
int64_t end_of_chunk(const AttentionShape& shape, int32_t first_position, int64_t row) {
  if (shape.chunk == 0) return INT64_MAX;
  const int64_t position = first_position + row / shape.group();
  return ((position / shape.chunk + 1) * shape.chunk - first_position) * shape.group();
}

void make_units(const AttentionBatch& batch, const AttentionShape& shape, const AttentionTiling& tiling,
                std::vector<Unit>* units) {
  units->clear();
  for (int32_t s = 0; s < batch.num_seqs; ++s) {
    if (batch.is_left_out != nullptr && batch.is_left_out[s] != 0) continue;
    const int32_t num_tokens = batch.query_start[s + 1] - batch.query_start[s];
    const int32_t first_position = batch.context_len[s] - num_tokens;
    LLMB_CHECK(num_tokens >= 0 && first_position >= 0);
    const int64_t num_rows = int64_t{num_tokens} * shape.group();
    for (int64_t row = 0, end = 0; row < num_rows; row = end) {
      Unit unit{};
      unit.seq = s;
      unit.row_begin = static_cast<int32_t>(row);
      end = std::min({row + tiling.max_rows, num_rows, end_of_chunk(shape, first_position, row)});
      unit.num_rows = static_cast<int32_t>(end - row);
      unit.wgmma = tiling.only_wgmma || (tiling.wgmma && unit.num_rows > AttentionTiling::kTileRows);
      unit.kv_tile = unit.wgmma ? AttentionTiling::kWgmmaTile : tiling.kv_tile;
      const int32_t first_token = unit.row_begin / shape.group();
      const int32_t last_token = (unit.row_begin + unit.num_rows - 1) / shape.group();
      const int32_t position = first_position + first_token;
      const int32_t first_seen = shape.chunk > 0    ? position / shape.chunk * shape.chunk
                                 : shape.window > 0 ? std::max(0, position + shape.later - (shape.window - 1))
                                                    : 0;
      unit.kv_begin = first_seen / unit.kv_tile * unit.kv_tile;
      if (batch.shared != nullptr) {
        unit.kv_begin = batch.shared[s].num_positions;
        LLMB_CHECK(shape.window == 0 && shape.later == 0 && shape.chunk == 0);
        LLMB_CHECK(unit.kv_begin <= first_position && unit.kv_begin % unit.kv_tile == 0);
      }
      unit.kv_end = std::min(batch.context_len[s], first_position + last_token + shape.later + 1);
      unit.num_tiles = static_cast<int32_t>(ceil_div(unit.kv_end - unit.kv_begin, unit.kv_tile));
      set_cost(tiling, shape.deterministic, &unit);
      units->push_back(unit);
    }
  }
}

// Hands out units to the blocks [cta_begin, cta_end).
class Balancer {
 public:
  Balancer(int32_t num_kv_heads, int32_t cta_begin, int32_t cta_end, AttentionSchedule* schedule)
      : num_kv_heads_(num_kv_heads),
        cta_begin_(cta_begin),
        cta_end_(cta_end),
        schedule_(*schedule),
        load_(schedule->cta_cost),
        num_pieces_before_(schedule->pieces.size()),
        num_partial_rows_before_(schedule->num_partial_rows),
        num_splits_before_(schedule->num_splits) {}

  void start_over() {
    schedule_.pieces.resize(num_pieces_before_);
    schedule_.num_partial_rows = num_partial_rows_before_;
    schedule_.num_splits = num_splits_before_;
    std::fill(load_.begin() + cta_begin_, load_.begin() + cta_end_, 0);
  }

  int32_t num_ctas() const { return cta_end_ - cta_begin_; }
  int64_t highest() const { return *std::max_element(load_.begin() + cta_begin_, load_.begin() + cta_end_); }

  template <typename Chosen>
  int64_t total_cost(const Chosen& chosen) const {
    int64_t total = 0;
    for (const Unit& unit : schedule_.units)
      if (chosen(unit)) total += num_kv_heads_ * unit.cost(unit.num_tiles);
    return total;
  }

  // The load that all blocks reach when `cost` more is spread over them.
  int64_t level(int64_t cost) const {
    std::vector<int64_t>& sorted = schedule_.by_cost;
    sorted.assign(load_.begin() + cta_begin_, load_.begin() + cta_end_);
    std::sort(sorted.begin(), sorted.end());
    int64_t below = 0;  // sum of the loads that are under the level
    for (int64_t n = 1; n < num_ctas(); ++n) {
      below += sorted[n - 1];
      const int64_t level = ceil_div(below + cost, n);
      if (level <= sorted[n]) return level;
    }
    return ceil_div(below + sorted.back() + cost, num_ctas());
  }

  // Blocks with less than this to do would cut units into too many or too small pieces.
  template <typename Chosen>
  int64_t least_level(const Chosen& chosen) const {
    int64_t least = 0;
    for (const Unit& unit : schedule_.units)
      if (chosen(unit)) least = std::max(least, unit.cost(std::max(min_tiles(unit), unit.num_tiles / kMaxPieces)));
    return least;
  }

  // Whole units, the costliest first, each to the block with the least to do. Blocks wait in buckets by load, fine
  // enough that which of a bucket comes first does not matter.
  template <typename Chosen>
  void place_whole(const Chosen& chosen) {
    constexpr int64_t kBuckets = 2048;
    const std::vector<Unit>& units = schedule_.units;
    std::vector<int32_t>& order = schedule_.order;
    order.clear();
    int64_t max_cost = 0;
    for (size_t i = 0; i < units.size(); ++i) {
      if (!chosen(units[i])) continue;
      order.push_back(static_cast<int32_t>(i));
      max_cost = std::max(max_cost, units[i].cost(units[i].num_tiles));
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return units[a].cost(units[a].num_tiles) > units[b].cost(units[b].num_tiles);
    });
    const int64_t width = (total_cost(chosen) / num_ctas() + max_cost) / kBuckets + 1;
    std::vector<int32_t>& bucket = schedule_.bucket;
    std::vector<int32_t>& next = schedule_.next_cta;
    bucket.assign(kBuckets + 2, -1);
    next.assign(static_cast<size_t>(cta_end_), -1);
    const auto put_back = [&](int32_t cta) {
      int32_t& first = bucket[load_[cta] / width];
      next[cta] = first;
      first = cta;
    };
    for (int32_t cta = cta_end_ - 1; cta >= cta_begin_; --cta) put_back(cta);
    size_t lowest = 0;
    for (const int32_t unit : order) {
      for (int32_t head = 0; head < num_kv_heads_; ++head) {
        while (bucket[lowest] < 0) ++lowest;
        const int32_t cta = bucket[lowest];
        bucket[lowest] = next[cta];
        place(unit, head, 0, units[unit].num_tiles, cta);
        put_back(cta);
      }
    }
  }

  // Fills blocks in order up to `level` with the tiles of the chosen units, in order, cutting units at full blocks.
  // Later blocks make up for what a block is under or over the level, as pieces have a least size.
  template <typename Chosen>
  void fill(const Chosen& chosen, int64_t level) {
    const std::vector<Unit>& units = schedule_.units;
    int32_t cta = cta_begin_;
    int64_t room = std::max<int64_t>(0, level - load_[cta]);
    for (size_t i = 0; i < units.size(); ++i) {
      const Unit& unit = units[i];
      if (!chosen(unit)) continue;
      for (int32_t head = 0; head < num_kv_heads_; ++head) {
        const size_t first_piece = schedule_.pieces.size();
        for (int32_t tile = 0; tile < unit.num_tiles;) {
          const int32_t num_tiles = cta == cta_end_ - 1 ? unit.num_tiles - tile : tiles_for(unit, tile, room);
          if (num_tiles > 0) {
            place(static_cast<int32_t>(i), head, tile, tile + num_tiles, cta);
            room -= unit.cost(num_tiles);
            tile += num_tiles;
          }
          if (tile < unit.num_tiles) {
            ++cta;
            room += std::max<int64_t>(0, level - load_[cta]);
          }
        }
        if (schedule_.pieces.size() - first_piece > 1) name_pieces(unit, first_piece);
      }
    }
  }

 private:
  // How many of the unit's tiles from `tile` on go to a block that has room for this cost: all, none, or a piece.
  static int32_t tiles_for(const Unit& unit, int32_t tile, int64_t room) {
    const int32_t rest = unit.num_tiles - tile, least = min_tiles(unit);
    const int64_t fit = (room - unit.item_cost) / unit.tile_cost;
    if (fit >= rest) return rest;
    if (rest < 2 * least) return 2 * room >= unit.cost(rest) ? rest : 0;
    if (fit < least) return 0;
    return std::min(static_cast<int32_t>(fit), rest - least);
  }

  void place(int32_t unit, int32_t head, int32_t tile_begin, int32_t tile_end, int32_t cta) {
    schedule_.pieces.push_back({unit, head, tile_begin, tile_end, cta, -1, -1, 1, -1});
    load_[cta] += schedule_.units[unit].cost(tile_end - tile_begin);
  }

  void name_pieces(const Unit& unit, size_t first_piece) {
    const std::span<Piece> pieces = std::span(schedule_.pieces).subspan(first_piece);
    const int32_t first_partial = schedule_.num_partial_rows;
    for (Piece& piece : pieces) {
      piece.partial = schedule_.num_partial_rows;
      piece.first_partial = first_partial;
      piece.num_pieces = static_cast<int32_t>(pieces.size());
      piece.split = schedule_.num_splits;
      schedule_.num_partial_rows += unit.num_rows;
    }
    ++schedule_.num_splits;
  }

  const int64_t num_kv_heads_;
  const int32_t cta_begin_, cta_end_;
  AttentionSchedule& schedule_;
  std::vector<int64_t>& load_;
  const size_t num_pieces_before_;
  const int32_t num_partial_rows_before_, num_splits_before_;
};

// The units of one launch, which are cut only where the most that a block has to do is least_gain above the even load.
template <typename Mine>
void balance(const Mine& mine, bool may_cut, int64_t least_gain, Balancer balancer) {
  const auto small = [&](const Unit& unit) { return mine(unit) && is_small(unit); };
  const auto tall = [&](const Unit& unit) { return mine(unit) && !is_small(unit); };
  if (balancer.num_ctas() == 0) return;
  // Each block's last unit is likely to be cut, which costs another item.
  const auto level = [&](const auto& chosen, int64_t cost, int32_t item_cost) {
    return std::max(balancer.least_level(chosen), balancer.level(cost + int64_t{balancer.num_ctas()} * item_cost));
  };
  const int64_t cost_of_mine = balancer.total_cost(mine), cost_of_small = balancer.total_cost(small);
  const int64_t even = level(mine, cost_of_mine, cost_of_small > 0 ? kSmallItemCost : kTallItemCost);
  balancer.place_whole(mine);
  if (!may_cut || 100 * balancer.highest() <= kEvenPercent * even || balancer.highest() - even < least_gain) return;
  if (cost_of_small > 0) {
    balancer.start_over();
    balancer.place_whole(tall);
    if (100 * balancer.highest() <= kEvenTallPercent * even)
      return balancer.fill(small, level(small, cost_of_small, kSmallItemCost));
  }
  balancer.start_over();
  balancer.fill(mine, level(mine, cost_of_mine, kTallItemCost));
}

void balance(const AttentionShape& shape, const AttentionTiling& tiling, int32_t num_ctas,
             AttentionSchedule* schedule) {
  schedule->pieces.clear();
  schedule->num_partial_rows = schedule->num_splits = 0;
  schedule->cta_cost.assign(static_cast<size_t>(num_ctas), 0);
  const bool may_cut = !shape.deterministic;
  const int64_t least_gain = shape.later > 0 ? kBothWaysLeastGain : 0;
  const int32_t middle = tiling.first_wgmma_cta(num_ctas);
  balance([](const Unit& unit) { return !unit.wgmma; }, may_cut, least_gain,
          Balancer(shape.num_kv_heads, 0, middle, schedule));
  if (tiling.wgmma)
    balance([](const Unit& unit) { return unit.wgmma; }, may_cut, least_gain,
            Balancer(shape.num_kv_heads, middle, num_ctas, schedule));
}

AttentionItem make_item(const AttentionBatch& batch, const Unit& unit, const Piece& piece) {
  AttentionItem item{};
  item.query_start = batch.query_start[unit.seq];
  item.first_position = batch.context_len[unit.seq] - (batch.query_start[unit.seq + 1] - item.query_start);
  item.block_start = batch.block_start[unit.seq];
  item.kv_head = piece.kv_head;
  item.row_begin = unit.row_begin;
  item.num_rows = unit.num_rows;
  item.kv_begin = unit.kv_begin + piece.tile_begin * unit.kv_tile;
  item.kv_end = piece.tile_end == unit.num_tiles ? unit.kv_end : unit.kv_begin + piece.tile_end * unit.kv_tile;
  item.partial = piece.partial;
  item.first_partial = piece.first_partial;
  item.num_pieces = piece.num_pieces;
  item.split = piece.split;
  if (batch.shared != nullptr && piece.tile_begin == 0) {
    item.shared = batch.shared[unit.seq];
    item.kv_begin = 0;
  }
  return item;
}

// Items by block, in the order in which they were placed.
void write_items(const AttentionBatch& batch, int32_t num_ctas, AttentionSchedule* schedule) {
  std::vector<int32_t>& start = schedule->cta_start;
  start.assign(static_cast<size_t>(num_ctas) + 1, 0);
  for (const Piece& piece : schedule->pieces) ++start[piece.cta + 1];
  for (int32_t cta = 0; cta < num_ctas; ++cta) start[cta + 1] += start[cta];
  std::vector<int32_t>& next = schedule->next_cta;
  next.assign(start.begin(), start.end() - 1);
  schedule->items.resize(schedule->pieces.size());
  for (const Piece& piece : schedule->pieces)
    schedule->items[next[piece.cta]++] = make_item(batch, schedule->units[piece.unit], piece);
}

}  // namespace

namespace {

// Keys and values in one pool: 64 rows of 256 channels, or 128 of fewer.
AttentionTiling joined_tiling(const AttentionShape& shape) {
  const int32_t dim = shape.head_dim, value_dim = shape.joined_value_dim;
  const bool fits = (dim <= 192 && value_dim <= 128) || (dim == value_dim && dim <= 256);
  if (shape.dtype == DType::kF32 || dim % 8 != 0 || value_dim % 8 != 0 || shape.block_size % 8 != 0 || !fits)
    return {.scalar = true, .padded_dim = dim, .max_rows = 16, .kv_tile = 32, .ctas_per_sm = 8};
  if (shape.hopper && dim == 192 && value_dim == 128)
    return {.scalar = false, .padded_dim = 192, .max_rows = 128, .kv_tile = AttentionTiling::kWgmmaTile, .ctas_per_sm = 1,
            .wgmma = true, .only_wgmma = true};
  if (dim <= 192 && value_dim <= 128)
    return {.scalar = false, .padded_dim = 192, .max_rows = 128, .kv_tile = 32, .ctas_per_sm = 2};
  return {.scalar = false, .padded_dim = 256, .max_rows = 64, .kv_tile = 32, .ctas_per_sm = 2};
}

}  // namespace

AttentionTiling attention_tiling(const AttentionShape& shape) {
  if (shape.joined_value_dim > 0) return joined_tiling(shape);
  const int32_t dim = shape.head_dim;
  // Keys of 512 channels, and latents of up to 512 behind 64 rotated channels.
  const bool is_masked = shape.later > 0 || shape.chunk > 0;  // at a tile's borders
  const bool is_wide = shape.latent_dim > 0 ? dim - shape.latent_dim == 64 && dim <= 576 : dim > 256 && dim <= 512;
  const bool has_rows = shape.block_stride == 0 || (shape.block_stride % dim == 0 && shape.block_stride % 8 == 0);
  if (shape.dtype == DType::kF32 || dim % 8 != 0 || shape.block_size % 8 != 0 || !has_rows ||
      (is_wide ? shape.kv_code != KvCode::kNone : dim > 256 || shape.latent_dim > 0))
    return {.scalar = true, .padded_dim = dim, .max_rows = 16, .kv_tile = 32, .ctas_per_sm = 8};
  if (is_wide)
    return {.scalar = false, .padded_dim = dim, .max_rows = 64, .kv_tile = 32, .ctas_per_sm = 1, .wide = true};
  // Tensor copies bring rows of 64 elements, as wgmma takes them, so of no bytes. Their tiles differ from those of the
  // other kernel, so its bits do too.
  const bool wgmma = shape.hopper && !shape.deterministic && shape.kv_code == KvCode::kNone && shape.block_stride == 0 &&
                     !is_masked && (dim == 64 || dim == 128);
  for (const int32_t padded : {64, 80, 96, 128})
    if (dim <= padded)
      return {.scalar = false,
              .padded_dim = padded,
              .max_rows = 128,
              .kv_tile = 64,
              .ctas_per_sm = wgmma ? 3 : 2,
              .wgmma = wgmma};
  return {.scalar = false, .padded_dim = 256, .max_rows = 64, .kv_tile = 32, .ctas_per_sm = 2};
}

AttentionLimits attention_limits(const AttentionShape& shape, int32_t num_ctas, int32_t max_num_seqs,
                                 int32_t max_num_tokens) {
  const AttentionTiling tiling = attention_tiling(shape);
  const int64_t max_cuts = shape.deterministic ? 0 : num_ctas - 1;
  AttentionLimits limits;
  limits.max_items =
      shape.num_kv_heads * (int64_t{max_num_tokens} * shape.group() / tiling.max_rows + max_num_seqs) + max_cuts;
  if (shape.chunk > 0) limits.max_items += shape.num_kv_heads * (int64_t{max_num_tokens} / shape.chunk + max_num_seqs);
  limits.max_partial_rows = 2 * max_cuts * tiling.max_rows;
  limits.max_splits = max_cuts;
  return limits;
}

void schedule_attention(const AttentionBatch& batch, const AttentionShape& shape, int32_t num_ctas,
                        AttentionSchedule* schedule) {
  LLMB_CHECK(num_ctas > 0 && shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0);
  LLMB_CHECK(shape.head_dim > 0 && shape.block_size > 0 && shape.window >= 0);
  LLMB_CHECK(shape.later >= 0 && shape.later <= AttentionShape::kAllLater);
  LLMB_CHECK(shape.chunk >= 0 && (shape.chunk == 0 || (shape.window == 0 && shape.later == 0)));
  const AttentionTiling tiling = attention_tiling(shape);
  LLMB_CHECK(!tiling.wgmma || tiling.only_wgmma || num_ctas % 3 == 0);
  make_units(batch, shape, tiling, &schedule->units);
  balance(shape, tiling, num_ctas, schedule);
  write_items(batch, num_ctas, schedule);
}

}  // namespace llmb::cuda
