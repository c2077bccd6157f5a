#include "speculation/medusa_drafter.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace llmb {

namespace {

constexpr int32_t kNumBest = DraftConfidence::kMaxRank + 1;  // tokens of a head
constexpr int32_t kKindsOfHead = 1024;                       // at most; a kind is the head's times this and its own

// The sample row that gave the last of a group's tokens.
int32_t last_sample_row(const StepPlan& plan, const SampleGroup& group, std::span<const TokenId> given) {
  const int32_t first = plan.sample_rows[group.row_begin].token_row;
  int32_t row = first;
  for (size_t i = 0; i + 1 < given.size(); ++i) {
    int32_t child = row + 1;
    if (!plan.parent_rows.empty())
      while (plan.parent_rows[child] != row || plan.tokens[child] != given[i]) ++child;
    row = child;
  }
  return group.row_begin + (row - first);
}

}  // namespace

MedusaDrafter::MedusaDrafter(Backend& target, const MedusaDrafterOptions& options, const Clock& clock)
    : target_(target),
      options_(options),
      clock_(clock),
      num_heads_(target.info().num_heads),
      confidence_(static_cast<size_t>(num_heads_)) {
  LLMB_CHECK(num_heads_ > 0);
}

void MedusaDrafter::see(const StepPlan& plan, const StepOutput& output) {
  given_.clear();
  for (int32_t g = 0; g < plan.num_groups(); ++g) {
    const SampleGroup& group = plan.groups[g];
    const int32_t begin = output.token_start[g], end = output.token_start[g + 1];
    if (begin == end || group.mode == SampleMode::kBest || group.mode == SampleMode::kScore) continue;
    const std::span<const TokenId> tokens(output.tokens.data() + begin, output.tokens.data() + end);
    given_.push_back({group.seq, {last_sample_row(plan, group, tokens), tokens.back()}});
  }
  std::sort(given_.begin(), given_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
}

void MedusaDrafter::draft(std::span<const Sequence* const> sequences, const DraftLimits& limits,
                          std::span<Guess> guesses) {
  const int32_t num_heads = std::min({num_heads_, limits.max_tokens, options_.max_num_samples});
  if (num_heads == 0) return;
  const auto at_once = static_cast<size_t>(
      std::min({options_.max_num_seqs, options_.max_num_tokens, options_.max_num_samples / num_heads}));
  for (size_t begin = 0; begin < sequences.size() && !has_failed_; begin += at_once) {
    const size_t count = std::min(at_once, sequences.size() - begin);
    run(sequences.subspan(begin, count), num_heads, limits.min_probability, guesses.subspan(begin, count));
  }
}

void MedusaDrafter::run(std::span<const Sequence* const> sequences, int32_t num_heads, double min_probability,
                        std::span<Guess> guesses) {
  plan_.clear();
  plan_.block_size = target_.info().kv.block_size;
  plan_.num_layer_groups = target_.info().kv.groups.num_groups();
  planned_.clear();
  places_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = *sequences[i];
    const auto at = std::lower_bound(given_.begin(), given_.end(), sequence.id,
                                     [](const auto& given, SeqId id) { return given.first < id; });
    const bool was_there = at != given_.end() && at->first == sequence.id && !sequence.output_tokens.empty() &&
                           at->second.token == sequence.output_tokens.back();
    if (!was_there || sequence.request->is_indivisible) continue;
    plan_.entries.push_back({.seq = sequence.id, .base = sequence.num_known_tokens() - 1});
    plan_.tokens.push_back(at->second.token);
    plan_.hidden_rows.push_back(at->second.sample_row);
    plan_.query_start.push_back(plan_.num_tokens());
    plan_.block_start.resize(1 + static_cast<size_t>(plan_.num_entries()) * plan_.num_layer_groups, 0);
    planned_.push_back(&sequence);
    places_.push_back(i);
  }
  if (plan_.empty()) return;
  for (int32_t head = 0; head < num_heads; ++head)
    for (int32_t e = 0; e < plan_.num_entries(); ++e) {
      const int32_t row = plan_.num_samples();
      plan_.sample_rows.push_back({.group = plan_.num_groups(), .token_row = e, .num_logprobs = kNumBest});
      plan_.groups.push_back({plan_.entries[e].seq, e, row, row + 1, SampleMode::kBest});
    }
  const double begin_ms = clock_.now_ms();
  Status status = target_.submit(plan_);
  if (status.ok()) status = target_.wait(&output_);
  has_failed_ = !status.ok();
  if (has_failed_) return log_warning("drafts by heads are given up: " + status.message());
  cost_.observe(plan_.num_entries(), /*num_context_tokens=*/0, (clock_.now_ms() - begin_ms) * num_heads_ / num_heads);
  for (size_t i = 0; i < planned_.size(); ++i) {
    const bool is_sampled = planned_[i]->request->params.sampling.temperature > 0;
    add_tree(static_cast<int32_t>(i), num_heads, is_sampled, min_probability, &guesses[places_[i]]);
  }
}

