#include "formats/json_scanner.h"

#include "base/utf8.h"

namespace llmb {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

Status JsonScanner::error(const std::string& what) const {
  return data_loss("invalid JSON at byte " + std::to_string(pos_) + ": " + what);
}

char JsonScanner::peek() {
  while (pos_ < text_.size() &&
         (text_[pos_] == ' ' || text_[pos_] == '\n' || text_[pos_] == '\t' || text_[pos_] == '\r'))
    ++pos_;
  return pos_ < text_.size() ? text_[pos_] : '\0';
}

Status JsonScanner::at_end() {
  peek();
  return pos_ == text_.size() ? Status() : error("text after the end");
}

Status JsonScanner::expect(char c) {
  if (peek() != c || pos_ == text_.size()) return error(std::string("expected '") + c + "'");
  ++pos_;
  return {};
}

Status JsonScanner::read_string(std::string* out, size_t max_bytes) {
  out->clear();
  return scan_string(out, max_bytes);
}

Status JsonScanner::skip_string() { return scan_string(nullptr, 0); }

Status JsonScanner::scan_string(std::string* out, size_t max_bytes) {
  LLMB_RETURN_IF_ERROR(expect('"'));
  while (pos_ < text_.size()) {
    const char c = text_[pos_];
    if (c == '"') {
      ++pos_;
      return {};
    }
    if (static_cast<unsigned char>(c) < 0x20) return error("control character in a string");
    if (c == '\\') {
      ++pos_;
      LLMB_RETURN_IF_ERROR(scan_escape(out));
    } else {
      const size_t size = utf8_length(text_.data() + pos_, text_.data() + text_.size());
      if (size == 0) return error("not UTF-8");
      if (out != nullptr) out->append(text_.substr(pos_, size));
      pos_ += size;
    }
    if (out != nullptr && out->size() > max_bytes)
      return error("a string of more than " + std::to_string(max_bytes) + " bytes");
  }
  return error("unterminated string");
}

Status JsonScanner::scan_escape(std::string* out) {
  static constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  const char c = pos_ < text_.size() ? text_[pos_] : '\0';
  if (const size_t i = kEscapes.find(c); c != '\0' && i != std::string_view::npos) {
    ++pos_;
    if (out != nullptr) out->push_back(kMeanings[i]);
    return {};
  }
  if (c != 'u') return error("unknown escape");
  ++pos_;
  uint32_t code = 0;
  LLMB_RETURN_IF_ERROR(scan_hex4(&code));
  if (code >= 0xD800 && code < 0xDC00) {
    uint32_t low = 0;
    if (text_.substr(pos_, 2) != "\\u") return error("lone surrogate");
    pos_ += 2;
    LLMB_RETURN_IF_ERROR(scan_hex4(&low));
    if (low < 0xDC00 || low > 0xDFFF) return error("lone surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xDC00 && code <= 0xDFFF) {
    return error("lone surrogate");
  }
  if (out != nullptr) append_utf8(out, code);
  return {};
}

Status JsonScanner::scan_hex4(uint32_t* out) {
  *out = 0;
  for (int i = 0; i < 4; ++i, ++pos_) {
    const char c = pos_ < text_.size() ? text_[pos_] : '\0';
    uint32_t digit;
    if (is_digit(c)) digit = c - '0';
    else if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    else if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    else return error("expected four hexadecimal digits");
    *out = *out * 16 + digit;
  }
  return {};
}

Status JsonScanner::read_unsigned(uint64_t* out) {
  if (!is_digit(peek())) return error("expected a non-negative integer");
  const size_t begin = pos_;
  *out = 0;
  for (; pos_ < text_.size() && is_digit(text_[pos_]); ++pos_) {
    if (__builtin_mul_overflow(*out, uint64_t{10}, out) ||
        __builtin_add_overflow(*out, static_cast<uint64_t>(text_[pos_] - '0'), out))
      return error("integer too large");
  }
  if (text_[begin] == '0' && pos_ - begin > 1) return error("leading zero");
  if (pos_ < text_.size() && (text_[pos_] == '.' || text_[pos_] == 'e' || text_[pos_] == 'E'))
    return error("expected an integer");
  return {};
}

Status JsonScanner::skip_scalar() {
  for (const std::string_view literal : {"true", "false", "null"})
    if (text_.substr(pos_, literal.size()) == literal) {
      pos_ += literal.size();
      return {};
    }
  return skip_number();
}

Status JsonScanner::skip_number() {
  const auto take = [&](std::string_view any_of) {
    const bool found = pos_ < text_.size() && any_of.find(text_[pos_]) != std::string_view::npos;
    pos_ += found;
    return found;
  };
  const auto take_digits = [&] {
    const size_t begin = pos_;
    while (pos_ < text_.size() && is_digit(text_[pos_])) ++pos_;
    return pos_ > begin;
  };
  take("-");
  if (!take("0") && !take_digits()) return error("expected a value");
  if (take(".") && !take_digits()) return error("expected a digit");
  if (take("eE")) {
    take("+-");
    if (!take_digits()) return error("expected a digit");
  }
  return {};
}

Status JsonScanner::skip_value(int max_depth) {
  if (max_depth == 0) return error("nested too deeply");
  switch (peek()) {
    case '"':
      return skip_string();
    case '{':
      return read_object([&](const std::string&) { return skip_value(max_depth - 1); });
    case '[':
      return read_array([&] { return skip_value(max_depth - 1); });
    default:
      return skip_scalar();
  }
}

}  // namespace llmb
