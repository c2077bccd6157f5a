#include "backend/ledger/ledger_backend.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "core/draft_counts.h"
#include "core/plans_in_flight.h"
#include "core/resolve_step.h"

namespace llmb {

namespace {

constexpr int64_t kDefaultSlots = int64_t{1} << 20;
constexpr int64_t kMaxSlots = int64_t{1} << 27;  // 2 GiB of slots

struct Slot {
  uint64_t prefix_hash = 0;  // of the sequence up to and with this token
  TokenId token = 0;
  int32_t position = -1;  // -1: never written
  int32_t group = 0;      // layer group
};

// The tokens that left something behind in a state slot: so many, and drafts, which count if they turn out right.
struct State {
  int32_t num_tokens = -1;
  std::vector<uint64_t> prefix_hashes;  // of the sequence up to and with the last of these, then of each draft
};

// A state without drafts, as bytes.
struct StateBytes {
  int64_t num_tokens = 0;
  uint64_t prefix_hash = 0;
};

int64_t choose_num_blocks(const KvLayout& kv, const LoadOptions& options) {
  if (options.num_blocks_override > 0) return options.num_blocks_override;
  if (options.kv_cache_bytes > 0) return options.kv_cache_bytes / std::max<int64_t>(kv.bytes_per_block(), 1);
  const int64_t per_sequence = std::max<int64_t>(max_blocks_per_seq(kv, options), 1);
  const int64_t wanted = per_sequence * std::max<int64_t>(options.max_num_seqs, 1);
  return std::min(wanted, std::max(per_sequence, kDefaultSlots / kv.block_size));
}

class LedgerBackend final : public Backend {
 public:
  explicit LedgerBackend(const LedgerOptions& options) : options_(options) {}

  Status load(const ModelConfig& config, const LoadOptions& options) override;
  const BackendInfo& info() const override { return info_; }
  Status submit(const StepPlan& plan) override;
  Status wait(StepOutput* output) override;
  bool read_blocks(std::span<const BlockId> blocks, int32_t state, std::span<uint8_t> bytes) override;
  void write_host_blocks(std::span<const BlockId> blocks, int32_t state, std::span<const uint8_t> bytes) override;

 private:
  Status check_prefix(const StepPlan& plan, int32_t e, int32_t group, int32_t num_cached) const;
  Status check_state(const StepPlan& plan, int32_t e, int32_t num_cached, uint64_t cached) const;
  Status run_entry(const StepPlan& plan, int32_t e);
  Status check_after(const StepPlan& plan, int32_t e) const;
  void copy_blocks(const StepPlan& plan);
  void reach_host_block(BlockId block);
  void sample(const StepPlan& plan, const SampleRow& row);
  const Slot& slot(const StepPlan& plan, int32_t e, int32_t group, int32_t position) const {
    const int32_t table = plan.block_start[e * plan.num_layer_groups + group];
    const BlockId block = plan.block_ids[table + position / plan.block_size];
    return slots_[int64_t{block} * plan.block_size + position % plan.block_size];
  }

