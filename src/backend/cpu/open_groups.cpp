#include "backend/cpu/open_groups.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace llmb {

namespace {

int64_t group_bytes(const KvLayout& kv) {
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < kv.num_layers; ++layer) {
    const KvHeads heads = kv.heads_of(layer);
    const cpu::KvCacheView view{nullptr, DType::kBF16, kKvGroup, heads.num_heads, heads.head_dim};
    bytes = std::max(bytes, view.block_bytes());
  }
  return ceil_div(bytes, 64) * 64;
}

// Rows of a step lie in so many groups at most beside the newest ones of their sequences: two rows may lie in two.
int64_t max_shared_places(const LoadOptions& options) {
  const int64_t rows = options.max_num_batched_tokens;
  return rows / kKvGroup + std::min<int64_t>(options.max_num_seqs, rows) + 1;
}

}  // namespace

Status check_int4_kv(const ModelConfig& config, const LoadOptions& options) {
  const std::string name = "kv-cache-dtype int4: ";
  const auto not_with = [&](const std::string& what) {
    return unsupported(name + "not with " + what + "; use bfloat16 or int8");
  };
  const std::string model = "model_type \"" + config.model_type + "\", ";
  if (options.block_size % kKvGroup != 0)
    return invalid_argument(name + "blocks hold whole groups of " + std::to_string(kKvGroup) +
                            " tokens; block_size is " + std::to_string(options.block_size));
  if (config.has_latent()) return not_with(model + "whose cache holds latents");
  if (config.has_states()) return not_with(model + "which has recurrent states");
  if (config.is_encoder) return not_with(model + "whose tokens see those behind them");
  for (int32_t layer = 0; layer < config.num_used_layers(); ++layer)
    if (config.head_dim_of(layer) % 2 != 0) return not_with(model + "whose heads have an odd size");
  if (options.drafting_layers > 0 || config.mtp.is_used || !options.eagle_dir.empty())
    return not_with("layers that draft over the model's own cache");
  return {};
}

int32_t OpenGroups::num_slots(const LoadOptions& options) {
  StateLayout layout;
  layout.keep_snapshots(0, options.max_num_seqs);
  return layout.num_slots;
}

int64_t OpenGroups::slot_bytes(const KvLayout& kv, const LoadOptions& options) {
  return kv.num_layers * groups_per_slot(options) * group_bytes(kv);
}

OpenGroups::OpenGroups(const ModelConfig& config, const KvLayout& kv, const LoadOptions& options)
    : layout_(kv),
      num_layers_(kv.num_layers),
      groups_per_slot_(groups_per_slot(options)),
      num_own_(num_slots(options) * groups_per_slot_),
      num_shared_(max_shared_places(options)),
      set_of_(static_cast<size_t>(kv.num_layers)),
      group_bytes_(group_bytes(kv)) {
  int32_t num_sets = 1;
  for (int32_t layer = 0; layer < num_layers_; ++layer) {
    const int32_t source = config.kv_layer_of(layer);
    if (source == layer) continue;
    int32_t& set = set_of_[static_cast<size_t>(source)];
    if (set == 0) set = num_sets++;
  }
  const int64_t num_groups = int64_t{num_layers_} * num_own_ + num_sets * num_shared_;
  if (num_groups > INT32_MAX / kKvGroup) throw std::bad_alloc();  // slots are 32-bit
  memory_ = MappedFloats(num_groups * group_bytes_ / 4);
}

cpu::KvCacheView OpenGroups::view(int32_t layer) const {
  const KvHeads heads = layout_.heads_of(layer);
  auto* const data = reinterpret_cast<uint8_t*>(memory_.data());
  return {data + layer * int64_t{num_own_} * group_bytes_, DType::kBF16, kKvGroup, heads.num_heads, heads.head_dim,
          group_bytes_};
}

void OpenGroups::begin_step(const StepPlan& plan, const ResolvedStep& step, ThreadPool& pool) {
  plan_ = &plan;
  step_ = &step;
  places_.assign(plan.tokens.size(), {});
  moves_.clear();
  closings_.clear();
  if (!plan.hidden_rows.empty()) return;  // no layer runs
  const auto num_copies = static_cast<int64_t>(plan.state_copies.size());
  pool.parallel_for(num_copies * num_layers_, [&](int64_t task, int) {
    const StateCopy& copy = plan.state_copies[static_cast<size_t>(task / num_layers_)];
    uint8_t* const data = view(static_cast<int32_t>(task % num_layers_)).data;
    const int64_t bytes = groups_per_slot_ * group_bytes_;
    std::memcpy(data + copy.to * bytes, data + copy.from * bytes, static_cast<size_t>(bytes));
  });
  int32_t num_shared = 0;
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const int32_t first_row = plan.query_start[e], end_row = plan.query_start[e + 1];
    const int32_t begin = step.positions[first_row], end = begin + end_row - first_row;
    const int32_t newest = (end - 1) / kKvGroup, slot = plan.entries[e].state_slot * groups_per_slot_;
    for (int32_t group = begin / kKvGroup; group <= newest; ++group) {
      Place place{slot + group % groups_per_slot_, false};
      if (group <= newest - groups_per_slot_) {
        const Place shared{num_shared++, true};
        if (group * kKvGroup < begin) moves_.push_back({place, shared});
        place = shared;
      }
      const int32_t from = std::max(begin, group * kKvGroup), to = std::min(end, (group + 1) * kKvGroup);
      for (int32_t position = from; position < to; ++position) places_[first_row + position - begin] = place;
      if (to == (group + 1) * kKvGroup) closings_.push_back({place, first_row + to - 1 - begin});
    }
  }
}

void OpenGroups::begin_layer(int32_t layer, ThreadPool& pool) {
  const cpu::KvCacheView open = view(layer);
  pool.parallel_for(static_cast<int64_t>(moves_.size()), [&](int64_t i, int) {
    const Move& move = moves_[static_cast<size_t>(i)];
    std::memcpy(open.keys(block(layer, move.to), 0), open.keys(block(layer, move.from), 0),
                static_cast<size_t>(group_bytes_));
  });
  slots_.clear();
  for (size_t row = 0; row < places_.size(); ++row)
    slots_.push_back(static_cast<int32_t>(block(layer, places_[row]) * kKvGroup + step_->positions[row] % kKvGroup));
}

void OpenGroups::close(int32_t layer, const int32_t* slots, const cpu::KvCacheView& kv, ThreadPool& pool) {
  closing_.clear();
  for (const Closing& closing : closings_)
    if (const int32_t last = slots[closing.last_row]; last >= 0)
      closing_.push_back({block(layer, closing.place), last + 1 - kKvGroup});
  cpu::close_kv_groups(view(layer), kv, closing_, pool);
}

const int32_t* OpenGroups::blocks(int32_t layer) {
  blocks_.clear();
  for (const Place place : places_) blocks_.push_back(static_cast<int32_t>(block(layer, place)));
  return blocks_.data();
}

}  // namespace llmb
