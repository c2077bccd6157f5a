// Trees of heads' tokens that go to the step which verifies them on the device (unseen_steps.h).
#include <algorithm>
#include <vector>

#include "core/drafted_tokens.h"
#include "speculation/medusa_drafter.h"

namespace llmb {

// Penalties and forms need to know the drafts before a token.
bool MedusaDrafter::is_fed(const Sequence& sequence) const {
  return unseen_ && !sequence.penalty_counts && sequence.constraint == nullptr;
}

// For as many of the rows, the first ones, as there are slots for.
void MedusaDrafter::feed(std::span<const Row> rows, int32_t num_heads, double min_probability) {
  rows = rows.first(std::min(rows.size(), static_cast<size_t>(unseen_->num_free_slots() / (num_heads * kBestOfHead))));
  UnseenStep& step = unseen_->begin(kBestOfHead);
  write_plan(rows, num_heads, &step.plan);
  std::vector<std::vector<int32_t>> slots(rows.size());  // [rows][heads]
  for (int32_t head = 0; head < num_heads; ++head)
    for (size_t i = 0; i < rows.size(); ++i) slots[i].push_back(unseen_->add_best(rows[i].is_sampled()));
  if (unseen_->submit())
    for (size_t i = 0; i < rows.size(); ++i) add_unseen_tree(rows[i], slots[i], min_probability);
  if (unseen_->failure().ok()) return;
  give_up(unseen_->failure());
  for (const Row& row : fed_) row.guess->clear();
}

void MedusaDrafter::add_unseen_tree(const Row& row, std::span<const int32_t> slots, double min_probability) const {
  const SharesOfHeads& shares = shares_[row.is_sampled() ? 1 : 0];
  const auto share = [&](int32_t head, int32_t rank) { return shares[head][rank].share(); };
  grow_tree(static_cast<int32_t>(slots.size()), min_probability, share, [&](const Node& node) {
    const int32_t slot = slots[node.head] + node.rank, kind = UnseenSteps::kind_of_slot(slot);
    return row.guess->add(drafted_token(slot), node.parent, share(node.head, node.rank), kind);
  });
}

void MedusaDrafter::see_drafts(std::span<TokenId> tokens) {
  if (!unseen_) return;
  see_all();  // they ran before the step that verified them
  unseen_->put_tokens(tokens);
}

void MedusaDrafter::see_all() {
  if (!unseen_) return;
  unseen_->see_all();
  if (!unseen_->failure().ok()) give_up(unseen_->failure());
}

}  // namespace llmb
