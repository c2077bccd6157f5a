#include "grammar/regex_expr.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "text/unicode.h"

namespace llmb::grammar {

namespace {

// Stand for the beginning and the end of a text while a pattern is put together: bytes that UTF-8 does not have.
constexpr uint8_t kBegin = 0xFE, kEnd = 0xFF;

const CharSet& digits() {
  static const CharSet set{{'0', '9'}};
  return set;
}
const CharSet& word_chars() {
  static const CharSet set{{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}};
  return set;
}
const CharSet& spaces() {
  static const CharSet set{{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                           {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return set;
}
const CharSet& line_ends() {
  static const CharSet set{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return set;
}

class RegexReader {
 public:
  RegexReader(std::string_view pattern, const CharSpelling& spelling, ExprArena* arena)
      : in_(pattern), spelling_(spelling), arena_(*arena) {}

  bool has_anchors() const { return has_anchors_; }

  Result<ExprId> read() {
    LLMB_ASSIGN_OR_RETURN(const ExprId e, read_alternatives(0));
    if (!done()) return error("a ) without its (");
    return e;
  }

 private:
  bool done() const { return at_ >= in_.size(); }
  bool sees(std::string_view s) const { return in_.substr(at_).starts_with(s); }
  bool take(std::string_view s) { return sees(s) ? (at_ += s.size(), true) : false; }
  Status error(const std::string& what) const {
    return invalid_argument("regular expression, byte " + std::to_string(at_) + ": " + what);
  }
  Status refuse(const std::string& what) const {
    return unsupported("regular expression, byte " + std::to_string(at_) + ": " + what + " cannot be enforced");
  }

  Result<ExprId> read_alternatives(int32_t depth) {
    if (depth > kMaxNestedGroups) return error("more than " + std::to_string(kMaxNestedGroups) + " nested groups");
    std::vector<ExprId> alternatives;
    do {
      std::vector<ExprId> parts;
      while (!done() && !sees("|") && !sees(")")) {
        LLMB_ASSIGN_OR_RETURN(ExprId part, read_atom(depth));
        LLMB_ASSIGN_OR_RETURN(part, read_quantifiers(part));
        parts.push_back(part);
      }
      alternatives.push_back(arena_.sequence(parts));
    } while (take("|"));
    return arena_.either(std::move(alternatives));
  }

  Result<ExprId> read_quantifiers(ExprId e) {
    if (done()) return e;
    int32_t min = 0, max = kUnlimited;
    if (take("*")) {
    } else if (take("+")) {
      min = 1;
    } else if (take("?")) {
      max = 1;
    } else if (sees("{")) {
      LLMB_ASSIGN_OR_RETURN(const bool is_count, read_count(&min, &max));
      if (!is_count) return e;
    } else {
      return e;
    }
    if (take("+")) return refuse("a possessive quantifier");
    take("?");
    if (sees("*") || sees("?")) return error("a quantifier behind a quantifier");
    return arena_.repeat(e, min, max);
  }

  // {3}, {3,}, {3,5}; false and nothing read where it is none, so that { stands for itself.
  Result<bool> read_count(int32_t* min, int32_t* max) {
    const size_t close = in_.find_first_not_of("0123456789,", at_ + 1);
    if (close == std::string_view::npos || in_[close] != '}') return false;
    const std::string_view text = in_.substr(at_ + 1, close - at_ - 1);
    const size_t comma = text.find(',');
    const std::string_view low = text.substr(0, comma),
                           high = comma == std::string_view::npos ? low : text.substr(comma + 1);
    const auto is_number = [](std::string_view s) {
      return std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
    };
    if (low.empty() || !is_number(low) || !is_number(high)) return false;
    if (low.size() > 6 || high.size() > 6) return error("a count above " + std::to_string(kMaxRepeats));
    *min = std::stoi(std::string(low));
    *max = high.empty() ? kUnlimited : std::stoi(std::string(high));
    if (*min > kMaxRepeats || *max > kMaxRepeats) return error("a count above " + std::to_string(kMaxRepeats));
    if (*max != kUnlimited && *max < *min) return error("a count that ends before it begins");
    at_ = close + 1;
    return true;
  }

  Result<ExprId> read_atom(int32_t depth) {
    if (take("(")) return read_group(depth);
    if (take("^")) return anchor(kBegin);
    if (take("$")) return anchor(kEnd);
    if (take(".")) return spelling_(line_ends().complement());
    if (sees("*") || sees("+") || sees("?")) return error("a quantifier with nothing before it");
    CharSet set;
    if (take("[")) {
      LLMB_ASSIGN_OR_RETURN(set, read_class());
    } else if (sees("\\")) {
      LLMB_RETURN_IF_ERROR(read_escape(&set, nullptr));
    } else {
      const char32_t c = next_char(in_, &at_);
      set.add(c, c);
    }
    return spelling_(set);
  }

  Result<ExprId> anchor(uint8_t mark) {
    has_anchors_ = true;
    return arena_.byte(mark);
  }

  Result<ExprId> read_group(int32_t depth) {
    if (sees("?=") || sees("?!")) return refuse("a look-ahead");
    if (sees("?<=") || sees("?<!")) return refuse("a look-behind");
    if (take("?P<") || take("?<")) {
      const size_t close = in_.find('>', at_);
      if (close == std::string_view::npos) return error("a group's name without its >");
      at_ = close + 1;
    } else if (!take("?:") && sees("?")) {
      return refuse("a flag");
    }
    LLMB_ASSIGN_OR_RETURN(const ExprId e, read_alternatives(depth + 1));
    if (!take(")")) return error("a ( without its )");
    return e;
  }

  Result<CharSet> read_class() {
    const bool is_negated = take("^");
    std::vector<CharRange> ranges;
    while (!take("]")) {
      if (done()) return error("a [ without its ]");
      CharSet member;
      std::optional<char32_t> first, last;
      LLMB_RETURN_IF_ERROR(read_member(&member, &first));
      if (first && sees("-") && !sees("-]")) {
        ++at_;
        if (done()) return error("a [ without its ]");
        LLMB_RETURN_IF_ERROR(read_member(&member, &last));
        if (!last) return error("a range that ends in a class");
        if (*last < *first) return error("a range that ends before it begins");
        member.add(*first, *last);
      }
      ranges.insert(ranges.end(), member.ranges().begin(), member.ranges().end());
    }
    const CharSet set(std::move(ranges));
    return is_negated ? set.complement() : set;
  }

  Status read_member(CharSet* set, std::optional<char32_t>* single) {
    if (sees("\\")) return read_escape(set, single);
    constexpr size_t kLongestName = 16;
    if (sees("[:") && in_.substr(at_, kLongestName).find(":]") != std::string_view::npos)
      return refuse("a POSIX class");
    const char32_t c = next_char(in_, &at_);
    *single = c;
    set->add(c, c);
    return {};
  }

  // single: null outside of brackets; else gets the character, where the escape stands for one.
  Status read_escape(CharSet* set, std::optional<char32_t>* single) {
    const size_t begin = at_++;
    if (done()) return error("a \\ at the end");
    const char32_t c = next_char(in_, &at_);
    const auto is_class = [&](char32_t lower, const CharSet& members) {
      if (c != lower && c != lower - 32) return false;
      set->add(c == lower ? members : members.complement());
      return true;
    };
    if (is_class('d', digits()) || is_class('w', word_chars()) || is_class('s', spaces())) return {};
    char32_t value = c;
    if (c == 'x' || c == 'u') {
      LLMB_RETURN_IF_ERROR(read_hex(c == 'x' ? 2 : 4, &value));
    } else if (c == '0' || c == 'n' || c == 'r' || c == 't' || c == 'f' || c == 'v' ||
               (c == 'b' && single != nullptr)) {
      value = c == '0'   ? 0
              : c == 'n' ? '\n'
              : c == 'r' ? '\r'
              : c == 't' ? '\t'
              : c == 'f' ? '\f'
              : c == 'v' ? '\v'
                         : '\b';
    } else if (c == 'c' && !done() && word_chars().intersect({{in_[at_] & 0x7Fu, in_[at_] & 0x7Fu}}).empty() == false) {
      value = static_cast<char32_t>(in_[at_++]) % 32;
    } else if ((c >= '1' && c <= '9') || (c < 0x80 && std::isalpha(static_cast<int>(c)))) {
      at_ = begin;
      const std::string spelled = "\\" + std::string(1, static_cast<char>(c));
      return refuse(c == 'b' || c == 'B' ? "the word boundary " + spelled
                    : c <= '9'           ? "the back-reference " + spelled
                                         : "the escape " + spelled);
    }
    if (single != nullptr) *single = value;
    set->add(value, value);
    return {};
  }

  Status read_hex(size_t num_digits, char32_t* value) {
    const auto digits_at = [&](size_t at, size_t count, char32_t* out) {
      const std::string text(in_.substr(std::min(at, in_.size()), count));
      if (text.size() != count || text.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return false;
      *out = static_cast<char32_t>(std::stoul(text, nullptr, 16));
      return true;
    };
    if (num_digits == 4 && sees("{")) {
      const size_t close = in_.find('}', at_);
      const size_t count = close == std::string_view::npos ? 0 : close - at_ - 1;
      if (count < 1 || count > 6 || !digits_at(at_ + 1, count, value) || *value > 0x10FFFF)
        return error("\\u{ without a character's number");
      at_ = close + 1;
      return {};
    }
    if (!digits_at(at_, num_digits, value))
      return error("a number of " + std::to_string(num_digits) + " hex digits is missing");
    at_ += num_digits;
    char32_t low = 0;
    if (*value >= 0xD800 && *value < 0xDC00 && sees("\\u") && digits_at(at_ + 2, 4, &low) && low >= 0xDC00 &&
        low < 0xE000) {
      *value = 0x10000 + ((*value - 0xD800) << 10) + (low - 0xDC00);
      at_ += 6;
    }
    return {};
  }

  const std::string_view in_;
  const CharSpelling& spelling_;
  ExprArena& arena_;
  size_t at_ = 0;
  bool has_anchors_ = false;
};

}  // namespace

Result<ExprId> regex_expr(std::string_view pattern, RegexScope scope, const CharSpelling& spelling, ExprArena* arena) {
  RegexReader reader(pattern, spelling, arena);
  LLMB_ASSIGN_OR_RETURN(ExprId e, reader.read());
  const ExprId any_char = spelling(CharSet::all());
  if (!reader.has_anchors()) {
    const ExprId any = arena->star(any_char);
    return scope == RegexScope::kWhole ? e : arena->concat(any, arena->concat(e, any));
  }
  // The text between the two marks, with marks anywhere in the pattern: only where they fall on the text's is kept.
  const ExprId begin = arena->byte(kBegin), end = arena->byte(kEnd);
  if (scope == RegexScope::kWhole) {
    e = arena->concat(arena->optional(begin), arena->concat(e, arena->optional(end)));
  } else {
    const ExprId any = arena->star(arena->either({any_char, begin, end}));
    e = arena->concat(any, arena->concat(e, any));
  }
  e = arena->without_last_byte(arena->without_first_byte(e, kBegin), kEnd);
  ByteSet text_bytes;
  text_bytes.set();
  text_bytes.reset(kBegin).reset(kEnd);
  return arena->restrict_bytes(e, text_bytes);
}

}  // namespace llmb::grammar
