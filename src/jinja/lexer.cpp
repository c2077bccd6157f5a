#include "jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include "jinja/text.h"
#include "jinja/value.h"

namespace llmb::jinja {

namespace {

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }

[[noreturn]] void fail(const std::string& message, int line) {
  throw template_error(message + " (line " + std::to_string(line) + ")");
}

// All line endings become \n, and one at the very end goes.
std::string normalize_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
    } else {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(normalize_lines(source)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) root();
    add(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  Token& add(TokenKind kind, std::string value = "") {
    if (tokens_.size() >= kMaxTokens) throw budget_error("the chat template has too many tokens");
    tokens_.push_back({kind, line_, std::move(value), 0, 0});
    return tokens_.back();
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool looking_at(std::string_view s) const { return std::string_view(text_).substr(at_).starts_with(s); }

  void move(size_t count) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                                         text_.begin() + static_cast<ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
  }

  size_t space_end(size_t from) const {
    while (from < text_.size()) {
      size_t next = from;
      if (!is_space(next_char(text_, &next))) break;
      from = next;
    }
    return from;
  }

  // Where a tag's end is, if text_ has one at `from`: "-%}" takes the white space behind it, "%}" a line end (trim).
  // npos: none. The sign '+' keeps the line end; only blocks and comments know it.
  size_t match_end(size_t from, std::string_view end, bool variable) const {
    const std::string_view rest = std::string_view(text_).substr(from);
    if (rest.starts_with("-") && rest.substr(1).starts_with(end)) return space_end(from + 1 + end.size());
    if (!variable && rest.starts_with("+") && rest.substr(1).starts_with(end)) return from + 1 + end.size();
    if (!rest.starts_with(end)) return std::string::npos;
    const size_t after = from + end.size();
    return !variable && after < text_.size() && text_[after] == '\n' ? after + 1 : after;
  }

  // The text before a tag: "-" strips it, and lstrip_blocks takes the blanks before a tag that starts its line.
  void data(size_t end, char sign, bool variable) {
    std::string_view text = std::string_view(text_).substr(at_, end - at_);
    if (sign == '-') {
      text = strip(text, Side::kRight);
    } else if (sign != '+' && !variable) {
      const size_t line_begin = text.rfind('\n') + 1;  // 0 where there is none
      const std::string_view blanks = text.substr(line_begin);
      if ((line_begin > 0 || line_starting_) && !blanks.empty() && strip(blanks, Side::kBoth).empty()) {
        text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) add(TokenKind::kData, std::string(text));
    move(end - at_);
  }

  void root() {
    size_t tag = at_;
    while ((tag = text_.find('{', tag)) != std::string::npos) {
      const char c = tag + 1 < text_.size() ? text_[tag + 1] : '\0';
      if (c == '%' || c == '{' || c == '#') break;
      ++tag;
    }
    if (tag == std::string::npos) return data(text_.size(), '+', true);
    const char kind = text_[tag + 1];
    const char next = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    const char sign = next == '-' || next == '+' ? next : '\0';
    data(tag, sign, kind == '{');
    const int line = line_;
    if (const size_t body = kind == '%' ? match_raw(tag, sign) : std::string::npos; body != std::string::npos) {
      finish(body);
      return raw(line);
    }
    move(sign != 0 ? 3 : 2);
    line_starting_ = false;
    if (kind == '#') return comment(line);
    add(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin);
    expression(kind == '{');
  }

  // Moves to `end`, the end of a tag.
  void finish(size_t end) {
    line_starting_ = text_[end - 1] == '\n';
    move(end - at_);
  }

  // "{% raw %}" at `tag`: where its body begins. Only '-' strips after it; the line end is kept.
  size_t match_raw(size_t tag, char sign) const {
    size_t at = space_end(tag + (sign != 0 ? 3 : 2));
    if (!std::string_view(text_).substr(at).starts_with("raw")) return std::string::npos;
    at = space_end(at + 3);
    const std::string_view rest = std::string_view(text_).substr(at);
    if (rest.starts_with("-%}")) return space_end(at + 3);
    return rest.starts_with("%}") ? at + 2 : std::string::npos;
  }

  void raw(int line) {
    for (size_t tag = at_; (tag = text_.find("{%", tag)) != std::string::npos; tag += 2) {
      const char next = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      const char sign = next == '-' || next == '+' ? next : '\0';
      const size_t name = space_end(tag + (sign != 0 ? 3 : 2));
      if (!std::string_view(text_).substr(name).starts_with("endraw")) continue;
      const size_t end = match_end(space_end(name + 6), "%}", false);
      if (end == std::string::npos) continue;
      data(tag, sign, false);
      return finish(end);
    }
    if (at_ < text_.size()) fail("Missing end of raw directive", line);
  }

  void comment(int line) {
    for (size_t end = at_; (end = text_.find("#}", end)) != std::string::npos;) {
      const bool signed_end = end > at_ && (text_[end - 1] == '-' || text_[end - 1] == '+');
      return finish(match_end(signed_end ? end - 1 : end, "#}", false));
    }
    if (at_ < text_.size()) fail("Missing end of comment tag", line);
  }

  void expression(bool variable) {
    std::string open;  // brackets that are open, as their closing ones
    const std::string_view end_tag = variable ? "}}" : "%}";
    while (at_ < text_.size()) {
      if (open.empty()) {
        if (const size_t end = match_end(at_, end_tag, variable); end != std::string::npos) {
          add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd);
          return finish(end);
        }
      }
      if (const size_t after = space_end(at_); after != at_) {
        move(after - at_);
      } else if (is_digit_char(peek())) {
        number();
      } else if (peek() == '\'' || peek() == '"') {
        string();
      } else if (!name()) {
        operator_token(&open);
      }
    }
  }

  // Digits, '_' allowed between two of them. Returns the end.
  size_t digits_end(size_t from) const {
    while (from < text_.size() && (is_digit_char(text_[from]) ||
                                   (text_[from] == '_' && from + 1 < text_.size() && is_digit_char(text_[from + 1])))) {
      ++from;
    }
    return from;
  }

  void number() {
    const size_t begin = at_;
    size_t end = digits_end(begin);
    bool is_real = false;
    if (begin == 0 || text_[begin - 1] != '.') {  // x.0.1 takes two elements
      const auto digit_at = [&](size_t i) { return i < text_.size() && is_digit_char(text_[i]); };
      if (end < text_.size() && text_[end] == '.' && digit_at(end + 1)) end = digits_end(end + 1), is_real = true;
      const size_t sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-');
      if (end < text_.size() && (text_[end] | 0x20) == 'e' && digit_at(end + 1 + sign))
        end = digits_end(end + 1 + sign), is_real = true;
    }
    if (!is_real && text_[begin] == '0') end = std::min(text_.find_first_not_of("0_", begin), end);  // no 012
    std::string digits = text_.substr(begin, end - begin);
    std::erase(digits, '_');
    const auto integer = parse_int(digits, 10);
    if (is_real) add(TokenKind::kFloat, digits).real = parse_float(digits).value_or(0);
    else if (integer) add(TokenKind::kInteger, digits).integer = *integer;
    else fail("the integer " + digits + " does not fit in 64 bits", line_);
    move(end - begin);
  }

  void string() {
    const char quote = peek();
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail("unexpected char " + repr_text(std::string(1, quote)), line_);
    add(TokenKind::kString, unescape(std::string_view(text_).substr(at_ + 1, end - at_ - 1)));
    move(end + 1 - at_);
  }

  std::string unescape(std::string_view s) const {
    std::string out;
    for (size_t i = 0; i < s.size(); ++i) {
      if (s[i] != '\\') {
        out.push_back(s[i]);
        continue;
      }
      const char c = s[++i];  // string() has seen to it that one follows
      constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t k = kFrom.find(c); k != kFrom.npos) {
        out.push_back(kTo[k]);
      } else if (c >= '0' && c <= '7') {
        uint32_t code = 0;
        size_t end = i;
        while (end < s.size() && end < i + 3 && s[end] >= '0' && s[end] <= '7')
          code = code * 8 + static_cast<uint32_t>(s[end++] - '0');
        append_utf8(&out, code);
        i = end - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_utf8(&out, hex(s.substr(i + 1, count), count));
        i += count;
      } else if (c == 'N') {
        fail("characters by name (\\N) are not supported", line_);
      } else if (c != '\n') {  // an unknown escape stands for itself; an escaped line end goes
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  uint32_t hex(std::string_view digits, size_t count) const {
    uint32_t code = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != count || end != digits.data() + digits.size() || error != std::errc()) {
      fail("truncated escape in a string", line_);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("an escape in a string is not a character", line_);
    return code;
  }

  bool name() {
    size_t end = at_;
    while (end < text_.size()) {
      size_t next = end;
      const uint32_t c = next_char(text_, &next);
      if (!(c == '_' || is_alpha(c) || (end > at_ && is_alnum(c)))) break;
      end = next;
    }
    if (end == at_) return false;
    add(TokenKind::kName, text_.substr(at_, end - at_));
    move(end - at_);
    return true;
  }

  void operator_token(std::string* open) {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto* op = std::find_if(std::begin(kOperators), std::end(kOperators), [&](auto o) { return looking_at(o); });
    if (op == std::end(kOperators)) {
      size_t next = at_;
      std::string shown;
      append_utf8(&shown, next_char(text_, &next));
      fail("unexpected char " + repr_text(shown), line_);
    }
    const char c = (*op)[0];
    if (c == '(' || c == '[' || c == '{') {
      open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open->empty()) fail("unexpected '" + std::string(1, c) + "'", line_);
      if (open->back() != c) {
        fail("unexpected '" + std::string(1, c) + "', expected '" + std::string(1, open->back()) + "'", line_);
      }
      open->pop_back();
    }
    add(TokenKind::kOperator, std::string(*op));
    move(op->size());
  }

  std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended with a line end
  std::vector<Token> tokens_;
};

}  // namespace

std::string Token::describe() const {
  static constexpr const char* kNames[] = {"template data / text",
                                           "begin of print statement",
                                           "end of print statement",
                                           "begin of statement block",
                                           "end of statement block",
                                           "",
                                           "string",
                                           "integer",
                                           "float",
                                           "",
                                           "end of template"};
  return is(TokenKind::kName) || is(TokenKind::kOperator) ? value : kNames[static_cast<size_t>(kind)];
}

std::vector<Token> tokenize(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    throw budget_error("the chat template is longer than " + std::to_string(kMaxSourceBytes) + " bytes");
  }
  if (!is_valid_utf8(source)) throw template_error("the chat template is not valid UTF-8");
  return Lexer(source).run();
}

}  // namespace llmb::jinja