  const LedgerOptions options_;
  LedgerModel model_;
  BackendInfo info_;
  std::vector<Slot> slots_, host_slots_;  // of the host's pool as far as it was ever written
  std::vector<State> states_;
  std::vector<int32_t> num_drafts_;      // [num_entries]  of the plan that runs
  ResolvedStep step_;                    // of the plan that runs
  std::vector<uint64_t> prefix_hashes_;  // [num_tokens]  of the sequence up to and with each row
  SampledRows sampled_;
  GivenTokens given_;                                  // by the newest plan
  std::array<StepOutput, kMaxAlternatingPlans> outputs_;  // of step i in entry i % size
  const StepPlan* newest_plan_ = nullptr;              // while it is in flight
  int64_t num_submitted_ = 0, num_fetched_ = 0;
};

Status LedgerBackend::load(const ModelConfig& config, const LoadOptions& options) {
  if (config.vocab_size < 1) return invalid_argument("vocab_size is " + std::to_string(config.vocab_size));
  if (options.block_size < 1) return invalid_argument("block size is " + std::to_string(options.block_size));
  KvLayout kv = make_kv_layout(config, options.block_size, DType::kF32, layer_groups(config, options));
  if (kv.groups.windows[0] == 1) return unsupported("the ledger backend reads the token before");
  const int64_t num_blocks = choose_num_blocks(kv, options);
  if (num_blocks < 1) return resource_exhausted("the KV cache is smaller than one block");
  if (num_blocks > kMaxSlots / options.block_size)
    return resource_exhausted("the ledger backend keeps at most " + std::to_string(kMaxSlots) + " KV slots, not " +
                              std::to_string(num_blocks) + " blocks of " + std::to_string(options.block_size));
  kv.num_blocks = static_cast<int32_t>(num_blocks);
  model_ = make_ledger_model(config, options_);
  slots_.assign(num_blocks * options.block_size, Slot{});
  info_.num_host_blocks = config.has_states() && !options.receives_prompts ? 0 : num_host_blocks(kv, options);
  host_slots_.clear();
  info_.kind = DeviceKind::kLedger;
  info_.device = "ledger";
  info_.kv = kv;
  info_.max_plans_in_flight = options_.max_plans_in_flight;
  StateLayout states = state_layout(config, options.max_num_seqs, max_state_drafts(options));
  if (config.has_states()) {
    const int32_t count = std::min(states.num_snapshots, options_.max_num_snapshots);
    states.keep_snapshots(count, options.max_num_seqs);
    // No more than a GPU has.
    if (options_.max_plans_in_flight <= kMaxPlansInFlight) states.num_slots = 2 * options.max_num_seqs + count;
  }
  if (options.kv_cache_dtype == DType::kI4) {  // a slot is what the CPU keeps of open groups
    if (config.has_states() || options.block_size % kKvGroup != 0)
      return unsupported("kv-cache-dtype int4: blocks hold whole groups of " + std::to_string(kKvGroup) +
                         " tokens, of a model without recurrent states");
    states.keep_snapshots(0, options.max_num_seqs);
    states.max_drafts = kKvGroup - 1;
    info_.state_period = kKvGroup;
  }
  info_.num_state_slots = states.num_slots;
  info_.num_snapshots = states.num_snapshots;
  states_.assign(static_cast<size_t>(info_.num_state_slots), State{});
  info_.max_drafts_per_group = info_.num_state_slots > 0 ? states.max_drafts : INT32_MAX;
  info_.max_best_tokens = INT32_MAX;
  info_.verifies_trees = info_.num_state_slots == 0;
  info_.copies_blocks = true;
  info_.block_bytes = static_cast<int64_t>(sizeof(Slot)) * options.block_size;
  if (config.has_states()) info_.state_bytes = sizeof(StateBytes);
  return {};
}

Status LedgerBackend::submit(const StepPlan& plan) {
  LLMB_CHECK_MSG(num_submitted_ - num_fetched_ < info_.max_plans_in_flight, "too many plans in flight");
  const StepPlan* in_flight = num_submitted_ > num_fetched_ ? newest_plan_ : nullptr;
  LLMB_RETURN_IF_ERROR(validate_step_plan(plan, info_.kv.num_blocks, in_flight, info_.num_host_blocks));
  if (plan.block_size != info_.kv.block_size) return internal_error("ledger: the plan has another block size");
  if (plan.num_layer_groups != info_.kv.groups.num_groups())
    return internal_error("ledger: the plan has other layer groups");
  resolve_step(plan, given_, &step_);
  copy_blocks(plan);
  count_drafts(plan, &num_drafts_);
  prefix_hashes_.resize(plan.tokens.size());
  for (int32_t e = 0; e < plan.num_entries(); ++e) LLMB_RETURN_IF_ERROR(run_entry(plan, e));
  for (int32_t e = 0; e < plan.num_entries(); ++e) LLMB_RETURN_IF_ERROR(check_after(plan, e));
  sampled_.clear();
  for (const SampleRow& row : step_.sample_rows) sample(plan, row);
  give_tokens(plan, step_.tokens, sampled_, &outputs_[num_submitted_ % kMaxAlternatingPlans], &given_);
  newest_plan_ = &plan;
  ++num_submitted_;
  return {};
}

bool LedgerBackend::read_blocks(std::span<const BlockId> blocks, int32_t state, std::span<uint8_t> bytes) {
  const int64_t size = info_.kv.block_size;
  for (size_t i = 0; i < blocks.size(); ++i)
    std::memcpy(bytes.data() + i * info_.block_bytes, &slots_[blocks[i] * size], static_cast<size_t>(info_.block_bytes));
  if (state < 0) return true;
  const State& from = states_[static_cast<size_t>(state)];
  const StateBytes packed = {from.num_tokens, from.prefix_hashes.at(0)};
  std::memcpy(bytes.data() + blocks.size() * info_.block_bytes, &packed, sizeof packed);
  return true;
}

// Plans have run when submit() returns.
void LedgerBackend::write_host_blocks(std::span<const BlockId> blocks, int32_t state, std::span<const uint8_t> bytes) {
  const int64_t size = info_.kv.block_size;
  for (size_t i = 0; i < blocks.size(); ++i) {
    reach_host_block(blocks[i]);
    std::memcpy(&host_slots_[blocks[i] * size], bytes.data() + i * info_.block_bytes,
                static_cast<size_t>(info_.block_bytes));
  }
  if (state < 0) return;
  StateBytes packed;
  std::memcpy(&packed, bytes.data() + blocks.size() * info_.block_bytes, sizeof packed);
  states_[static_cast<size_t>(state)] = {static_cast<int32_t>(packed.num_tokens), {packed.prefix_hash}};
}

void LedgerBackend::reach_host_block(BlockId block) {
  const auto end = static_cast<size_t>((int64_t{block} + 1) * info_.kv.block_size);
  if (host_slots_.size() < end) host_slots_.resize(end);
}

// Behind swaps out no block is both read and written: any order will do.
void LedgerBackend::copy_blocks(const StepPlan& plan) {
  const int64_t size = plan.block_size;
  const auto copy_all = [&](const std::vector<BlockCopy>& copies, const std::vector<Slot>& from, std::vector<Slot>* to) {
    for (const BlockCopy& copy : copies)
      std::copy_n(from.begin() + copy.from * size, size, to->begin() + copy.to * size);
  };
  for (const BlockCopy& swap : plan.swaps_out) reach_host_block(swap.to);
  for (const BlockCopy& swap : plan.swaps_in) reach_host_block(swap.from);
  copy_all(plan.swaps_out, slots_, &host_slots_);
  copy_all(plan.block_copies, slots_, &slots_);
  copy_all(plan.swaps_in, host_slots_, &slots_);
  for (const StateCopy& copy : plan.state_copies) states_[copy.to] = states_[copy.from];
}

// Invariant 2. Who takes a block overwrites it from its first slot on, so that its link to the block before breaks; the
// first block has none before it, there the break is at the end of what was overwritten. What a window begins with is
// compared with the first group, if that sees everything.
Status LedgerBackend::check_prefix(const StepPlan& plan, int32_t e, int32_t group, int32_t num_cached) const {
  const std::vector<int32_t>& windows = info_.kv.groups.windows;
  const int32_t begin = first_seen(windows[group], num_cached);
  const int32_t sparse_from = options_.check_every_slot ? num_cached : begin + plan.block_size;
  const auto holds = [&](int32_t position) {
    const Slot& at = slot(plan, e, group, position);
    if (at.position != position || at.group != group) return false;
    if (windows[0] == 0 && at.prefix_hash != slot(plan, e, 0, position).prefix_hash) return false;
    if (position == begin && begin > 0) return true;
    const uint64_t before = position == 0 ? model_.empty_prefix(plan.entries[e].adapter) : slot(plan, e, group, position - 1).prefix_hash;
    return at.prefix_hash == LedgerModel::extend(before, at.token);
  };
  int32_t position = begin;
  while (position < num_cached && holds(position))
    position += position < sparse_from || position % plan.block_size != 0 ? 1 : plan.block_size;
  if (position >= num_cached) {
    position = num_cached - 1;
    if (position < begin || holds(position)) return {};
  }
  return internal_error("ledger: sequence " + std::to_string(plan.entries[e].seq) +
                        " does not find its own token at position " + std::to_string(position) + " of layer group " +
                        std::to_string(group) + " but one of position " +
                        std::to_string(slot(plan, e, group, position).position));
}

// A state holds what its sequence's tokens left there, and nothing else; what it holds where a state begins does not
// matter.
Status LedgerBackend::check_state(const StepPlan& plan, int32_t e, int32_t num_cached, uint64_t cached) const {
  const StepEntry& entry = plan.entries[e];
  if ((entry.state_slot >= 0) != !states_.empty() || entry.state_slot >= info_.num_state_slots)
    return internal_error("ledger: sequence " + std::to_string(entry.seq) + " has no state slot, or one too many");
  if (states_.empty() || num_cached == 0) return {};
  if (info_.state_period > 0 && num_cached % info_.state_period == 0) return {};
  const State& state = states_[entry.state_slot];
  const int32_t num_right = num_cached - state.num_tokens;  // drafts
  const bool is_there = num_right >= 0 && num_right < static_cast<int32_t>(state.prefix_hashes.size());
  if (is_there && state.prefix_hashes[num_right] == cached) return {};
  return internal_error("ledger: sequence " + std::to_string(entry.seq) + " finds the state of " +
                        std::to_string(state.num_tokens) + " tokens, or of others, in place of its " +
                        std::to_string(num_cached));
}

Status LedgerBackend::run_entry(const StepPlan& plan, int32_t e) {
  const int32_t begin = plan.query_start[e], end = plan.query_start[e + 1];
  const int32_t num_cached = step_.context_len[e] - (end - begin);
  for (int32_t group = 0; group < plan.num_layer_groups; ++group)
    LLMB_RETURN_IF_ERROR(check_prefix(plan, e, group, num_cached));
  const uint64_t cached = num_cached == 0 ? model_.empty_prefix(plan.entries[e].adapter) : slot(plan, e, 0, num_cached - 1).prefix_hash;
  LLMB_RETURN_IF_ERROR(check_state(plan, e, num_cached, cached));
  for (int32_t row = begin; row < end; ++row) {
    const int32_t parent = plan.parent_rows.empty() ? row - 1 : plan.parent_rows[row];
    const uint64_t before = row == begin ? cached : prefix_hashes_[parent];
    prefix_hashes_[row] = LedgerModel::extend(before, step_.tokens[row]);
    for (int32_t group = 0; group < plan.num_layer_groups; ++group)
      slots_[step_.slots[int64_t{group} * plan.num_tokens() + row]] = {prefix_hashes_[row], step_.tokens[row],
                                                                       step_.positions[row], group};
  }
  if (states_.empty()) return {};
  const int32_t num_drafts = num_drafts_[static_cast<size_t>(e)];
  State& state = states_[plan.entries[e].state_slot];
  state.num_tokens = step_.context_len[e] - num_drafts;
  state.prefix_hashes.assign(prefix_hashes_.begin() + end - num_drafts - 1, prefix_hashes_.begin() + end);
  return {};
}

// Invariant 3.
Status LedgerBackend::check_after(const StepPlan& plan, int32_t e) const {
  const int32_t begin = plan.query_start[e], end = plan.query_start[e + 1];
  const auto overwritten = [&](const char* what) {
    return internal_error("ledger: another entry of the plan overwrites " + std::string(what) + " of sequence " +
                          std::to_string(plan.entries[e].seq));
  };
  for (int32_t group = 0; group < plan.num_layer_groups; ++group) {
    LLMB_RETURN_IF_ERROR(check_prefix(plan, e, group, step_.context_len[e] - (end - begin)));
    for (int32_t row = begin; row < end; ++row)
      if (slots_[step_.slots[int64_t{group} * plan.num_tokens() + row]].prefix_hash != prefix_hashes_[row])
        return overwritten("a row");
  }
  if (states_.empty()) return {};
  const State& state = states_[plan.entries[e].state_slot];
  return state.prefix_hashes.back() == prefix_hashes_[end - 1] ? Status() : overwritten("the state");
}

void LedgerBackend::sample(const StepPlan& plan, const SampleRow& row) {
  const uint64_t prefix_hash = prefix_hashes_[row.token_row];
  const std::span<const TokenBias> bias(plan.bias.data() + row.bias_begin, plan.bias.data() + row.bias_end);
  const std::span<const TokenPenalty> penalty(step_.penalty.data() + row.penalty_begin,
                                              step_.penalty.data() + row.penalty_end);
  const std::optional<TokenId> token = model_.next_token(prefix_hash, row, bias, penalty,
                                                         mask_of(row, plan.masks, plan.mask_words));
  const float logprob = row.num_logprobs >= 0 ? LedgerModel::logprob(prefix_hash) : 0.0f;
  sampled_.tokens.push_back(token.value_or(0));
  sampled_.logprobs.push_back(logprob);
  sampled_.is_finite.push_back(token.has_value());
  // The chosen token is the best one; the tokens after it follow, each half as likely as the one before.
  for (int32_t i = 0; i < std::min(row.num_logprobs, model_.vocab_size); ++i) {
    sampled_.top_tokens.push_back(static_cast<TokenId>((int64_t{token.value_or(0)} + i) % model_.vocab_size));
    sampled_.top_logprobs.push_back(logprob - 0.6931472f * static_cast<float>(i));
  }
  sampled_.top_start.push_back(static_cast<int32_t>(sampled_.top_tokens.size()));
}

Status LedgerBackend::wait(StepOutput* output) {
  LLMB_CHECK_MSG(num_fetched_ < num_submitted_, "no plan is in flight");
  if (options_.clock) options_.clock->advance_ms(options_.step_ms);
  std::swap(*output, outputs_[num_fetched_ % kMaxAlternatingPlans]);  // both keep their memory for later steps
  ++num_fetched_;
  return {};
}

}  // namespace

LedgerModel make_ledger_model(const ModelConfig& config, const LedgerOptions& options) {
  LedgerModel model;
  model.vocab_size = config.vocab_size;
  for (const TokenId token : config.eos_token_ids)
    if (token >= 0 && token < config.vocab_size) model.eos_token_ids.push_back(token);
  model.seed = options.seed;
  model.eos_rate = options.eos_rate;
  return model;
}

std::unique_ptr<Backend> make_ledger_backend(const LedgerOptions& options) {
  return std::make_unique<LedgerBackend>(options);
}

}  // namespace llmb
