// Finds out what is to be known of all expressions before they are walked: classes of bytes, what is empty, what would be slow.
#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "grammar/expr.h"

namespace llmb::grammar {

// Bytes are in one class where the same sets hold them; numbers tell digits apart.
void ExprArena::find_classes() {
  if (!class_byte_.empty() && num_classified_sets_ == sets_.size() && classified_numbers_ == has_numbers_) return;
  num_classified_sets_ = sets_.size(), classified_numbers_ = has_numbers_;
  spend(static_cast<int64_t>(16 * sets_.size() + nodes_.size() / 16));
  std::vector<int32_t> group(256, 0);
  int32_t num_groups = 1;
  for (const ByteSet& set : sets_) {
    if (num_groups == 256) break;
    std::vector<int32_t> renumbered(512, -1);
    num_groups = 0;
    for (size_t b = 0; b < 256; ++b) {
      int32_t& number = renumbered[static_cast<size_t>(group[b]) * 2 + set.test(b)];
      if (number < 0) number = num_groups++;
      group[b] = number;
    }
  }
  for (const char c : std::string_view(has_numbers_ ? "0123456789." : "")) {
    const auto byte = static_cast<size_t>(c);
    if (std::count(group.begin(), group.end(), group[byte]) > 1) group[byte] = num_groups++;
  }
  class_byte_.assign(static_cast<size_t>(num_groups), 0);
  for (int b = 0; b < 256; ++b) class_of_[b] = group[b], class_byte_[group[b]] = static_cast<uint8_t>(b);
  rows_.clear();
  for (Node& node : nodes_) node.row = -1;
}

// Walks all states behind `start` and marks the empty ones dead.
Status ExprArena::explore(ExprId start, int32_t* budget) {
  std::unordered_map<ExprId, int32_t> index;
  std::vector<ExprId> states = {start};
  index[start] = 0;
  std::vector<std::vector<int32_t>> before(1);
  for (size_t i = 0; i < states.size(); ++i) {
    spend(4 + 2 * static_cast<int64_t>(class_byte_.size()));
    for (int32_t c = 0; c < static_cast<int32_t>(class_byte_.size()); ++c) {
      const ExprId to = next(states[i], c);
      if (to == kNothing) continue;
      const auto [at, is_new] = index.emplace(to, static_cast<int32_t>(states.size()));
      if (is_new) states.push_back(to), before.emplace_back();
      before[at->second].push_back(static_cast<int32_t>(i));
    }
    if (--*budget < 0)
      return resource_exhausted("patterns and bounds that hold at once need more than " +
                                std::to_string(kMaxSetStates) + " states; use shorter bounds or simpler patterns");
  }
  std::vector<bool> is_alive(states.size(), false);
  std::vector<int32_t> pending;
  for (size_t i = 0; i < states.size(); ++i)
    if (is_nullable(states[i])) is_alive[i] = true, pending.push_back(static_cast<int32_t>(i));
  while (!pending.empty()) {
    const int32_t state = pending.back();
    pending.pop_back();
    for (const int32_t from : before[state])
      if (!is_alive[from]) is_alive[from] = true, pending.push_back(from);
  }
  for (size_t i = 0; i < states.size(); ++i) {
    if (!is_alive[i]) nodes_[states[i]].is_dead = true;
    for (size_t c = 0; c < class_byte_.size() && nodes_[states[i]].row >= 0; ++c) {
      ExprId& to = rows_[static_cast<size_t>(nodes_[states[i]].row) + c];
      if (to > kNothing && !is_alive[index.at(to)]) to = kNothing;
    }
  }
  return {};
}

// Intersections, complements and multiples may be empty without looking so: the outermost ones are walked.
Status ExprArena::find_empty_sets(std::span<const ExprId> bodies) {
  std::vector<bool> is_reached(nodes_.size(), false);
  for (const ExprId body : bodies) is_reached[body] = true;
  std::vector<ExprId> outermost;
  for (ExprId e = size() - 1; e >= 0; --e) {
    const Node& node = nodes_[e];
    if (!is_reached[e] || (node.flags & kIsSet) == 0) continue;
    if (node.kind == Kind::kConcat) is_reached[node.a] = is_reached[node.b] = true;
    else if (node.kind == Kind::kRepeat) is_reached[node.a] = true;
    else if (node.kind == Kind::kEither)
      for (const ExprId member : members(node)) is_reached[member] = true;
    else outermost.push_back(e);
  }
  int32_t budget = kMaxSetStates;
  for (const ExprId e : outermost) LLMB_RETURN_IF_ERROR(explore(e, &budget));
  return {};
}

std::vector<bool> ExprArena::productive_rules(std::span<const ExprId> bodies) {
  std::vector<bool> is_productive(bodies.size(), false), has_string(nodes_.size());
  for (bool is_changed = true; is_changed;) {
    spend(static_cast<int64_t>(nodes_.size() + bodies.size()) / 4);
    for (ExprId e = 0; e < size(); ++e) {
      const Node& node = nodes_[e];
      const auto has = [&](ExprId member) { return has_string[member]; };
      switch (node.kind) {
        case Kind::kCall:
          has_string[e] = is_productive[node.a];
          break;
        case Kind::kConcat:
          has_string[e] = has_string[node.a] && has_string[node.b];
          break;
        case Kind::kEither:
          has_string[e] = std::any_of(members(node).begin(), members(node).end(), has);
          break;
        case Kind::kRepeat:
          has_string[e] = node.b == 0 || has_string[node.a];
          break;
        default:
          has_string[e] = e != kNothing && !node.is_dead;
      }
    }
    is_changed = false;
    for (size_t rule = 0; rule < bodies.size(); ++rule)
      if (!is_productive[rule] && has_string[bodies[rule]]) is_productive[rule] = is_changed = true;
  }
  return is_productive;
}

Status ExprArena::settle(std::vector<ExprId>* bodies) {
  try {
    LLMB_RETURN_IF_ERROR(settle_counted(bodies));
  } catch (const OverBudget&) {
    return over_budget();
  }
  work_left_ = INT64_MAX;
  return {};
}

Status ExprArena::settle_counted(std::vector<ExprId>* bodies) {
  find_classes();
  LLMB_RETURN_IF_ERROR(find_empty_sets(*bodies));
  const std::vector<bool> is_productive = productive_rules(*bodies);
  const std::vector<ExprId> now = rebuild(size(), [&](ExprId e, const Node& node) -> ExprId {
    if (node.is_dead || (node.kind == Kind::kCall && !is_productive[node.a])) return kNothing;
    const bool is_set = node.kind == Kind::kBoth || node.kind == Kind::kComplement || node.kind == Kind::kMultiple;
    return is_set ? e : ExprId{-1};
  });
  for (ExprId& body : *bodies) body = now[body];
  try_walk(*bodies);
  return {};
}

// The first states, as walking will make them, and some paths behind them: what makes even these slow is refused here.
void ExprArena::try_walk(std::span<const ExprId> bodies) {
  constexpr size_t kMaxStates = 64, kMaxBodies = 64;
  for (const ExprId body : bodies.first(std::min(bodies.size(), kMaxBodies))) {
    std::vector<ExprId> states = {body};
    for (size_t i = 0; i < states.size() && states.size() < kMaxStates; ++i) {
      calls(states[i]);
      for (int32_t c = 0; c < static_cast<int32_t>(class_byte_.size()); ++c) {
        const ExprId to = next(states[i], c);
        if (to != kNothing && std::find(states.begin(), states.end(), to) == states.end()) states.push_back(to);
      }
    }
    try_paths(body);
  }
}

// Each goes on by one class of bytes as long as it can, then by others.
void ExprArena::try_paths(ExprId body) {
  constexpr int32_t kMaxPaths = 8, kMaxSteps = 96;
  const auto num_classes = static_cast<int32_t>(class_byte_.size());
  for (int32_t path = 0; path < std::min(num_classes, kMaxPaths); ++path) {
    ExprId state = body, before = kNothing;
    for (int32_t step = 0; step < kMaxSteps && state != before; ++step) {
      before = state;
      state = next(before, path);
      for (int32_t c = 0; c < num_classes && state == kNothing; ++c)
        state = next(before, (path + step + c) % num_classes);
      if (state == kNothing) break;
    }
  }
}

bool ExprArena::is_empty(ExprId e) {
  if ((nodes_[e].flags & kIsSet) == 0) return e == kNothing;
  find_classes();
  int32_t budget = kMaxSetStates;
  return explore(e, &budget).ok() && nodes_[e].is_dead;
}

bool ExprArena::contains(ExprId e, std::string_view text) {
  find_classes();
  spend(static_cast<int64_t>(text.size()));
  for (const char c : text) e = next(e, byte_class(static_cast<uint8_t>(c)));
  return is_nullable(e);
}

}  // namespace llmb::grammar
