// Derivatives of expressions.
#include <algorithm>
#include <string>

#include "grammar/expr.h"

namespace llmb::grammar {

namespace {

int32_t one_less(int32_t count) { return count > 0 ? count - 1 : count; }  // also of 0 and kUnlimited

}  // namespace

void ExprArena::add_row(ExprId e) {
  nodes_[e].row = static_cast<int32_t>(rows_.size());
  rows_.resize(rows_.size() + class_byte_.size(), -1);
}

ExprId ExprArena::derive(ExprId e, int32_t byte_class) {
  if (nodes_[e].row < 0) add_row(e);
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
    case Kind::kConcat:
      return derive_sequence(node, byte_class);
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

// Parts that may be left out make a union; not by recursion, as there may be any number of them.
ExprId ExprArena::derive_sequence(Node node, int32_t byte_class) {
  const ExprId first = concat(next(node.a, byte_class), node.b);
  if (!is_nullable(node.a)) return first;
  std::vector<ExprId> parts = {first};
  ExprId rest = node.b;
  for (node = nodes_[rest]; node.kind == Kind::kConcat && is_nullable(node.a); node = nodes_[rest = node.b])
    parts.push_back(concat(next(node.a, byte_class), node.b));
  parts.push_back(next(rest, byte_class));
  return either(std::move(parts));
}

std::string ExprArena::written(ExprId e) const {
  constexpr int32_t kMaxParts = 512;  // the text of a JSON string has 97
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
      out->append(reinterpret_cast<const char*>(&sets_[node.a]), sizeof(ByteSet));
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
ExprId ExprArena::without_limits(ExprId e, int32_t least_upper, int32_t most_needed, int32_t* num_bytes) {
  constexpr size_t kMaxMembers = 8;
  if (nodes_[e].kind != Kind::kEither || members(nodes_[e]).size() > kMaxMembers)
    return sequence_without_limits(e, least_upper, most_needed, num_bytes);
  const auto all = members(nodes_[e]);
  std::vector<ExprId> list(all.begin(), all.end());
  *num_bytes = INT32_MAX;
  bool is_changed = false;
  for (ExprId& member : list) {
    int32_t limit = 0;
    const ExprId free = sequence_without_limits(member, least_upper, most_needed, &limit);
    is_changed |= free != member;
    member = free;
    *num_bytes = std::min(*num_bytes, limit);
  }
  return is_changed ? either(std::move(list)) : e;
}

ExprId ExprArena::sequence_without_limits(ExprId e, int32_t least_upper, int32_t most_needed, int32_t* num_bytes) {
  constexpr int kMaxParts = 8;  // of a sequence: the limits behind them stay
  const Node node = nodes_[e];
  *num_bytes = INT32_MAX;
  if (node.kind == Kind::kRepeat) {
    const bool has_upper = node.c != kUnlimited && node.c >= least_upper, needs_many = node.b > most_needed;
    if (!has_upper && !needs_many) return e;
    if (has_upper) *num_bytes = node.c;
    if (needs_many) *num_bytes = std::min(*num_bytes, most_needed - 1);
    return repeat(node.a, needs_many ? most_needed : node.b, has_upper ? kUnlimited : node.c);
  }
  if (node.kind != Kind::kConcat) return e;
  std::vector<ExprId> parts;
  ExprId rest = e;
  for (; nodes_[rest].kind == Kind::kConcat && parts.size() < kMaxParts; rest = nodes_[rest].b)
    parts.push_back(nodes_[rest].a);
  bool is_changed = false;
  for (ExprId& part : parts) {
    int32_t limit = 0;
    const ExprId free = sequence_without_limits(part, least_upper, most_needed, &limit);
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
      spend(1 + static_cast<int64_t>(found.size()) / 8);
      const RuleCall longer{call.rule, concat(call.rest, rest)};
      if (std::find(found.begin(), found.end(), longer) == found.end()) found.push_back(longer);
    }
  };
  if (node.kind == Kind::kCall) {
    found.push_back({node.a, kEmptyString});
  } else if (node.kind == Kind::kConcat) {
    Node part = node;  // not by recursion: any number of parts may be left out
    add(part.a, part.b);
    while (is_nullable(part.a) && nodes_[part.b].kind == Kind::kConcat) {
      part = nodes_[part.b];
      add(part.a, part.b);
    }
    if (is_nullable(part.a)) add(part.b, kEmptyString);
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

void ExprArena::keep_settled() { num_kept_nodes_ = nodes_.size(), num_kept_lists_ = lists_.size(); }

void ExprArena::forget_walk() {
  nodes_.resize(num_kept_nodes_);
  lists_.resize(num_kept_lists_);
  nodes_.shrink_to_fit(), lists_.shrink_to_fit();
  rows_ = {}, calls_ = {};
  for (Node& node : nodes_) node.row = node.calls = -1;
  size_t size = 1 << 10;
  while (size <= 2 * nodes_.size()) size *= 2;
  table_.assign(size / 2, -1);
  table_.shrink_to_fit();
  grow_table();
}

}  // namespace llmb::grammar
