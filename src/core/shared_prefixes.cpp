// The tables that begin with the same block, sorted from block to block: those that share a prefix lie side by side.
// The number of blocks that each has in common with the one before it then gives the prefixes, as intervals of the
// sorted tables (as with suffix arrays: Kasai et al. 2001).
#include "core/shared_prefixes.h"

#include <algorithm>
#include <span>
#include <utility>

namespace llmb {

namespace {

class PrefixFinder {
 public:
  PrefixFinder(StepPlan* plan, int32_t layer_group) : plan_(*plan), layer_group_(layer_group) {}

  void find() {
    std::vector<std::pair<BlockId, int32_t>> first_blocks;  // and the entry
    for (int32_t e = 0; e < plan_.num_entries(); ++e)
      if (const std::span<const BlockId> blocks = table(e); !blocks.empty()) first_blocks.emplace_back(blocks[0], e);
    std::sort(first_blocks.begin(), first_blocks.end());
    for (size_t begin = 0, end = 0; begin < first_blocks.size(); begin = end) {
      while (end < first_blocks.size() && first_blocks[end].first == first_blocks[begin].first) ++end;
      if (end == begin + 1) continue;
      const auto first = static_cast<int32_t>(plan_.shared_entries.size());
      for (size_t i = begin; i < end; ++i) plan_.shared_entries.push_back(first_blocks[i].second);
      find_within(first);
    }
  }

 private:
  std::span<const BlockId> table(int32_t e) const {
    const size_t at = static_cast<size_t>(e) * plan_.num_layer_groups + layer_group_;
    return std::span(plan_.block_ids).subspan(plan_.block_start[at], plan_.block_start[at + 1] - plan_.block_start[at]);
  }

  // Blocks that the tables of two entries begin with, `known` of them known.
  int32_t num_common(int32_t a, int32_t b, int32_t known) const {
    const auto x = table(a).subspan(known), y = table(b).subspan(known);
    return known + static_cast<int32_t>(std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin());
  }

  // Looks at the entries from shared_entries[first] on: their tables begin with the same block.
  void find_within(int32_t first) {
    std::vector<int32_t>& entries = plan_.shared_entries;
    const auto begin = entries.begin() + first;
    int32_t common = num_common(*begin, *(begin + 1), 1);  // of all of them
    for (auto e = begin + 2; e != entries.end(); ++e) common = std::min(common, num_common(*begin, *e, 1));
    std::sort(begin, entries.end(), [&](int32_t a, int32_t b) {
      const auto x = table(a).subspan(common), y = table(b).subspan(common);
      const auto [at, other] = std::mismatch(x.begin(), x.end(), y.begin(), y.end());
      if (at == x.end() || other == y.end()) return at == x.end() && other == y.end() ? a < b : at == x.end();
      return *at < *other;
    });
    const size_t first_prefix = plan_.shared_prefixes.size();
    add_intervals(first, common);
    // An enclosing one comes first.
    std::sort(plan_.shared_prefixes.begin() + static_cast<std::ptrdiff_t>(first_prefix), plan_.shared_prefixes.end(),
              [](const SharedPrefix& a, const SharedPrefix& b) {
                return std::pair(a.entry_begin, a.num_blocks) < std::pair(b.entry_begin, b.num_blocks);
              });
  }

  void add_intervals(int32_t first, int32_t common) {
    const auto end = static_cast<int32_t>(plan_.shared_entries.size());
    open_.assign(1, {first, common});
    for (int32_t i = first + 1; i <= end; ++i) {
      const int32_t num_blocks =
          i == end ? 0 : num_common(plan_.shared_entries[i - 1], plan_.shared_entries[i], common);
      int32_t begin = i - 1;
      while (!open_.empty() && open_.back().num_blocks > num_blocks) {
        begin = open_.back().begin;
        plan_.shared_prefixes.push_back({layer_group_, open_.back().num_blocks, begin, i});
        open_.pop_back();
      }
      if (i < end && (open_.empty() || open_.back().num_blocks < num_blocks)) open_.push_back({begin, num_blocks});
    }
  }

  // A prefix whose entries do not end yet.
  struct Open {
    int32_t begin, num_blocks;
  };

  StepPlan& plan_;
  const int32_t layer_group_;
  std::vector<Open> open_;
};

}  // namespace

void find_shared_prefixes(StepPlan* plan) {
  plan->shared_prefixes.clear();
  plan->shared_entries.clear();
  for (int32_t layer_group = 0; layer_group < plan->num_layer_groups; ++layer_group)
    PrefixFinder(plan, layer_group).find();
}

std::span<const SharedPrefix> shared_prefixes(const StepPlan& plan, int32_t layer_group) {
  const auto [begin, end] = std::equal_range(
      plan.shared_prefixes.begin(), plan.shared_prefixes.end(), SharedPrefix{layer_group},
      [](const SharedPrefix& a, const SharedPrefix& b) { return a.layer_group < b.layer_group; });
  return {begin, end};
}

}  // namespace llmb
