#include "speculation/guess.h"

#include <algorithm>
#include <numeric>

namespace llmb {

namespace {

template <typename T>
void reorder(const std::vector<int32_t>& order, std::vector<T>* items) {
  std::vector<T> ordered;
  ordered.reserve(order.size());
  for (const int32_t i : order) ordered.push_back((*items)[i]);
  items->swap(ordered);
}

bool are_chain(const std::vector<int32_t>& parents) {
  for (size_t i = 0; i < parents.size(); ++i)
    if (parents[i] != static_cast<int32_t>(i) - 1) return false;
  return true;
}

// `order`: places of the tokens that stay, parents before children.
void take(const std::vector<int32_t>& order, Guess* guess) {
  std::vector<int32_t> place(guess->size(), -1), parents;
  for (const int32_t i : order) {
    parents.push_back(guess->parent(i) < 0 ? -1 : place[guess->parent(i)]);
    place[i] = static_cast<int32_t>(parents.size()) - 1;
  }
  reorder(order, &guess->tokens);
  reorder(order, &guess->acceptance);
  reorder(order, &guess->kinds);
  if (are_chain(parents)) parents.clear();
  guess->parents.swap(parents);
}

}  // namespace

void Guess::clear() { tokens.clear(), parents.clear(), acceptance.clear(), kinds.clear(), is_whole = false; }

int32_t Guess::add(TokenId token, int32_t parent, double probability, int32_t kind) {
  if (parents.empty() && parent != size() - 1) {
    parents.resize(tokens.size());
    std::iota(parents.begin(), parents.end(), -1);
    parents.push_back(parent);
  } else if (!parents.empty()) {
    parents.push_back(parent);
  }
  tokens.push_back(token);
  acceptance.push_back(probability);
  kinds.push_back(kind);
  return size() - 1;
}

int32_t Guess::find(int32_t of_parent, TokenId token) const {
  for (int32_t i = of_parent + 1; i < size(); ++i)
    if (parent(i) == of_parent && tokens[i] == token) return i;
  return -1;
}

std::vector<int32_t> Guess::depths() const {
  std::vector<int32_t> depths(tokens.size(), 0);
  for (int32_t i = 0; i < size(); ++i)
    if (parent(i) >= 0) depths[i] = depths[parent(i)] + 1;
  return depths;
}

std::vector<double> Guess::probabilities() const {
  std::vector<double> all_right = acceptance;
  for (int32_t i = 0; i < size(); ++i)
    if (parent(i) >= 0) all_right[i] *= all_right[parent(i)];
  return all_right;
}

double Guess::expected() const {
  const std::vector<double> all_right = probabilities();
  return std::accumulate(all_right.begin(), all_right.end(), 0.0);
}

void Guess::keep(const std::vector<bool>& is_kept) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < size(); ++i)
    if (is_kept[i]) order.push_back(i);
  if (static_cast<int32_t>(order.size()) < size()) take(order, this);
}

void Guess::keep_first(int32_t count) {
  std::vector<bool> is_kept(tokens.size(), false);
  std::fill_n(is_kept.begin(), std::min(count, size()), true);
  keep(is_kept);
}

void Guess::keep_likeliest(int32_t count) {
  if (count >= size()) return;
  const std::vector<double> all_right = probabilities();
  std::vector<int32_t> places(tokens.size());
  std::iota(places.begin(), places.end(), 0);
  // Stable: of two that are alike the parent comes first.
  std::stable_sort(places.begin(), places.end(), [&](int32_t a, int32_t b) { return all_right[a] > all_right[b]; });
  std::vector<bool> is_kept(tokens.size(), false);
  for (int32_t i = 0; i < count; ++i) is_kept[places[i]] = true;
  keep(is_kept);
}

void Guess::put_likeliest_first() {
  if (parents.empty()) return;
  std::vector<std::vector<int32_t>> children(tokens.size() + 1);  // [0]: of the sequence's last token
  for (int32_t i = 0; i < size(); ++i) children[parent(i) + 1].push_back(i);
  for (std::vector<int32_t>& list : children)  // a stack gives the last one first
    std::stable_sort(list.begin(), list.end(), [&](int32_t a, int32_t b) { return acceptance[a] < acceptance[b]; });
  std::vector<int32_t> order, stack = children[0];
  while (!stack.empty()) {
    const int32_t i = stack.back();
    stack.pop_back();
    order.push_back(i);
    stack.insert(stack.end(), children[i + 1].begin(), children[i + 1].end());
  }
  take(order, this);
}

}  // namespace llmb
