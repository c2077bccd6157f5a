#include "grammar/vocabulary.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <string_view>
#include <unordered_map>

namespace llmb::grammar {

namespace {

constexpr int32_t group_of_first(uint8_t byte) {
  constexpr std::string_view kSymbols = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ \n\t";
  static_assert(16 + kSymbols.size() <= kFirstWideGroup);
  if (const size_t mark = kSymbols.find(static_cast<char>(byte)); mark != std::string_view::npos)
    return 16 + static_cast<int32_t>(mark);
  const auto between = [byte](char first, char last) {
    return byte >= static_cast<uint8_t>(first) && byte <= static_cast<uint8_t>(last);
  };
  if (between('a', 'f')) return 0;
  if (between('g', 'z')) return 1;
  if (between('A', 'F')) return 2;
  if (between('G', 'Z')) return 3;
  if (between('0', '9')) return 4;
  if (byte < 0x80) return 5;
  if (byte < 0xC2 || byte > 0xF4) return kNoCharGroup;
  // The first bytes of Unicode's other spaces stand alone: patterns name these.
  constexpr uint8_t kLast[] = {0xC2, 0xDF, 0xE0, 0xE1, 0xE2, 0xE3, 0xEE, 0xEF, 0xF4};
  return kFirstWideGroup + static_cast<int32_t>(std::lower_bound(std::begin(kLast), std::end(kLast), byte) - kLast);
}

std::vector<CharsBehind> find_chars_behind(uint8_t first_byte) {
  const Utf8Rest rest = rest_behind(first_byte);
  std::vector<CharsBehind> found;
  uint8_t begin = rest.first;
  for (int last = rest.first; last <= rest.last; ++last) {
    const int32_t group = char_group(first_byte, static_cast<uint8_t>(last));
    if (last < rest.last && group == char_group(first_byte, static_cast<uint8_t>(last + 1))) continue;
    found.push_back({group, {begin, static_cast<uint8_t>(last), rest.num_bytes}});
    begin = static_cast<uint8_t>(last + 1);
  }
  return found;
}

}  // namespace

int32_t char_group(uint8_t first_byte, uint8_t second_byte) {
  if (first_byte == 0xE1 && second_byte == 0x9A) return kFirstWideGroup + 9;
  if (first_byte == 0xE2 && second_byte <= 0x81) return kFirstWideGroup + 10;
  if (first_byte == 0xE3 && second_byte == 0x80) return kFirstWideGroup + 11;
  static constexpr auto kGroups = [] {
    std::array<int8_t, 256> groups{};
    for (int byte = 0; byte < 256; ++byte)
      groups[byte] = static_cast<int8_t>(group_of_first(static_cast<uint8_t>(byte)));
    return groups;
  }();
  return kGroups[first_byte];
}

Utf8Rest rest_behind(uint8_t byte) {
  if (byte < 0xC2 || byte > 0xF4) return {};
  if (byte < 0xE0) return {0x80, 0xBF, 1};
  const uint8_t first = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  const uint8_t last = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  return {first, last, byte < 0xF0 ? 2 : 3};
}

std::span<const CharsBehind> chars_behind(uint8_t first_byte) {
  static const auto kAll = [] {
    std::array<std::vector<CharsBehind>, 256> all;
    for (int byte = 0; byte < 256; ++byte) all[byte] = find_chars_behind(static_cast<uint8_t>(byte));
    return all;
  }();
  return kAll[first_byte];
}

Vocabulary::Vocabulary(int32_t vocab_size, const std::function<std::string(TokenId)>& bytes_of,
                       std::vector<TokenId> end_tokens, size_t max_walk_bytes)
    : texts_(static_cast<size_t>(vocab_size)),
      end_tokens_(std::move(end_tokens)),
      walk_memory_(std::make_unique<WalkMemory>(max_walk_bytes)) {
  for (TokenId token = 0; token < vocab_size; ++token)
    if (!is_end_token(token)) texts_[token] = bytes_of(token);
  std::vector<TokenId> order(static_cast<size_t>(vocab_size));
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [this](TokenId token) { return texts_[token].empty(); });
  std::stable_sort(order.begin(), order.end(), [this](TokenId a, TokenId b) { return texts_[a] < texts_[b]; });

