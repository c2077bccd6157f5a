// Derivatives of expressions, and what is to be known of all of them before they are walked.
#include <algorithm>
#include <map>
#include <string>

#include "grammar/expr.h"

namespace llmb::grammar {

namespace {

int32_t one_less(int32_t count) { return count > 0 ? count - 1 : count; }  // also of 0 and kUnlimited

}  // namespace

ExprId ExprArena::derive(ExprId e, int32_t byte_class) {
  const size_t num_classes = class_byte_.size();
  if (nodes_[e].row < 0) {
    nodes_[e].row = static_cast<int32_t>(rows_.size());
    rows_.resize(rows_.size() + num_classes, -1);
  }
  ExprId next = derive_now(e, byte_class);
  if (nodes_[next].is_dead) next = kNothing;
  rows_[static_cast<size_t>(nodes_[e].row) + byte_class] = next;
  return next;
}

// derive() may move nodes_: nothing of a node is used behind it but by copy.
ExprId ExprArena::derive_now(ExprId e, int32_t byte_class) {
  const Node node = nodes_[e];
  switch (node.kind) {
    case Kind::kNone:
    case Kind::kEmpty:
    case Kind::kCall:
      return kNothing;
    case Kind::kBytes:
      return sets_[node.a].test(class_byte_[byte_class]) ? kEmptyString : kNothing;
    case Kind::kConcat: {
      const ExprId first = concat(next(node.a, byte_class), node.b);
      return is_nullable(node.a) ? either(first, next(node.b, byte_class)) : first;
    }
    case Kind::kRepeat:
      return concat(next(node.a, byte_class), repeat(node.a, one_less(node.b), one_less(node.c)));
    case Kind::kComplement:
      return complement(next(node.a, byte_class));
    case Kind::kMultiple:
      return derive_multiple(node, class_byte_[byte_class]);
    case Kind::kEither:
    case Kind::kBoth:
      break;
  }
  const auto all = members(node);
  const std::vector<ExprId> list(all.begin(), all.end());
  std::vector<ExprId> derived;
  for (const ExprId member : list)
    if (const ExprId d = next(member, byte_class); d != kNothing || node.kind == Kind::kBoth) derived.push_back(d);
  return node.kind == Kind::kBoth ? both(std::move(derived)) : either(std::move(derived));
}

std::string ExprArena::written(ExprId e) const {
  constexpr int32_t kMaxParts = 96;
  int32_t num_left = kMaxParts;
  std::string text;
  return write(e, &num_left, &text) ? text : "";
}

// Members of a list are in order of their ids, which differ between arenas: they are put in order of their texts.
bool ExprArena::write(ExprId e, int32_t* num_left, std::string* out) const {
  const Node& node = nodes_[e];
  if (--*num_left < 0 || has_call(e)) return false;
  *out += static_cast<char>('a' + static_cast<int>(node.kind));
  switch (node.kind) {
    case Kind::kBytes:
      *out += sets_[node.a].to_string<char, std::char_traits<char>, std::allocator<char>>();
      return true;
    case Kind::kConcat:
      return write(node.a, num_left, out) && write(node.b, num_left, out);
    case Kind::kRepeat:
      *out += std::to_string(node.b) + "," + std::to_string(node.c) + ";";
      return write(node.a, num_left, out);
    case Kind::kComplement:
      return write(node.a, num_left, out);
    case Kind::kMultiple:
      *out += std::to_string(node.a) + "," + std::to_string(node.b) + "," + std::to_string(node.c) + ";";
      return true;
    case Kind::kEither:
    case Kind::kBoth:
      break;
    default:
      return true;
  }
  std::vector<std::string> texts;
  for (const ExprId member : members(node))
    if (!write(member, num_left, &texts.emplace_back())) return false;
  std::sort(texts.begin(), texts.end());
  *out += std::to_string(texts.size()) + ";";
  for (const std::string& text : texts) *out += text;
  return true;
}

// Each time that something is repeated takes a byte at least.
ExprId ExprArena::without_limits(ExprId e, int32_t* num_bytes) {
  constexpr int kMaxParts = 8;  // of a sequence: the limits behind them stay
  const Node node = nodes_[e];
  *num_bytes = INT32_MAX;
  if (node.kind == Kind::kRepeat && node.c != kUnlimited) {
    *num_bytes = node.c;
    return repeat(node.a, node.b, kUnlimited);
  }
  if (node.kind != Kind::kConcat) return e;
  std::vector<ExprId> parts;
  ExprId rest = e;
  for (; nodes_[rest].kind == Kind::kConcat && parts.size() < kMaxParts; rest = nodes_[rest].b)
    parts.push_back(nodes_[rest].a);
  bool is_changed = false;
  for (ExprId& part : parts) {
    int32_t limit = 0;
    const ExprId free = without_limits(part, &limit);
    is_changed |= free != part;
    part = free;
    *num_bytes = std::min(*num_bytes, limit);
  }
  if (!is_changed) return e;
  for (size_t i = parts.size(); i-- > 0;) rest = concat(parts[i], rest);
  return rest;
}

ExprId ExprArena::derive_multiple(const Node& node, uint8_t byte) {
  const bool is_first = node.c >= kFirst, in_fraction = (node.c & kFraction) != 0;
  const int32_t left = node.c % kFraction;
  if (byte == '.')
    return is_first || in_fraction || left == 0
               ? kNothing
               : intern({.kind = Kind::kMultiple, .a = node.a, .b = node.b, .c = left + kFraction + kFirst}, {});
  if (byte < '0' || byte > '9' || (in_fraction && left == 0)) return kNothing;
  const auto rest = static_cast<int32_t>((int64_t{node.b} * 10 + (byte - '0')) % node.a);
  return intern({.kind = Kind::kMultiple, .a = node.a, .b = rest, .c = in_fraction ? left - 1 + kFraction : left}, {});
}

void ExprArena::next_parts(ExprId e, int32_t byte_class, std::vector<ExprId>* parts) {
  const Node node = nodes_[e];
  if (node.kind == Kind::kEither) {
    const auto all = members(node);
    const std::vector<ExprId> list(all.begin(), all.end());
    for (const ExprId member : list) next_parts(member, byte_class, parts);
  } else if (node.kind == Kind::kConcat || node.kind == Kind::kRepeat) {
    std::vector<ExprId> firsts;
    next_parts(node.a, byte_class, &firsts);
    const bool is_concat = node.kind == Kind::kConcat;
    const ExprId rest = firsts.empty() || is_concat ? node.b : repeat(node.a, one_less(node.b), one_less(node.c));
    for (const ExprId first : firsts) parts->push_back(concat(first, rest));
    if (is_concat && is_nullable(node.a)) next_parts(node.b, byte_class, parts);
  } else if (const ExprId d = next(e, byte_class); d != kNothing) {
    parts->push_back(d);
  }
}

std::span<const RuleCall> ExprArena::calls(ExprId e) {
  if ((nodes_[e].flags & kStartsWithCall) == 0) return {};
  if (nodes_[e].calls >= 0) return calls_[nodes_[e].calls];
  const Node node = nodes_[e];
  std::vector<RuleCall> found;
  const auto add = [&](ExprId from, ExprId rest) {
    const auto span = calls(from);
    const std::vector<RuleCall> inner(span.begin(), span.end());
    for (const RuleCall& call : inner) {
      const RuleCall longer{call.rule, concat(call.rest, rest)};
      if (std::find(found.begin(), found.end(), longer) == found.end()) found.push_back(longer);
    }
  };
  if (node.kind == Kind::kCall) {
    found.push_back({node.a, kEmptyString});
  } else if (node.kind == Kind::kConcat) {
    add(node.a, node.b);
    if (is_nullable(node.a)) add(node.b, kEmptyString);
  } else if (node.kind == Kind::kRepeat) {
    add(node.a, repeat(node.a, one_less(node.b), one_less(node.c)));
  } else if (node.kind == Kind::kEither) {
    const auto all = members(node);
    const std::vector<ExprId> list(all.begin(), all.end());
    for (const ExprId member : list) add(member, kEmptyString);
  }
  nodes_[e].calls = static_cast<int32_t>(calls_.size());
  calls_.push_back(std::move(found));
  return calls_.back();
}

void ExprArena::find_classes() {
  // Bytes are in one class where the same sets hold them; numbers tell digits apart.
  std::vector<int32_t> group(256, 0);
  int32_t num_groups = 1;
  const auto split = [&](const auto& key_of) {
    std::map<std::pair<int32_t, int32_t>, int32_t> renumbered;
    for (int b = 0; b < 256; ++b) {
      const auto [at, is_new] =
          renumbered.emplace(std::pair{group[b], key_of(b)}, static_cast<int32_t>(renumbered.size()));
      group[b] = at->second;
    }
    num_groups = static_cast<int32_t>(renumbered.size());
  };
  for (const ByteSet& set : sets_)
    if (num_groups < 256) split([&](int b) { return set.test(static_cast<size_t>(b)) ? 1 : 0; });
  const bool has_numbers =
      std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.kind == Kind::kMultiple; });
  if (has_numbers) split([](int b) { return (b >= '0' && b <= '9') || b == '.' ? b : 0; });
  class_byte_.assign(static_cast<size_t>(num_groups), 0);
  for (int b = 0; b < 256; ++b) class_of_[b] = group[b], class_byte_[group[b]] = static_cast<uint8_t>(b);
  rows_.clear();
  for (Node& node : nodes_) node.row = -1;
}

