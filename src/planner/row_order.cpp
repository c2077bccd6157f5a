#include "planner/row_order.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace llmb {

namespace {

constexpr int32_t kRoot = 0;

// The trie of all prompts, as a tree of the places where two of them part. Nodes are these branches, then the rows.
class Trie {
 public:
  explicit Trie(std::span<const PlannedRow> rows) : rows_(rows) {
    find_branches();
    parents_.assign(num_branches() + rows.size(), kRoot);
    longest_.assign(parents_.size(), 0);
    first_.assign(parents_.size(), static_cast<int32_t>(rows.size()));
    for (int32_t b = 1; b < num_branches(); ++b) parents_[b] = branch_above(b);
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto node = static_cast<int32_t>(num_branches() + r);
      parents_[node] = branch_of(static_cast<int32_t>(r));
      longest_[node] = rows[r].num_output_tokens;
      first_[node] = static_cast<int32_t>(r);
    }
    // Nodes behind a node have greater numbers.
    for (size_t node = parents_.size() - 1; node > kRoot; --node) {
      const int32_t parent = parents_[node];
      first_[parent] = std::min(first_[parent], first_[node]);
      longest_[parent] = std::max(longest_[parent], longest_[node]);
    }
  }

  // Depth first; of what is behind one branch, the longest first or the first of the file.
  std::vector<int32_t> order(bool longest_first) const {
    const auto num_nodes = static_cast<int32_t>(parents_.size());
    std::vector<int32_t> nodes(num_nodes - 1), begin(num_branches() + 1);  // children, one branch after the other
    std::iota(nodes.begin(), nodes.end(), 1);
    std::sort(nodes.begin(), nodes.end(), [&](int32_t a, int32_t b) {
      if (parents_[a] != parents_[b]) return parents_[a] < parents_[b];
      if (longest_first && longest_[a] != longest_[b]) return longest_[a] > longest_[b];
      return first_[a] != first_[b] ? first_[a] < first_[b] : a < b;
    });
    for (const int32_t node : nodes) ++begin[parents_[node] + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<int32_t> order;
    std::vector<int32_t> open = {kRoot};
    while (!open.empty()) {
      const int32_t node = open.back();
      open.pop_back();
      if (node >= num_branches()) order.push_back(node - num_branches());
      else open.insert(open.end(), std::make_reverse_iterator(nodes.begin() + begin[node + 1]),
                       std::make_reverse_iterator(nodes.begin() + begin[node]));
    }
    return order;
  }

 private:
  using Branch = std::pair<int32_t, int32_t>;  // on the path of a prompt, behind so many of its tokens

  int32_t num_branches() const { return static_cast<int32_t>(branches_.size()); }

  void find_branches() {
    branches_.emplace_back(-1, 0);
    for (const PlannedRow& row : rows_)
      if (row.shared.num_tokens > 0) branches_.emplace_back(row.shared.prompt, row.shared.num_tokens);
    std::sort(branches_.begin(), branches_.end());
    branches_.erase(std::unique(branches_.begin(), branches_.end()), branches_.end());
  }

  // Where the path of the row's prompt leaves that of an earlier one.
  int32_t start_of(const PlannedRow& row) const {
    if (row.shared.num_tokens == 0) return kRoot;
    const Branch start(row.shared.prompt, row.shared.num_tokens);
    return static_cast<int32_t>(std::lower_bound(branches_.begin(), branches_.end(), start) - branches_.begin());
  }

  int32_t branch_above(int32_t branch) const {
    const int32_t prompt = branches_[branch].first;
    if (branches_[branch - 1].first == prompt) return branch - 1;
    const auto row = std::lower_bound(rows_.begin(), rows_.end(), prompt,
                                      [](const PlannedRow& a, int32_t b) { return a.prompt < b; });
    // A prompt of an earlier plan begins at the root.
    return row == rows_.end() || row->prompt != prompt ? kRoot : start_of(*row);
  }

  // The last one on the path of the row's prompt.
  int32_t branch_of(int32_t row) const {
    const Branch end(rows_[row].prompt, INT32_MAX);
    const auto after = std::upper_bound(branches_.begin(), branches_.end(), end);
    const auto last = static_cast<int32_t>(after - branches_.begin()) - 1;
    return branches_[last].first == rows_[row].prompt ? last : start_of(rows_[row]);
  }

  const std::span<const PlannedRow> rows_;
  std::vector<Branch> branches_;   // [branches], in order; the first is the root
  std::vector<int32_t> parents_;   // [branches + rows]
  std::vector<int64_t> longest_;   // [branches + rows] answer
  std::vector<int32_t> first_;     // [branches + rows] row
};

// Rows of an adapter follow the first of them. In the trie they do so already, unless the index of prefixes is so full that
// it no longer sees what only an adapter makes equal.
void gather_adapters(std::span<const PlannedRow> rows, std::vector<int32_t>* order) {
  std::unordered_map<int32_t, size_t> first;  // place of the first row, by adapter
  std::vector<size_t> place(rows.size());     // by row
  for (size_t i = 0; i < order->size(); ++i) {
    const int32_t row = (*order)[i], adapter = rows[row].adapter;
    place[row] = adapter == kNoAdapter ? i : first.try_emplace(adapter, i).first->second;
  }
  if (!first.empty())
    std::stable_sort(order->begin(), order->end(), [&](int32_t a, int32_t b) { return place[a] < place[b]; });
}

// Rows that are long beside the others and begin so late that they end after all could: to the front, longest first.
void bring_forward(std::span<const PlannedRow> rows, int32_t num_slots, std::vector<int32_t>* order) {
  constexpr int kMaxRounds = 8;
  constexpr double kLong = 2, kTolerance = 1.01;
  double sum = 0, longest = 0;
  for (const PlannedRow& row : rows) {
    sum += static_cast<double>(row.num_output_tokens);
    longest = std::max(longest, static_cast<double>(row.num_output_tokens));
  }
  const double earliest_end = std::max(sum / num_slots, longest);
  const double is_long = kLong * sum / static_cast<double>(rows.size());
  const auto output = [&](int32_t row) { return static_cast<double>(rows[row].num_output_tokens); };
  std::vector<uint8_t> is_urgent(rows.size());
  for (int round = 0; round < kMaxRounds; ++round) {
    double before = 0;
    bool has_changed = false;
    for (const int32_t row : *order) {
      const bool is_late = before / num_slots + output(row) > kTolerance * earliest_end;
      has_changed |= is_late && output(row) > is_long && !is_urgent[row];
      is_urgent[row] |= is_late && output(row) > is_long;
      before += output(row);
    }
    if (!has_changed) return;
    const auto rest = std::stable_partition(order->begin(), order->end(), [&](int32_t r) { return is_urgent[r] != 0; });
    std::stable_sort(order->begin(), rest, [&](int32_t a, int32_t b) { return output(a) > output(b); });
  }
}

}  // namespace

std::vector<int32_t> order_rows(Schedule schedule, std::span<const PlannedRow> rows, int32_t num_slots) {
  std::vector<int32_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  if (schedule == Schedule::kFile || rows.size() < 2) return order;
  if (schedule == Schedule::kLongestFirst) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return rows[a].num_output_tokens > rows[b].num_output_tokens; });
    return order;
  }
  order = Trie(rows).order(/*longest_first=*/schedule == Schedule::kAuto);
  gather_adapters(rows, &order);
  if (schedule == Schedule::kAuto) bring_forward(rows, num_slots, &order);
  return order;
}

}  // namespace llmb
