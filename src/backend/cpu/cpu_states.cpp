#include "backend/cpu/cpu_states.h"

#include <algorithm>
#include <cstring>

#include "core/draft_counts.h"

namespace llmb {

CpuStates::CpuStates(const ModelConfig& config, const StateLayout& layout)
    : layout_(layout),
      memory_(layout.num_slots * int64_t{layout.num_layers} * layout.layer_size()),
      borders_(static_cast<size_t>(layout.num_slots)) {
  int32_t count = 0;
  for (int32_t i = 0; i < config.num_hidden_layers; ++i) {
    indices_.push_back(count);
    count += config.layer(i).has_state;
  }
}

void CpuStates::begin_step(const StepPlan& plan, const std::vector<int32_t>& positions, ThreadPool& pool) {
  plan_ = &plan;
  const auto num_copies = static_cast<int64_t>(plan.state_copies.size());
  pool.parallel_for(num_copies * layout_.num_layers, [&](int64_t task, int) {
    const StateCopy& copy = plan.state_copies[static_cast<size_t>(task / layout_.num_layers)];
    const int64_t index = task % layout_.num_layers;
    std::copy_n(state(copy.from, index), layout_.layer_size(), state(copy.to, index));
  });
  for (const StateCopy& copy : plan.state_copies)
    borders_[static_cast<size_t>(copy.to)] = borders_[static_cast<size_t>(copy.from)];
  count_drafts(plan, &num_drafts_);
  first_positions_.clear();
  entry_borders_.clear();
  if (!plan.hidden_rows.empty() || plan.is_mtp) return;  // no layer with a state runs
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const int32_t first = positions[static_cast<size_t>(plan.query_start[e])];
    int32_t& border = borders_[static_cast<size_t>(plan.entries[e].state_slot)];
    first_positions_.push_back(first);
    entry_borders_.push_back(first == 0 ? 0 : border);
    border = state_border(first + plan.num_rows(e), num_drafts_[static_cast<size_t>(e)]);
  }
}

// The border, then all layers.
void CpuStates::read(int32_t slot, uint8_t* bytes) const {
  std::memcpy(bytes, &borders_[static_cast<size_t>(slot)], sizeof(int32_t));
  std::memcpy(bytes + sizeof(int32_t), state(slot, 0), static_cast<size_t>(layout_.slot_bytes()));
}

void CpuStates::write(int32_t slot, const uint8_t* bytes) {
  std::memcpy(&borders_[static_cast<size_t>(slot)], bytes, sizeof(int32_t));
  std::memcpy(state(slot, 0), bytes + sizeof(int32_t), static_cast<size_t>(layout_.slot_bytes()));
}

cpu::StateEntries CpuStates::entries_of(int32_t layer) {
  states_.clear();
  for (const StepEntry& entry : plan_->entries) states_.push_back(state(entry.state_slot, indices_[layer]));
  return {plan_->num_entries(), plan_->query_start.data(), first_positions_.data(),
          num_drafts_.data(),   entry_borders_.data(),      states_.data()};
}

void CpuStates::causal_conv(int32_t layer, const float* x, const float* weight, const float* bias, float* out,
                            ThreadPool& pool) {
  const bool has_silu = layout_.config.kind != StateKind::kShortConv;
  cpu::causal_conv(x, weight, bias, has_silu, layout_.config.conv_width, layout_.config.conv_channels(),
                   entries_of(layer), layout_.conv_offset(), layout_.conv_kept(), out, pool);
}

void CpuStates::update_states(int32_t layer, const float* qkv, const float* gates, const cpu::StateWeights& weights,
                              float* out, ThreadPool& pool) {
  cpu::update_states(layout_, qkv, gates, weights, entries_of(layer), out, pool);
}

}  // namespace llmb
