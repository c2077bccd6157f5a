#include "grammar/expr.h"

#include <algorithm>

#include "base/check.h"

namespace llmb::grammar {

namespace {

size_t mix(size_t h, size_t value) { return (h ^ value) * 0x9E3779B97F4A7C15u ^ (h >> 29); }

}  // namespace

Status over_budget() {
  return resource_exhausted(
      "it takes more work or memory to compile than the 100 ms and 64 MiB that a form may take; use fewer "
      "alternatives, smaller counts or simpler patterns");
}

ExprArena::ExprArena() {
  table_.assign(1 << 10, -1);
  LLMB_CHECK(intern({.kind = Kind::kNone}, {}) == kNothing);
  LLMB_CHECK(intern({.kind = Kind::kEmpty}, {}) == kEmptyString);
}

size_t ExprArena::num_bytes() const {
  return nodes_.size() * (sizeof(Node) + 8) + lists_.size() * sizeof(ExprId) + rows_.size() * sizeof(ExprId) +
         sets_.size() * sizeof(ByteSet) + calls_.size() * 64;
}

size_t ExprArena::hash_of(const Node& node, std::span<const ExprId> members) {
  const bool is_list = node.kind == Kind::kEither || node.kind == Kind::kBoth;
  size_t h = mix(static_cast<size_t>(node.kind) + 1, is_list ? 0 : static_cast<size_t>(node.a));
  h = mix(mix(h, static_cast<size_t>(node.b)), static_cast<size_t>(node.c));
  for (const ExprId member : members) h = mix(h, static_cast<size_t>(member));
  return h ^ h >> 32;
}

bool ExprArena::same(const Node& a, std::span<const ExprId> a_members, const Node& b) const {
  if (a.kind != b.kind || a.b != b.b || a.c != b.c) return false;
  if (a.kind != Kind::kEither && a.kind != Kind::kBoth) return a.a == b.a;
  return std::equal(a_members.begin(), a_members.end(), members(b).begin());
}

void ExprArena::grow_table() {
  table_.assign(table_.size() * 2, -1);
  const size_t mask = table_.size() - 1;
  for (ExprId e = 0; e < size(); ++e) {
    const Node& node = nodes_[e];
    const bool is_list = node.kind == Kind::kEither || node.kind == Kind::kBoth;
    size_t slot = hash_of(node, is_list ? members(node) : std::span<const ExprId>()) & mask;
    while (table_[slot] >= 0) slot = (slot + 1) & mask;
    table_[slot] = e;
  }
}

ExprId ExprArena::intern(Node node, std::span<const ExprId> list) {
  spend(1 + static_cast<int64_t>(list.size()) / 2);
  const size_t mask = table_.size() - 1;
  size_t slot = hash_of(node, list) & mask;
  for (; table_[slot] >= 0; slot = (slot + 1) & mask)
    if (same(node, list, nodes_[table_[slot]])) return table_[slot];
  node.flags = flags_of(node, list);
  if (!list.empty()) {
    node.a = static_cast<int32_t>(lists_.size());
    lists_.insert(lists_.end(), list.begin(), list.end());
  }
  if (work_left_ <= kMaxCompileWork && num_bytes() > kMaxArenaBytes) throw OverBudget();
  const ExprId id = size();
  nodes_.push_back(node);
  table_[slot] = id;
  if (nodes_.size() * 2 > table_.size()) grow_table();
  return id;
}

uint8_t ExprArena::flags_of(const Node& node, std::span<const ExprId> list) const {
  const auto of = [this](ExprId e) { return nodes_[e].flags; };
  constexpr uint8_t kStarts = kStartsWithCall | kStartsWithByte;
  uint8_t flags = 0;
  switch (node.kind) {
    case Kind::kNone:
      return 0;
    case Kind::kEmpty:
      return kNullable;
    case Kind::kBytes:
      return kStartsWithByte;
    case Kind::kConcat:
      flags = (of(node.a) & kStarts) | ((of(node.a) | of(node.b)) & (kHasCall | kIsSet));
      if (of(node.a) & kNullable) flags |= of(node.b) & (kStarts | kNullable);
      return flags;
    case Kind::kEither:
      for (const ExprId e : list) flags |= of(e);
      return flags;
    case Kind::kRepeat:
      return of(node.a) | (node.b == 0 ? kNullable : 0);
    case Kind::kBoth:
      flags = kNullable | kStartsWithByte | kIsSet;
      for (const ExprId e : list) flags &= of(e) | static_cast<uint8_t>(~kNullable);
      return flags;
    case Kind::kComplement:
      return kStartsWithByte | kIsSet | (of(node.a) & kNullable ? 0 : kNullable);
    case Kind::kMultiple: {
      int64_t rest = node.b;
      for (int32_t i = node.c % kFraction; i > 0; --i) rest = rest * 10 % node.a;
      return kStartsWithByte | kIsSet | (rest == 0 && node.c < kFirst ? kNullable : 0);
    }
    case Kind::kCall:
      return kHasCall | kStartsWithCall;
  }
  return 0;
}

ExprId ExprArena::bytes(const ByteSet& set) {
  if (set.none()) return kNothing;
  const auto [at, is_new] = index_of_set_.emplace(set, static_cast<int32_t>(sets_.size()));
  if (is_new) sets_.push_back(set);
  return intern({.kind = Kind::kBytes, .a = at->second}, {});
}

ExprId ExprArena::byte_range(uint8_t first, uint8_t last) {
  ByteSet set;
  for (int b = first; b <= last; ++b) set.set(static_cast<size_t>(b));
  return bytes(set);
}

ExprId ExprArena::literal(std::string_view text, ExprId rest) {
  for (size_t i = text.size(); i-- > 0;) rest = concat(byte(static_cast<uint8_t>(text[i])), rest);
  return rest;
}

ExprId ExprArena::one_of(std::vector<std::string_view> texts) {
  for (const std::string_view text : texts) spend(2 + static_cast<int64_t>(text.size()) / 8);
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return texts.empty() ? kNothing : one_of_sorted(texts, 0);
}

// The texts agree in their first `begin` bytes; the result matches the rest of each. Recurs where texts part.
ExprId ExprArena::one_of_sorted(std::span<const std::string_view> texts, size_t begin) {
  const std::string_view first = texts.front(), last = texts.back();
  size_t end = begin;
  while (end < first.size() && end < last.size() && first[end] == last[end]) ++end;
  std::vector<ExprId> parted;
  size_t from = 0;
  if (first.size() == end) parted.push_back(kEmptyString), ++from;
  while (from < texts.size()) {
    const char lead = texts[from][end];
    size_t to = from;
    while (to < texts.size() && texts[to][end] == lead) ++to;
    parted.push_back(literal({&lead, 1}, one_of_sorted(texts.subspan(from, to - from), end + 1)));
    from = to;
  }
  return literal(first.substr(begin, end - begin), either(std::move(parted)));
}

ExprId ExprArena::concat(ExprId first, ExprId second) {
  if (first == kNothing || second == kNothing) return kNothing;
  if (first == kEmptyString) return second;
  if (second == kEmptyString) return first;
  if (nodes_[first].kind != Kind::kConcat) return intern({.kind = Kind::kConcat, .a = first, .b = second}, {});
  std::vector<ExprId> parts;
  for (; nodes_[first].kind == Kind::kConcat; first = nodes_[first].b) parts.push_back(nodes_[first].a);
  parts.push_back(first);
  for (size_t i = parts.size(); i-- > 0;) second = concat(parts[i], second);
  return second;
}

ExprId ExprArena::sequence(std::span<const ExprId> parts) {
  ExprId all = kEmptyString;
  for (size_t i = parts.size(); i-- > 0;) all = concat(parts[i], all);
  return all;
}

// Flat, sorted, each once.
void ExprArena::normalise_list(Kind kind, std::vector<ExprId>& list) {
  std::vector<ExprId> flat;
  for (const ExprId e : list) {
    if (nodes_[e].kind == kind) {
      const auto inner = members(nodes_[e]);
      flat.insert(flat.end(), inner.begin(), inner.end());
    } else {
      flat.push_back(e);
    }
  }
  spend(static_cast<int64_t>(flat.size()) / 2);
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  list = std::move(flat);
}

void ExprArena::merge_byte_sets(std::vector<ExprId>& list) {
  ByteSet set;
  int num_sets = 0;
  for (const ExprId e : list)
    if (nodes_[e].kind == Kind::kBytes) set |= sets_[nodes_[e].a], ++num_sets;
  if (num_sets < 2) return;
  std::erase_if(list, [this](ExprId e) { return nodes_[e].kind == Kind::kBytes; });
  const ExprId merged = bytes(set);
  list.insert(std::lower_bound(list.begin(), list.end(), merged), merged);
}

ExprId ExprArena::either(std::vector<ExprId> list) {
  if (list.size() == 2 && list[0] == list[1]) return list[0];
  normalise_list(Kind::kEither, list);
  if (!list.empty() && list[0] == kNothing) list.erase(list.begin());
  merge_byte_sets(list);
  if (!list.empty() && list[0] == kEmptyString) {
    const auto nullable = [this](ExprId e) { return is_nullable(e); };
    if (std::any_of(list.begin() + 1, list.end(), nullable)) list.erase(list.begin());
  }
  if (list.size() <= 1) return list.empty() ? kNothing : list[0];
  return intern({.kind = Kind::kEither, .b = static_cast<int32_t>(list.size())}, list);
}

ExprId ExprArena::repeat(ExprId e, int32_t min, int32_t max) {
  LLMB_CHECK(min >= 0 && (max == kUnlimited || max >= min));
  if (max == 0 || e == kEmptyString) return kEmptyString;
  if (e == kNothing) return min == 0 ? kEmptyString : kNothing;
  if (is_nullable(e)) min = 0;
  const Node& inner = nodes_[e];
  if (inner.kind == Kind::kRepeat && inner.b == 0 && inner.c == kUnlimited) return e;
  if (min == 1 && max == 1) return e;
  return intern({.kind = Kind::kRepeat, .a = e, .b = min, .c = max}, {});
}

ExprId ExprArena::both(std::vector<ExprId> list) {
  normalise_list(Kind::kBoth, list);
  std::erase(list, complement(kNothing));
  for (const ExprId e : list) LLMB_CHECK(!has_call(e));
  if (!list.empty() && list[0] == kNothing) return kNothing;
  if (list.empty()) return complement(kNothing);
  if (list.size() == 1) return list[0];
  return intern({.kind = Kind::kBoth, .b = static_cast<int32_t>(list.size())}, list);
}

ExprId ExprArena::complement(ExprId e) {
  LLMB_CHECK(!has_call(e));
  if (nodes_[e].kind == Kind::kComplement) return nodes_[e].a;
  return intern({.kind = Kind::kComplement, .a = e}, {});
}

ExprId ExprArena::multiple_of(int32_t modulus, int32_t decimals) {
  LLMB_CHECK(modulus >= 1 && decimals >= 0 && decimals < kFraction);
  has_numbers_ = true;
  return intern({.kind = Kind::kMultiple, .a = modulus, .b = 0, .c = decimals + kFirst}, {});
}

ExprId ExprArena::call(RuleId rule) { return intern({.kind = Kind::kCall, .a = rule}, {}); }

std::vector<ExprId> ExprArena::rebuild(ExprId limit, const std::function<ExprId(ExprId, const Node&)>& leaf) {
  spend(limit);
  std::vector<ExprId> now(static_cast<size_t>(limit));
  for (ExprId e = 0; e < limit; ++e) {
    const Node node = nodes_[e];
    now[e] = leaf(e, node);
    if (now[e] >= 0) continue;
    std::vector<ExprId> list;
    if (node.kind == Kind::kEither || node.kind == Kind::kBoth)
      for (const ExprId member : members(node)) list.push_back(now[member]);
    switch (node.kind) {
      case Kind::kConcat:
        now[e] = concat(now[node.a], now[node.b]);
        break;
      case Kind::kEither:
        now[e] = either(std::move(list));
        break;
      case Kind::kRepeat:
        now[e] = repeat(now[node.a], node.b, node.c);
        break;
      case Kind::kBoth:
        now[e] = both(std::move(list));
        break;
      case Kind::kComplement:
        now[e] = complement(now[node.a]);
        break;
      default:
        now[e] = e;
    }
  }
  return now;
}

ExprId ExprArena::restrict_bytes(ExprId e, const ByteSet& keep) {
  return rebuild(e + 1, [&](ExprId, const Node& node) {
    return node.kind == Kind::kBytes ? bytes(sets_[node.a] & keep) : ExprId{-1};
  })[e];
}

void ExprArena::fold_rules(std::vector<ExprId>* bodies) {
  constexpr int kMaxRounds = 16;
  for (int round = 0; round < kMaxRounds; ++round) {
    const std::vector<ExprId> before = *bodies;
    const std::vector<ExprId> now = rebuild(size(), [&](ExprId, const Node& node) {
      const bool is_flat = node.kind == Kind::kCall && !has_call(before[node.a]);
      return is_flat ? before[node.a] : ExprId{-1};
    });
    for (ExprId& body : *bodies) body = now[body];
    if (*bodies == before) return;
  }
}

ExprId ExprArena::without_last_byte(ExprId limit, uint8_t end) {
  spend(limit);
  std::vector<ExprId> now(static_cast<size_t>(limit) + 1, kNothing);
  for (ExprId e = 0; e <= limit; ++e) {
    const Node node = nodes_[e];
    std::vector<ExprId> list;
    switch (node.kind) {
      case Kind::kBytes:
        now[e] = sets_[node.a].test(end) ? kEmptyString : kNothing;
        break;
      case Kind::kConcat:
        now[e] = either(concat(node.a, now[node.b]), is_nullable(node.b) ? now[node.a] : kNothing);
        break;
      case Kind::kEither:
        for (const ExprId member : members(node)) list.push_back(now[member]);
        now[e] = either(std::move(list));
        break;
      case Kind::kRepeat:
        now[e] =
            concat(repeat(node.a, std::max(node.b - 1, 0), node.c == kUnlimited ? node.c : node.c - 1), now[node.a]);
        break;
      default:
        break;
    }
  }
  return now[limit];
}

ExprId ExprArena::without_first_byte(ExprId limit, uint8_t first) {
  spend(limit);
  std::vector<ExprId> now(static_cast<size_t>(limit) + 1, kNothing);
  for (ExprId e = 0; e <= limit; ++e) {
    const Node node = nodes_[e];
    std::vector<ExprId> list;
    switch (node.kind) {
      case Kind::kBytes:
        now[e] = sets_[node.a].test(first) ? kEmptyString : kNothing;
        break;
      case Kind::kConcat:
        now[e] = either(concat(now[node.a], node.b), is_nullable(node.a) ? now[node.b] : kNothing);
        break;
      case Kind::kEither:
        for (const ExprId member : members(node)) list.push_back(now[member]);
        now[e] = either(std::move(list));
        break;
      case Kind::kRepeat:
        now[e] =
            concat(now[node.a], repeat(node.a, std::max(node.b - 1, 0), node.c == kUnlimited ? node.c : node.c - 1));
        break;
      default:
        break;
    }
  }
  return now[limit];
}

}  // namespace llmb::grammar
