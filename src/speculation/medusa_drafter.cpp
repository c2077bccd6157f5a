#include "speculation/medusa_drafter.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "core/drafted_tokens.h"

namespace llmb {

namespace {

constexpr int32_t kNumBest = kBestOfHead;
static_assert(kNumBest == DraftConfidence::kMaxRank + 1);

// The sample row that gave the last of a group's tokens; -1: the host cannot tell.
int32_t last_sample_row(const StepPlan& plan, const SampleGroup& group, std::span<const TokenId> given) {
  const int32_t first = plan.sample_rows[group.row_begin].token_row, end = first + group.num_rows();
  int32_t row = first;
  for (size_t i = 0; i + 1 < given.size(); ++i) {
    int32_t child = row + 1;
    if (!plan.parent_rows.empty())
      while (child < end && (plan.parent_rows[child] != row || plan.tokens[child] != given[i])) ++child;
    if (child == end) return -1;
    row = child;
  }
  return group.row_begin + (row - first);
}

}  // namespace

MedusaDrafter::MedusaDrafter(Backend& target, const MedusaDrafterOptions& options, const Clock& clock, OwnDrafts own)
    : target_(target),
      own_queue_(std::move(own.queue)),
      options_(options),
      clock_(clock),
      num_heads_(target.info().num_heads),
      confidence_(static_cast<size_t>(num_heads_)) {
  LLMB_CHECK(num_heads_ > 0 && (own_queue_ == nullptr) == (own.feed == nullptr));
  const SharesOfHeads::value_type by_rank = {Acceptance(0.5), Acceptance(0.15), Acceptance(0.1), Acceptance(0.05)};
  for (SharesOfHeads& shares : shares_) shares.resize(static_cast<size_t>(num_heads_), by_rank);  // without experience
  if (!own_queue_) return;
  const auto see_one = [this](const UnseenStep& step, const StepOutput& output) {
    const double num_heads = static_cast<double>(step.plan.num_groups()) / step.plan.num_entries();
    cost_.observe(step.plan.num_entries(), /*num_context_tokens=*/0, output.device_ms * num_heads_ / num_heads);
    return Status();
  };
  unseen_.emplace(*own_queue_, std::move(own.feed), see_one);
}

void MedusaDrafter::see(const StepPlan& plan, const StepOutput& output) {
  given_.clear();
  for (int32_t g = 0; g < plan.num_groups(); ++g) {
    const SampleGroup& group = plan.groups[g];
    const int32_t begin = output.token_start[g], end = output.token_start[g + 1];
    if (begin == end || group.mode == SampleMode::kBest || group.mode == SampleMode::kScore) continue;
    const std::span<const TokenId> tokens(output.tokens.data() + begin, output.tokens.data() + end);
    const int32_t row = last_sample_row(plan, group, tokens);
    if (row >= 0) given_.push_back({group.seq, {row, tokens.back()}});
  }
  std::sort(given_.begin(), given_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
}

// By the newest step; null: nothing that the sequence goes on from.
const MedusaDrafter::Given* MedusaDrafter::given_to(const Sequence& sequence) const {
  const auto at = std::lower_bound(given_.begin(), given_.end(), sequence.id,
                                   [](const auto& given, SeqId id) { return given.first < id; });
  const bool was_there = at != given_.end() && at->first == sequence.id && !sequence.output_tokens.empty() &&
                         at->second.token == sequence.output_tokens.back();
  return was_there ? &at->second : nullptr;
}

void MedusaDrafter::draft(std::span<const Sequence* const> sequences, const DraftLimits& limits,
                          std::span<Guess> guesses) {
  see_all();
  const int32_t num_heads = std::min({num_heads_, limits.max_tokens, options_.max_num_samples});
  if (num_heads == 0) return;
  by_host_.clear(), fed_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Given* const given = given_to(*sequences[i]);
    if (given == nullptr || sequences[i]->request->is_indivisible) continue;
    (is_fed(*sequences[i]) ? fed_ : by_host_).push_back({sequences[i], &guesses[i], *given});
  }
  const auto at_once = static_cast<size_t>(
      std::min({options_.max_num_seqs, options_.max_num_tokens, options_.max_num_samples / num_heads}));
  const auto call_in_parts = [&](std::span<const Row> rows, const auto& body) {
    for (; !rows.empty() && !has_failed_; rows = rows.subspan(std::min(at_once, rows.size())))
      body(rows.first(std::min(at_once, rows.size())));
  };
  call_in_parts(by_host_, [&](std::span<const Row> rows) { run(rows, num_heads, limits.min_probability); });
  if (unseen_) unseen_->begin_guesses(limits.plan);
  call_in_parts(fed_, [&](std::span<const Row> rows) { feed(rows, num_heads, limits.min_probability); });
}

// Groups of all rows in turn, once for each head.
void MedusaDrafter::write_plan(std::span<const Row> rows, int32_t num_heads, StepPlan* plan) const {
  plan->clear();
  plan->block_size = target_.info().kv.block_size;
  plan->num_layer_groups = target_.info().kv.groups.num_groups();
  for (const Row& row : rows) {
    plan->entries.push_back({.seq = row.sequence->id, .base = row.sequence->num_known_tokens() - 1});
    plan->tokens.push_back(row.given.token);
    plan->hidden_rows.push_back(row.given.sample_row);
    plan->query_start.push_back(plan->num_tokens());
    plan->block_start.resize(1 + static_cast<size_t>(plan->num_entries()) * plan->num_layer_groups, 0);
  }
  for (int32_t head = 0; head < num_heads; ++head)
    for (int32_t e = 0; e < plan->num_entries(); ++e) {
      const int32_t row = plan->num_samples();
      plan->sample_rows.push_back({.group = plan->num_groups(), .token_row = e, .num_logprobs = kNumBest});
      plan->groups.push_back({plan->entries[e].seq, e, row, row + 1, SampleMode::kBest});
    }
}

void MedusaDrafter::run(std::span<const Row> rows, int32_t num_heads, double min_probability) {
  write_plan(rows, num_heads, &plan_);
  const double begin_ms = clock_.now_ms();
  Status status = target_.submit(plan_);
  if (status.ok()) status = target_.wait(&output_);
  if (!status.ok()) return give_up(status);
  cost_.observe(plan_.num_entries(), /*num_context_tokens=*/0, (clock_.now_ms() - begin_ms) * num_heads_ / num_heads);
  for (size_t i = 0; i < rows.size(); ++i) add_tree(rows[i], static_cast<int32_t>(i), num_heads, min_probability);
}

// The nodes that are most likely to be accepted, likeliest first, so that a parent comes before its children.
void MedusaDrafter::grow_tree(int32_t num_heads, double min_probability, const Share& share, const Add& add) {
  std::priority_queue<Node> nodes;
  const auto push = [&](double all_before, int32_t parent, int32_t head) {
    for (int32_t rank = 0; head < num_heads && rank < kNumBest; ++rank)
      if (const double probability = all_before * share(head, rank); probability > 0 && probability >= min_probability)
        nodes.push({probability, parent, head, rank});
  };
  push(1, -1, 0);
  for (int32_t count = 0; !nodes.empty() && count < kMaxNodes; ++count) {
    const Node node = nodes.top();
    nodes.pop();
    push(node.probability, add(node), node.head + 1);
  }
}

void MedusaDrafter::add_tree(const Row& row, int32_t place, int32_t num_heads, double min_probability) const {
  const auto begin_of = [&](int32_t head) { return output_.token_start[head * plan_.num_entries() + place]; };
  const auto num_best = [&](int32_t head) {
    return output_.token_start[head * plan_.num_entries() + place + 1] - begin_of(head);
  };
  const auto kind_of = [&](int32_t head, int32_t rank) {
    const double p = std::exp(static_cast<double>(output_.logprobs[begin_of(head) + rank]));
    return DraftConfidence::kind_of(p, rank, row.is_sampled());
  };
  const auto share = [&](int32_t head, int32_t rank) {
    return rank < num_best(head) ? confidence_[head].share(kind_of(head, rank)) : 0.0;
  };
  grow_tree(num_heads, min_probability, share, [&](const Node& node) {
    const TokenId token = output_.tokens[begin_of(node.head) + node.rank];
    return row.guess->add(token, node.parent, share(node.head, node.rank), kind_of(node.head, node.rank));
  });
}

void MedusaDrafter::give_up(const Status& status) {
  if (!has_failed_) log_warning("drafts by heads are given up: " + status.message());
  has_failed_ = true;
}

double MedusaDrafter::acceptance(const Sequence& sequence) const {
  if (has_failed_) return 0;
  const auto at = acceptance_of_.find(sequence.id);
  return at == acceptance_of_.end() ? acceptance_.share() : at->second.share();
}

void MedusaDrafter::learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) {
  const Guess seen = unseen_ ? unseen_->with_kinds(guess) : guess;
  const auto at = acceptance_of_.try_emplace(sequence.id, Acceptance(acceptance_.share(), 8)).first;
  SharesOfHeads& shares = shares_[sequence.request->params.sampling.temperature > 0 ? 1 : 0];
  const std::vector<int32_t> heads = seen.depths();
  for (int32_t i = 0; i < seen.size(); ++i) {
    if (verdicts[i] == Verdict::kUnknown) continue;
    const int32_t head = heads[i], rank = DraftConfidence::rank(seen.kinds[i]);
    const bool is_right = verdicts[i] == Verdict::kRight;
    confidence_[head].learn(seen.kinds[i], is_right);
    shares[head][rank].add(is_right);
    if (head > 0 || rank > 0) continue;
    acceptance_.add(is_right);
    at->second.add(is_right);
  }
}

}  // namespace llmb