// The nodes that are most likely to be accepted, likeliest first, so that a parent comes before its children.
void MedusaDrafter::add_tree(int32_t place, int32_t num_heads, bool is_sampled, double min_probability,
                             Guess* guess) const {
  struct Node {
    double probability;  // that it is right, and all before it
    int32_t parent, head, rank;
    bool operator<(const Node& other) const { return probability < other.probability; }
  };
  const auto group_of = [&](int32_t head) { return head * plan_.num_entries() + place; };
  const auto num_best = [&](int32_t head) {
    return output_.token_start[group_of(head) + 1] - output_.token_start[group_of(head)];
  };
  const auto kind_of = [&](int32_t head, int32_t rank) {
    const double p = std::exp(static_cast<double>(output_.logprobs[output_.token_start[group_of(head)] + rank]));
    return DraftConfidence::kind_of(p, rank, is_sampled);
  };
  std::priority_queue<Node> nodes;
  const auto push = [&](double all_before, int32_t parent, int32_t head, int32_t rank) {
    if (head == num_heads || rank >= num_best(head)) return;
    const double probability = all_before * confidence_[head].share(kind_of(head, rank));
    if (probability >= min_probability) nodes.push({probability, parent, head, rank});
  };
  for (int32_t rank = 0; rank < kNumBest; ++rank) push(1, -1, 0, rank);
  while (!nodes.empty() && guess->size() < kMaxNodes) {
    const Node node = nodes.top();
    nodes.pop();
    const int32_t kind = kind_of(node.head, node.rank);
    const TokenId token = output_.tokens[output_.token_start[group_of(node.head)] + node.rank];
    const int32_t at =
        guess->add(token, node.parent, confidence_[node.head].share(kind), node.head * kKindsOfHead + kind);
    for (int32_t rank = 0; rank < kNumBest; ++rank) push(node.probability, at, node.head + 1, rank);
  }
}

double MedusaDrafter::acceptance(const Sequence& sequence) const {
  if (has_failed_) return 0;
  const auto at = acceptance_of_.find(sequence.id);
  return at == acceptance_of_.end() ? acceptance_.share() : at->second.share();
}

void MedusaDrafter::learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) {
  const auto at = acceptance_of_.try_emplace(sequence.id, Acceptance(acceptance_.share(), 8)).first;
  for (int32_t i = 0; i < guess.size(); ++i) {
    if (verdicts[i] == Verdict::kUnknown) continue;
    const int32_t head = guess.kinds[i] / kKindsOfHead, kind = guess.kinds[i] % kKindsOfHead;
    const bool is_right = verdicts[i] == Verdict::kRight;
    confidence_[head].learn(kind, is_right);
    if (head > 0 || DraftConfidence::rank(kind) > 0) continue;
    acceptance_.add(is_right);
    at->second.add(is_right);
  }
}

}  // namespace llmb