  nodes_.push_back({});
  depth_.push_back(0);
  std::vector<int32_t> path = {0};  // nodes that the last text went through
  const std::string* last = nullptr;
  for (const TokenId token : order) {
    const std::string& text = texts_[token];
    size_t common = 0;
    while (last != nullptr && common < last->size() && common < text.size() && text[common] == (*last)[common])
      ++common;
    for (; path.size() > common + 1; path.pop_back()) nodes_[path.back()].end = static_cast<int32_t>(nodes_.size());
    for (size_t i = common; i < text.size(); ++i) {
      path.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<int32_t>(tokens_.size()), 0, static_cast<uint8_t>(text[i])});
      depth_.push_back(static_cast<int32_t>(i) + 1);
    }
    tokens_.push_back(token);
    max_depth_ = std::max(max_depth_, static_cast<int32_t>(text.size()));
    last = &text;
  }
  for (const int32_t node : path) nodes_[node].end = static_cast<int32_t>(nodes_.size());
  up_to_.assign(kMaxShortBytes + 1, Mask(static_cast<size_t>(num_words()), 0));
  for (const TokenId token : tokens_)
    if (const size_t size = texts_[token].size(); size <= kMaxShortBytes) up_to_[size][token / 32] |= 1u << token % 32;
  text_tokens_.assign(static_cast<size_t>(num_words()), 0);
  for (const TokenId token : tokens_) text_tokens_[token / 32] |= 1u << token % 32;
  for (size_t size = 1; size < up_to_.size(); ++size)
    for (size_t i = 0; i < up_to_[size].size(); ++i) up_to_[size][i] |= up_to_[size - 1][i];
  find_groups();
  list_children();
}

void Vocabulary::list_children() {
  children_.reserve(nodes_.size() - 1);
  children_begin_.reserve(nodes_.size());
  for (int32_t node = 0; node < static_cast<int32_t>(nodes_.size()); ++node) {
    children_begin_.push_back(static_cast<int32_t>(children_.size()));
    for (int32_t child = node + 1; child < nodes_[node].end; child = nodes_[child].end)
      children_.push_back({child, nodes_[child].tokens_begin, -1, nodes_[child].groups_below, nodes_[child].byte});
    if (has_children(node)) children_.back().is_last = true;
  }
  for (TrieChild& child : children_)
    if (has_children(child.node)) child.first_child = children_begin_[child.node];
}

void Vocabulary::find_groups() {
  constexpr CharGroups kAnything = ~CharGroups{0};  // where there are too many sets: no walk takes a subtree as a whole
  deepest_.resize(nodes_.size());
  ends_character_.resize(nodes_.size());
  group_sets_ = {kAnything};
  std::unordered_map<CharGroups, uint16_t> index = {{kAnything, 0}};
  for (size_t i = nodes_.size(); i-- > 0;) {
    const auto node = static_cast<int32_t>(i);
    deepest_[node] = depth_[node];
    ends_character_[node] = ends_character_[node] || nodes_[node].byte < 0x80;
    const CharGroups groups = groups_inside(node, rest_behind(nodes_[node].byte)) | groups_at(node);
    if (group_sets_.size() <= UINT16_MAX && index.emplace(groups, static_cast<uint16_t>(group_sets_.size())).second)
      group_sets_.push_back(groups);
    const auto known = index.find(groups);
    nodes_[node].groups_below = known == index.end() ? 0 : known->second;
    for (int32_t child = node + 1; child < nodes_[node].end; child = nodes_[child].end)
      deepest_[node] = std::max(deepest_[node], deepest_[child]);
  }
}

// The groups of wide characters that begin at the node.
CharGroups Vocabulary::groups_at(int32_t node) const {
  const uint8_t byte = nodes_[node].byte;
  CharGroups groups = 0;
  if (!begins_wide(byte)) return 0;
  for (int32_t child = node + 1; child < nodes_[node].end; child = nodes_[child].end)
    groups |= CharGroups{1} << char_group(byte, nodes_[child].byte);
  // A token that breaks off may go on as any of them.
  if (nodes_[node].tokens_begin < tokens_end(node))
    for (const CharsBehind& chars : chars_behind(byte)) groups |= CharGroups{1} << chars.group;
  return groups;
}

// The groups of the characters below the node, behind the rest of one. REQUIRES: they are known of the nodes below it
CharGroups Vocabulary::groups_inside(int32_t node, Utf8Rest rest) {
  CharGroups groups = 0;
  for (int32_t child = node + 1; child < nodes_[node].end; child = nodes_[child].end) {
    const uint8_t byte = nodes_[child].byte;
    if (rest.num_bytes == 0) {
      groups |= groups_below(child);
      if (!begins_wide(byte)) groups |= CharGroups{1} << char_group(byte, 0);
    } else if (byte < rest.first || byte > rest.last) {
      groups |= CharGroups{1} << kNoCharGroup;
    } else if (rest.num_bytes == 1) {
      ends_character_[child] = true;
      groups |= groups_below(child);
    } else {
      groups |= groups_inside(child, {0x80, 0xBF, rest.num_bytes - 1});
    }
  }
  return groups;
}

bool Vocabulary::is_end_token(TokenId token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

}  // namespace llmb::grammar
