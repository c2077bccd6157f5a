#include "backend/ledger/ledger_backend.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"

namespace llmb {

namespace {

constexpr int64_t kDefaultSlots = int64_t{1} << 20;
constexpr int32_t kMaxPlansInFlight = 2;
constexpr int64_t kMaxSlots = int64_t{1} << 27;  // 2 GiB of slots

struct Slot {
  uint64_t prefix_hash = 0;  // of the sequence up to and with this token
  TokenId token = 0;
  int32_t position = -1;  // -1: never written
};

int64_t choose_num_blocks(const KvLayout& kv, const LoadOptions& options) {
  if (options.num_blocks_override > 0) return options.num_blocks_override;
  if (options.kv_cache_bytes > 0) return options.kv_cache_bytes / std::max<int64_t>(kv.bytes_per_block(), 1);
  const int64_t per_sequence = std::max<int64_t>(ceil_div(options.max_model_len, kv.block_size), 1);
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

 private:
  Status check_prefix(const StepPlan& plan, int32_t s, int32_t num_cached) const;
  Status run_sequence(const StepPlan& plan, int32_t s, uint64_t* prefix_hash);
  void sample(const StepPlan& plan, const SampleRow& row, uint64_t prefix_hash, StepOutput* output);
  const Slot& slot(const StepPlan& plan, int32_t s, int32_t position) const {
    const BlockId block = plan.block_ids[plan.block_start[s] + position / plan.block_size];
    return slots_[int64_t{block} * plan.block_size + position % plan.block_size];
  }

  const LedgerOptions options_;
  LedgerModel model_;
  BackendInfo info_;
  std::vector<Slot> slots_;
  std::vector<TokenId> tokens_;                        // [num_tokens]  of the plan, none unseen
  std::vector<SampleRow> samples_;                     // [num_samples]  of the plan; their penalties:
  std::vector<TokenPenalty> penalty_;                  // with unseen tokens counted
  std::array<StepOutput, kMaxPlansInFlight> outputs_;  // of step i in entry i % size
  int64_t num_submitted_ = 0, num_fetched_ = 0;
};

Status LedgerBackend::load(const ModelConfig& config, const LoadOptions& options) {
  if (config.vocab_size < 1) return invalid_argument("vocab_size is " + std::to_string(config.vocab_size));
  if (options.block_size < 1) return invalid_argument("block size is " + std::to_string(options.block_size));
  KvLayout kv;
  kv.num_layers = config.num_hidden_layers;
  kv.num_kv_heads = config.num_key_value_heads;
  kv.head_dim = config.head_dim;
  kv.block_size = options.block_size;
  const int64_t num_blocks = choose_num_blocks(kv, options);
  if (num_blocks < 1) return resource_exhausted("the KV cache is smaller than one block");
  if (num_blocks > kMaxSlots / options.block_size)
    return resource_exhausted("the ledger backend keeps at most " + std::to_string(kMaxSlots) + " KV slots, not " +
                              std::to_string(num_blocks) + " blocks of " + std::to_string(options.block_size));
  kv.num_blocks = static_cast<int32_t>(num_blocks);
  model_ = make_ledger_model(config, options_);
  slots_.assign(num_blocks * options.block_size, Slot{});
  info_.device = "ledger";
  info_.kv = kv;
  info_.max_plans_in_flight = kMaxPlansInFlight;
  return {};
}

Status LedgerBackend::submit(const StepPlan& plan) {
  LLMB_CHECK_MSG(num_submitted_ - num_fetched_ < kMaxPlansInFlight, "too many plans in flight");
  std::span<const TokenId> sampled;
  if (num_submitted_ > num_fetched_) sampled = outputs_[(num_submitted_ - 1) % kMaxPlansInFlight].tokens;
  LLMB_RETURN_IF_ERROR(validate_step_plan(plan, info_.kv.num_blocks, static_cast<int32_t>(sampled.size())));
  if (plan.block_size != info_.kv.block_size) return internal_error("ledger: the plan has another block size");
  resolve_tokens(plan, sampled, &tokens_);
  samples_ = plan.sample_rows;
  penalty_ = plan.penalty;
  count_unseen_tokens(sampled, &samples_, &penalty_);
  StepOutput& output = outputs_[num_submitted_ % kMaxPlansInFlight];
  output.clear();
  size_t next_sample = 0;
  for (int32_t s = 0; s < plan.num_seqs(); ++s) {
    uint64_t prefix_hash = 0;
    LLMB_RETURN_IF_ERROR(run_sequence(plan, s, &prefix_hash));
    if (next_sample == samples_.size() || samples_[next_sample].seq != s) continue;
    const SampleRow& row = samples_[next_sample++];
    if (static_cast<int64_t>(row.position) != plan.context_len[s])
      return internal_error("ledger: sequence " + std::to_string(plan.seq_ids[s]) + " samples position " +
                            std::to_string(row.position) + " after " + std::to_string(plan.context_len[s]) + " tokens");
    sample(plan, row, prefix_hash, &output);
  }
  ++num_submitted_;
  return {};
}

// Invariant 2. Who takes a block overwrites it from its first slot on, so that its link to the block before breaks; the
// first block has none before it, there the break is at the end of what was overwritten.
Status LedgerBackend::check_prefix(const StepPlan& plan, int32_t s, int32_t num_cached) const {
  const int32_t sparse_from = options_.check_every_slot ? num_cached : plan.block_size;
  const auto holds = [&](int32_t position) {
    const Slot& at = slot(plan, s, position);
    if (at.position != position) return false;
    const uint64_t before = position == 0 ? model_.empty_prefix() : slot(plan, s, position - 1).prefix_hash;
    return at.prefix_hash == LedgerModel::extend(before, at.token);
  };
  int32_t position = 0;
  while (position < num_cached && holds(position)) position += position < sparse_from ? 1 : plan.block_size;
  if (position >= num_cached) {
    position = num_cached - 1;
    if (position < 0 || holds(position)) return {};
  }
  return internal_error("ledger: sequence " + std::to_string(plan.seq_ids[s]) +
                        " does not find its own token at position " + std::to_string(position) +
                        " but one of position " + std::to_string(slot(plan, s, position).position));
}

Status LedgerBackend::run_sequence(const StepPlan& plan, int32_t s, uint64_t* prefix_hash) {
  const int32_t begin = plan.query_start[s], end = plan.query_start[s + 1];
  const int32_t num_cached = plan.context_len[s] - (end - begin);
  LLMB_RETURN_IF_ERROR(check_prefix(plan, s, num_cached));
  uint64_t hash = num_cached == 0 ? model_.empty_prefix() : slot(plan, s, num_cached - 1).prefix_hash;
  for (int32_t row = begin; row < end; ++row) {
    hash = LedgerModel::extend(hash, tokens_[row]);
    slots_[plan.slots[row]] = {hash, tokens_[row], plan.positions[row]};
  }
  *prefix_hash = hash;
  return {};
}

void LedgerBackend::sample(const StepPlan& plan, const SampleRow& row, uint64_t prefix_hash, StepOutput* output) {
  const std::span<const TokenBias> bias(plan.bias.data() + row.bias_begin, plan.bias.data() + row.bias_end);
  const std::span<const TokenPenalty> penalty(penalty_.data() + row.penalty_begin, penalty_.data() + row.penalty_end);
  const std::optional<TokenId> token = model_.next_token(prefix_hash, row, bias, penalty);
  const float logprob = row.num_logprobs >= 0 ? LedgerModel::logprob(prefix_hash) : 0.0f;
  output->tokens.push_back(token.value_or(0));
  output->logprobs.push_back(logprob);
  output->is_finite.push_back(token.has_value());
  // The chosen token is the best one; the tokens after it follow, each half as likely as the one before.
  for (int32_t i = 0; i < std::min(row.num_logprobs, model_.vocab_size); ++i) {
    output->top_tokens.push_back(static_cast<TokenId>((int64_t{token.value_or(0)} + i) % model_.vocab_size));
    output->top_logprobs.push_back(logprob - 0.6931472f * static_cast<float>(i));
  }
  output->top_start.push_back(static_cast<int32_t>(output->top_tokens.size()));
}

Status LedgerBackend::wait(StepOutput* output) {
  LLMB_CHECK_MSG(num_fetched_ < num_submitted_, "no plan is in flight");
  if (options_.clock) options_.clock->advance_ms(options_.step_ms);
  std::swap(*output, outputs_[num_fetched_ % kMaxPlansInFlight]);  // both keep their memory for later steps
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