// Walks all states behind `start` and marks the empty ones dead.
Status ExprArena::explore(ExprId start, int32_t* budget) {
  std::map<ExprId, int32_t> index;
  std::vector<ExprId> states = {start};
  index[start] = 0;
  std::vector<std::vector<int32_t>> before(1);
  for (size_t i = 0; i < states.size(); ++i) {
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
  std::vector<int32_t> todo;
  for (size_t i = 0; i < states.size(); ++i)
    if (is_nullable(states[i])) is_alive[i] = true, todo.push_back(static_cast<int32_t>(i));
  while (!todo.empty()) {
    const int32_t state = todo.back();
    todo.pop_back();
    for (const int32_t from : before[state])
      if (!is_alive[from]) is_alive[from] = true, todo.push_back(from);
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

std::vector<bool> ExprArena::productive_rules(std::span<const ExprId> bodies) const {
  std::vector<bool> is_productive(bodies.size(), false), has_string(nodes_.size());
  for (bool is_changed = true; is_changed;) {
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
  find_classes();
  LLMB_RETURN_IF_ERROR(find_empty_sets(*bodies));
  const std::vector<bool> is_productive = productive_rules(*bodies);
  const std::vector<ExprId> now = rebuild(size(), [&](ExprId e, const Node& node) -> ExprId {
    if (node.is_dead || (node.kind == Kind::kCall && !is_productive[node.a])) return kNothing;
    const bool is_set = node.kind == Kind::kBoth || node.kind == Kind::kComplement || node.kind == Kind::kMultiple;
    return is_set ? e : ExprId{-1};
  });
  for (ExprId& body : *bodies) body = now[body];
  return {};
}

bool ExprArena::is_empty(ExprId e) {
  if ((nodes_[e].flags & kIsSet) == 0) return e == kNothing;
  find_classes();
  int32_t budget = kMaxSetStates;
  return explore(e, &budget).ok() && nodes_[e].is_dead;
}

bool ExprArena::contains(ExprId e, std::string_view text) {
  find_classes();
  for (const char c : text) e = next(e, byte_class(static_cast<uint8_t>(c)));
  return is_nullable(e);
}

}  // namespace llmb::grammar
