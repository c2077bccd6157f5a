#include "speculation/suffix_automaton.h"

#include <algorithm>

#include "base/check.h"

namespace llmb {

namespace {

// States above the one that matches, whose place is made the newest with each token: more would cost more than it
// finds.
constexpr int kNumRenewed = 8;

// A vector that doubles has up to twice the memory that it needs.
template <typename T>
void push(std::vector<T>* items, const T& item) {
  const size_t size = items->size();
  if (size == items->capacity()) items->reserve(size + size / 8 + 8);
  items->push_back(item);
}

}  // namespace

SuffixAutomaton::SuffixAutomaton() : states_(1), table_(16, -1) {}

int64_t SuffixAutomaton::num_bytes() const {
  return static_cast<int64_t>(text_.capacity() * sizeof(TokenId) + states_.capacity() * sizeof(State) +
                              edges_.capacity() * sizeof(Edge) + table_.capacity() * sizeof(int32_t));
}

size_t SuffixAutomaton::bucket(int32_t state, TokenId token) const {
  const uint64_t key = uint64_t{static_cast<uint32_t>(state)} << 32 | static_cast<uint32_t>(token);
  return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 32) & (table_.size() - 1);
}

int32_t* SuffixAutomaton::find(int32_t state, TokenId token) {
  State& s = states_[state];
  if (s.target >= 0 && s.token == token) return &s.target;
  if (s.more < 0) return nullptr;
  for (size_t at = bucket(state, token); table_[at] >= 0; at = (at + 1) & (table_.size() - 1)) {
    Edge& edge = edges_[table_[at]];
    if (edge.state == state && edge.token == token) return &edge.target;
  }
  return nullptr;
}

void SuffixAutomaton::insert_edge(int32_t edge) {
  size_t at = bucket(edges_[edge].state, edges_[edge].token);
  while (table_[at] >= 0) at = (at + 1) & (table_.size() - 1);
  table_[at] = edge;
}

void SuffixAutomaton::add_transition(int32_t state, TokenId token, int32_t to) {
  State& s = states_[state];
  if (s.target < 0) {
    s.token = token;
    s.target = to;
    return;
  }
  push(&edges_, Edge{state, to, s.more, token});
  s.more = static_cast<int32_t>(edges_.size()) - 1;
  if (edges_.size() * 4 <= table_.size() * 3) return insert_edge(s.more);
  table_.assign(table_.size() * 2, -1);
  for (size_t edge = 0; edge < edges_.size(); ++edge) insert_edge(static_cast<int32_t>(edge));
}

// Behind `from` the token leads to `state`, which also has longer texts: a state of its own for those that end in it by
// way of `from`, with all that follows.
int32_t SuffixAutomaton::split(int32_t from, int32_t state, TokenId token) {
  const auto clone = static_cast<int32_t>(states_.size());
  State copy = states_[state];
  const int32_t more = copy.more;
  copy.length = states_[from].length + 1;
  copy.more = -1;
  push(&states_, copy);
  for (int32_t edge = more; edge >= 0; edge = edges_[edge].next)
    add_transition(clone, edges_[edge].token, edges_[edge].target);
  for (; from >= 0; from = states_[from].link) {
    int32_t* found = find(from, token);
    if (found == nullptr || *found != state) break;
    *found = clone;
  }
  states_[state].link = clone;
  return clone;
}

void SuffixAutomaton::append(TokenId token) {
  push(&text_, token);
  const int32_t end = size();
  LLMB_CHECK(end <= 1 << 29);
  if (token == kTextEnd) {  // no transition leads over it
    last_ = 0;
    repeated_end_ = {};
    return;
  }
  // Behind a kTextEnd the text may repeat an earlier one from its beginning: then its state is there already.
  const int32_t known = target(last_, token);
  int32_t link = 0;
  if (known >= 0) {
    link = last_ = states_[known].length == states_[last_].length + 1 ? known : split(last_, known, token);
  } else {
    const auto state = static_cast<int32_t>(states_.size());
    State added;
    added.length = states_[last_].length + 1;
    added.newest = end;
    push(&states_, added);
    int32_t from = last_;
    const int32_t* found = nullptr;
    for (; from >= 0 && (found = find(from, token)) == nullptr; from = states_[from].link)
      add_transition(from, token, state);
    if (from >= 0) {
      const int32_t to = *found;
      link = states_[to].length == states_[from].length + 1 ? to : split(from, to, token);
    }
    states_[state].link = link;
    last_ = state;
  }
  repeated_end_ = {states_[link].length, states_[link].newest};
  for (int i = 0; i < kNumRenewed && link > 0; ++i, link = states_[link].link) states_[link].newest = end;
}

void SuffixAutomaton::Cursor::advance(const SuffixAutomaton& automaton, TokenId token) {
  const std::vector<State>& states = automaton.states_;
  // Since the last call the state may have been split: what matches belongs to the shorter one.
  while (state_ > 0 && length_ <= states[states[state_].link].length) state_ = states[state_].link;
  int32_t next = automaton.target(state_, token);
  while (next < 0 && state_ > 0) {
    state_ = states[state_].link;
    length_ = states[state_].length;
    next = automaton.target(state_, token);
  }
  if (next < 0) return;
  state_ = next;
  ++length_;
}

SuffixAutomaton::Match SuffixAutomaton::Cursor::match(const SuffixAutomaton& automaton) const {
  if (length_ == 0) return {};
  return {length_, automaton.states_[state_].newest};
}

void SuffixAutomaton::continue_match(Match match, int32_t count, std::vector<TokenId>* out) const {
  if (match.length == 0 || match.end == size()) return;
  for (int32_t i = 0, at = match.end; i < count; ++i, ++at) {
    if (at == size()) at = match.end;
    if (text_[at] == kTextEnd) return;
    out->push_back(text_[at]);
  }
}

}  // namespace llmb
