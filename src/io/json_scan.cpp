#include "io/json_scan.h"

#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace llmb {

namespace {

constexpr std::string_view kLargeIntegerMark = "\xF4\x8F\xBF\xBF";  // U+10FFFF, which no text has

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A field of the line ("prompt") or of its body (body's "prompt"), as the scan passes by.
struct Place {
  std::string_view outer, inner;  // keys at depth 1 and 2, quotes excluded

  bool in_body() const { return outer == "body" && !inner.empty(); }
  std::string_view field() const { return in_body() ? inner : outer; }
};

// One pass over the text. OnMember is called with (depth, key, offset of the value).
template <typename OnMember>
class Scanner {
 public:
  Scanner(std::string_view text, OnMember on_member) : text_(text), on_member_(on_member) {}

  // False: fault() says why.
  bool scan() {
    bool expect_key = false;
    while (true) {
      skip_space();
      if (expect_key && !key()) return false;
      bool opened = false;
      if (!value(&opened)) return false;
      expect_key = opened && in_object_.back();
      if (opened) continue;
      if (!after_value(&expect_key)) return false;
      if (in_object_.empty()) return pos_ == text_.size() || fail("text after the end of the JSON value");
    }
  }

  const JsonFault& fault() const { return fault_; }
  const std::vector<std::pair<size_t, size_t>>& large_integers() const { return large_integers_; }  // begin, end
  const Place& place() const { return place_; }
  int depth() const { return static_cast<int>(in_object_.size()); }

 private:
  bool fail(std::string what) { return fail_at(pos_, std::move(what)); }
  bool fail_at(size_t offset, std::string what) {
    fault_.byte_offset = static_cast<int64_t>(offset);
    fault_.what = offset >= text_.size() ? "the line ends in the middle of the JSON value" : std::move(what);
    if (!place_.field().empty()) fault_.field = std::string(place_.field());
    return false;
  }

  bool at(char c) const { return pos_ < text_.size() && text_[pos_] == c; }
  void skip_space() {
    while (pos_ < text_.size() && std::string_view(" \t\r\n").find(text_[pos_]) != std::string_view::npos) ++pos_;
  }

  bool key() {
    if (!at('"')) return fail("expected a field name in double quotes");
    const size_t begin = pos_ + 1;
    if (!string()) return false;
    const std::string_view name = text_.substr(begin, pos_ - 1 - begin);
    skip_space();
    if (!at(':')) return fail("expected ':' after a field name");
    ++pos_;
    skip_space();
    if (depth() == 1) place_ = {name, {}};
    if (depth() == 2) place_.inner = name;
    on_member_(depth(), place_, name, pos_);
    return true;
  }

  // A scalar or an empty container, or (opened) the start of a container.
  bool value(bool* opened) {
    if (pos_ == text_.size()) return fail("");
    switch (text_[pos_]) {
      case '{':
        return open(true, opened);
      case '[':
        return open(false, opened);
      case '"':
        return string();
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      default:
        return number();
    }
  }

  bool open(bool is_object, bool* opened) {
    const size_t bracket = pos_++;
    skip_space();
    const bool is_empty = at(is_object ? '}' : ']');
    if (depth() + (is_empty ? 1 : 2) > kMaxJsonDepth)
      return fail_at(bracket, "nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    if (is_empty) ++pos_;
    else in_object_.push_back(is_object);
    *opened = !is_empty;
    return true;
  }

  // Separators and closing brackets up to the next value or the text's end.
  bool after_value(bool* expect_key) {
    while (true) {
      skip_space();
      if (in_object_.empty()) return true;
      const bool is_object = in_object_.back();
      if (at(',')) {
        ++pos_;
        *expect_key = is_object;
        return true;
      }
      if (!at(is_object ? '}' : ']')) return fail(is_object ? "expected ',' or '}'" : "expected ',' or ']'");
      ++pos_;
      in_object_.pop_back();
      if (depth() == 1) place_.inner = {};
      if (depth() == 0) place_ = {};
    }
  }

  bool word(std::string_view expected) {
    if (text_.substr(pos_, expected.size()) != expected) return fail("expected a JSON value");
    pos_ += expected.size();
    return true;
  }

  bool string() {
    ++pos_;
    while (pos_ < text_.size() && text_[pos_] != '"') {
      const auto c = static_cast<unsigned char>(text_[pos_]);
      if (c < 0x20) {
        char code[8];
        std::snprintf(code, sizeof code, "%04x", c);
        return fail("control character in a string; write it as \\u" + std::string(code));
      }
      if (c == '\\') {
        if (!escape()) return false;
        continue;
      }
      const size_t length = utf8_length(text_.data() + pos_, text_.data() + text_.size());
      if (length == 0) return fail("not valid UTF-8");
      pos_ += length;
    }
    if (pos_ == text_.size()) return fail("");
    ++pos_;
    return true;
  }

  bool escape() {
    const size_t begin = pos_++;
    if (pos_ == text_.size()) return fail("");
    const char c = text_[pos_++];
    if (c != 'u')
      return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos || fail_at(begin, "unknown escape");
    unsigned unit = 0;
    if (!hex4(&unit)) return false;
    if (unit < 0xD800 || unit > 0xDFFF) return true;
    unsigned low = 0;
    if (unit > 0xDBFF || !at('\\') || text_.substr(pos_, 2) != "\\u") return fail_at(begin, "lone surrogate");
    pos_ += 2;
    if (!hex4(&low)) return false;
    return (low >= 0xDC00 && low <= 0xDFFF) || fail_at(begin, "lone surrogate");
  }

  bool hex4(unsigned* value) {
    for (int i = 0; i < 4; ++i, ++pos_) {
      if (pos_ == text_.size()) return fail("");
      const auto c = static_cast<unsigned char>(text_[pos_]);
      if (!std::isxdigit(c)) return fail("expected four hexadecimal digits after \\u");
      *value = *value * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return true;
  }

  bool digits() {
    if (pos_ == text_.size() || !is_digit(text_[pos_])) return fail("expected a JSON value");
    while (pos_ < text_.size() && is_digit(text_[pos_])) ++pos_;
    return true;
  }

  bool number() {
    const size_t begin = pos_;
    if (at('-')) ++pos_;
    const bool leading_zero = at('0');
    const size_t first_digit = pos_;
    if (!digits()) return false;
    if (leading_zero && pos_ > first_digit + 1) return fail_at(begin, "a number cannot start with 0");
    bool is_integer = true;
    if (at('.')) {
      is_integer = false;
      ++pos_;
      if (!digits()) return false;
    }
    if (at('e') || at('E')) {
      is_integer = false;
      ++pos_;
      if (at('+') || at('-')) ++pos_;
      if (!digits()) return false;
    }
    const bool ended =
        pos_ == text_.size() || std::string_view(" \t\r\n,:{}[]\"").find(text_[pos_]) != std::string_view::npos;
    if (!ended) return fail("unexpected character in a number");
    return in_range(begin, is_integer) || number_range_fault(begin);
  }

  bool in_range(size_t begin, bool is_integer) {
    constexpr size_t kAlwaysFits = 18;  // digits of an integer
    if (is_integer && pos_ - begin <= kAlwaysFits) return true;
    if (is_integer && pos_ - begin > kMaxIntegerDigits) return false;
    const std::string token(text_.substr(begin, pos_ - begin));
    if (!is_integer) return std::isfinite(std::strtod(token.c_str(), nullptr));
    errno = 0;
    if (token[0] == '-') (void)std::strtoll(token.c_str(), nullptr, 10);
    else (void)std::strtoull(token.c_str(), nullptr, 10);
    if (errno != 0) large_integers_.emplace_back(begin, pos_);
    return true;
  }

  bool number_range_fault(size_t begin) {
    constexpr size_t kShown = 40;
    std::string token(text_.substr(begin, pos_ - begin));
    const size_t size = token.size();
    if (size > kShown) token = token.substr(0, kShown) + "… (" + std::to_string(size) + " characters)";
    fail_at(begin, "the number " + token + " is beyond " + std::to_string(kMaxIntegerDigits) +
                       " digits or the range of a double");
    fault_.is_number_range = true;
    return false;
  }

  const std::string_view text_;
  OnMember on_member_;
  size_t pos_ = 0;
  std::vector<bool> in_object_;  // of each open container: is it an object?
  std::vector<std::pair<size_t, size_t>> large_integers_;
  Place place_;
  JsonFault fault_;
};

}  // namespace

std::optional<JsonFault> find_json_fault(std::string_view text) {
  Scanner scanner(text, [](int, const Place&, std::string_view, size_t) {});
  if (scanner.scan()) return std::nullopt;
  return scanner.fault();
}

std::optional<std::string> mark_large_integers(std::string_view text) {
  Scanner scanner(text, [](int, const Place&, std::string_view, size_t) {});
  if (!scanner.scan() || scanner.large_integers().empty()) return std::nullopt;
  std::string marked;
  size_t done = 0;
  for (const auto& [begin, end] : scanner.large_integers()) {
    marked.append(text, done, begin - done);
    marked.append("\"").append(kLargeIntegerMark).append(text, begin, end - begin).append("\"");
    done = end;
  }
  marked.append(text, done);
  return marked;
}

std::string_view large_integer(std::string_view string) {
  if (!string.starts_with(kLargeIntegerMark)) return {};
  string.remove_prefix(kLargeIntegerMark.size());
  const std::string_view digits = string.substr(string.starts_with('-') ? 1 : 0);
  const bool is_number = digits.size() > 18 && digits.size() <= kMaxIntegerDigits && digits[0] != '0' &&
                         digits.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number ? string : std::string_view();
}

std::optional<int64_t> find_member(std::string_view text, bool in_body, std::string_view name, int occurrence) {
  std::optional<int64_t> found;
  Scanner scanner(text, [&](int depth, const Place& place, std::string_view key, size_t value_offset) {
    if (depth != (in_body ? 2 : 1) || key != name || (in_body && !place.in_body())) return;
    if (--occurrence == 0) found = static_cast<int64_t>(value_offset);
  });
  (void)scanner.scan();
  return found;
}

int64_t count_json_parts(std::string_view text) {
  int64_t num_parts = 0;
  bool in_string = false, in_scalar = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    const bool is_space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    const bool is_operator = c == '{' || c == '}' || c == '[' || c == ']' || c == ',' || c == ':';
    in_string = c == '"';
    num_parts += is_operator || in_string || (!is_space && !in_scalar);
    in_scalar = !is_space && !is_operator && !in_string;
  }
  return num_parts;
}

}  // namespace llmb
