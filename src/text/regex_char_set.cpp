#include "text/regex_char_set.h"

#include <cctype>
#include <vector>

#include "text/regex_properties.h"
#include "text/unicode.h"

namespace llmb {

namespace {

constexpr int kMaxClassNesting = 50;

// A set of what has been read: `items` and members that are not simple; clears both.
CharSet make_set(std::string* items, std::vector<std::string>* patterns) {
  CharSet set;
  if (patterns->empty()) {
    set.items = *items;
    if (items->empty()) set.pattern = "(?!)";
  } else {
    set.pattern = "(?:";
    for (const std::string& p : *patterns) set.pattern += p + "|";
    if (!items->empty()) set.pattern += "[" + *items + "]";
    else set.pattern.pop_back();
    set.pattern += ")";
  }
  items->clear();
  patterns->clear();
  return set;
}

}  // namespace

Status CharSetReader::read_escape(CharSet* set, char32_t* literal, bool* is_literal) {
  ++pos_;
  if (done()) return invalid_argument("the pattern ends in a backslash");
  const size_t from = pos_;
  const char32_t c = next_char(in_, &pos_);
  *is_literal = false;
  if ((c == 'p' || c == 'P') && at("{")) return read_property(c == 'P', set);
  if (c == 's' || c == 'S') *set = {space_items(), c == 'S', ""};
  else if (c == 'w' || c == 'W') *set = {word_items(), c == 'W', ""};
  else if (c == 'd' || c == 'D') *set = {category_items("Nd"), c == 'D', ""};
  else if (c == 'h' || c == 'H') *set = {hex_digit_items(), c == 'H', ""};
  else *is_literal = true;
  return *is_literal ? read_literal_escape(c, from, literal) : Status();
}

// `from`: where c, the character behind the backslash, begins.
Status CharSetReader::read_literal_escape(char32_t c, size_t from, char32_t* literal) {
  if (c == 'u') return read_hex(4, 4, literal);
  if (c == 'x') {
    if (!at("{")) return read_hex(1, 2, literal);
    ++pos_;
    LLMB_RETURN_IF_ERROR(read_hex(1, 8, literal));
    if (!at("}")) return invalid_argument("\\x{ does not end");
    ++pos_;
    return {};
  }
  constexpr std::u32string_view kFrom = U"nrtfvae0pP", kTo = std::u32string_view(U"\n\r\t\f\v\a\x1b\0pP", 10);
  const size_t known = kFrom.find(c);
  const bool is_letter_or_digit = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9');
  if (known == kFrom.npos && is_letter_or_digit)
    return unsupported("escape \\" + std::string(in_.substr(from, pos_ - from)));
  *literal = known != kFrom.npos ? kTo[known] : c;
  return {};
}

Status CharSetReader::read_hex(int min_digits, int max_digits, char32_t* value) {
  uint64_t v = 0;
  int digits = 0;
  for (; digits < max_digits && !done() && std::isxdigit(static_cast<unsigned char>(in_[pos_])); ++digits, ++pos_) {
    const char c = in_[pos_];
    v = v * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  if (digits < min_digits || v > 0x10FFFF || (v >= 0xD800 && v < 0xE000))
    return invalid_argument("not a character code");
  *value = static_cast<char32_t>(v);
  return {};
}

// \p{Name}, \p{^Name}; pos_ is behind the p.
Status CharSetReader::read_property(bool negated, CharSet* set) {
  const size_t close = in_.find('}', pos_);
  if (close == std::string_view::npos) return invalid_argument("\\p{ does not end");
  std::string name(in_.substr(pos_ + 1, close - pos_ - 1));
  pos_ = close + 1;
  if (!name.empty() && name[0] == '^') {
    negated = !negated;
    name.erase(0, 1);
  }
  if (name.empty() || name.find_first_of("\\[](){}") != std::string::npos)
    return invalid_argument("\\p without a name");
  *set = {property_items(name), negated, ""};
  return {};
}

Result<CharSet> CharSetReader::read_class(int depth) {
  if (depth > kMaxClassNesting) return unsupported("classes nest too deeply");
  bool negated = false;
  if (at("^")) {
    negated = true;
    ++pos_;
  }
  std::vector<CharSet> operands;      // of &&
  std::string items;                  // of the operand being read
  std::vector<std::string> patterns;  // its members that are not simple
  bool first = true;
  for (;; first = false) {
    if (done()) return invalid_argument("a [ has no ]");
    if (at("]") && !first) break;
    if (at("&&")) {
      pos_ += 2;
      operands.push_back(make_set(&items, &patterns));
      continue;
    }
    CharSet member;
    LLMB_RETURN_IF_ERROR(read_member(depth, &member));
    if (member.is_simple() && !member.negated) items += member.items;
    else patterns.push_back(member.to_pattern());
  }
  ++pos_;
  operands.push_back(make_set(&items, &patterns));
  CharSet result = operands.back();
  if (operands.size() > 1) {
    std::string all = "(?:";
    for (size_t i = 0; i + 1 < operands.size(); ++i) all += "(?=" + operands[i].to_pattern() + ")";
    result = {"", false, all + operands.back().to_pattern() + ")"};
  }
  if (!negated) return result;
  if (result.is_simple()) {
    result.negated = !result.negated;
    return result;
  }
  return CharSet{"", false, "(?:(?!" + result.pattern + ")(?s:.))"};
}

// One member of a class: a nested class, a property, a character or a range.
Status CharSetReader::read_member(int depth, CharSet* member) {
  if (at("[:")) return read_posix(member);
  if (at("[")) {
    ++pos_;
    LLMB_ASSIGN_OR_RETURN(*member, read_class(depth + 1));
    return {};
  }
  char32_t low = 0;
  bool is_literal = true;
  LLMB_RETURN_IF_ERROR(read_class_char(member, &low, &is_literal));
  if (!is_literal) return {};
  member->items = hex_escape(low);
  if (!at("-") || pos_ + 1 >= in_.size() || in_[pos_ + 1] == ']' || in_[pos_ + 1] == '[') return {};
  const size_t before = pos_;
  ++pos_;
  CharSet set;
  char32_t high = 0;
  LLMB_RETURN_IF_ERROR(read_class_char(&set, &high, &is_literal));
  if (!is_literal) {  // [a-\d]: the hyphen stands for itself
    pos_ = before;
    return {};
  }
  if (high < low) return invalid_argument("a range in a class is empty");
  member->items += "-" + hex_escape(high);
  return {};
}

Status CharSetReader::read_class_char(CharSet* set, char32_t* c, bool* is_literal) {
  if (done()) return invalid_argument("a [ has no ]");
  if (!at("\\")) {
    *c = next_char(in_, &pos_);
    *is_literal = true;
    return {};
  }
  if (at("\\b")) {
    pos_ += 2;
    *c = '\b';
    *is_literal = true;
    return {};
  }
  return read_escape(set, c, is_literal);
}

Status CharSetReader::read_posix(CharSet* member) {
  const size_t close = in_.find(":]", pos_);
  if (close == std::string_view::npos) return invalid_argument("[: has no :]");
  std::string name(in_.substr(pos_ + 2, close - pos_ - 2));
  bool negated = false;
  if (!name.empty() && name[0] == '^') {
    negated = true;
    name.erase(0, 1);
  }
  std::string items = posix_items(name);
  if (items.empty()) return unsupported("class [:" + name + ":]");
  pos_ = close + 2;
  *member = {items, negated, ""};
  return {};
}

}  // namespace llmb
