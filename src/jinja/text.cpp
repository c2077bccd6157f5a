#include "jinja/text.h"

#include <string.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

namespace llmb::jinja {

int64_t count_chars(std::string_view text) {
  // Eight bytes at a time: a byte 10xxxxxx continues a character.
  constexpr uint64_t kOnes = 0x0101010101010101;
  int64_t continuing = 0;
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    memcpy(&word, text.data() + at, 8);
    continuing += __builtin_popcountll((word >> 7) & (~word >> 6) & kOnes);
  }
  for (; at < text.size(); ++at) continuing += (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80;
  return static_cast<int64_t>(text.size()) - continuing;
}

uint64_t hash_text(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325 ^ text.size();
  const auto mix = [&h](uint64_t word) {
    h = (h ^ word) * 0x9e3779b97f4a7c15;
    h ^= h >> 29;
  };
  while (text.size() >= 8) {
    uint64_t word;
    memcpy(&word, text.data(), 8);
    mix(word);
    text.remove_prefix(8);
  }
  uint64_t tail = 0;
  memcpy(&tail, text.data(), text.size());
  mix(tail);
  return h ^ h >> 32;
}

uint32_t previous_char(std::string_view text, size_t* at) {
  do {
    --*at;
  } while ((static_cast<uint8_t>(text[*at]) & 0xC0) == 0x80);
  size_t copy = *at;
  return next_char(text, &copy);
}

size_t char_offset(std::string_view text, int64_t index) {
  size_t at = 0;
  while (index > 0 && at < text.size()) {
    ++at;
    while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) ++at;
    --index;
  }
  return at;
}

// ---- classes -----------------------------------------------------------------------------------

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_alpha(uint32_t c) {
  if (c < 0x80) return (c | 32) >= 'a' && (c | 32) <= 'z';
  const auto k = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_numeric(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto k = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

bool is_printable(uint32_t c) {
  if (c < 0x7F) return c >= ' ';
  constexpr utf8proc_category_t kOthers[] = {UTF8PROC_CATEGORY_CN, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CF,
                                             UTF8PROC_CATEGORY_CS, UTF8PROC_CATEGORY_CO, UTF8PROC_CATEGORY_ZS,
                                             UTF8PROC_CATEGORY_ZL, UTF8PROC_CATEGORY_ZP};
  const auto k = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return std::find(std::begin(kOthers), std::end(kOthers), k) == std::end(kOthers);
}

// ---- searching ----------------------------------------------------------------------------------

size_t find_text(std::string_view haystack, std::string_view needle, size_t from) {
  if (from > haystack.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* hit = memmem(haystack.data() + from, haystack.size() - from, needle.data(), needle.size());
  return hit == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(hit) - haystack.data());
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> chars) {
  std::vector<uint32_t> set;
  for (size_t at = 0; chars && at < chars->size();) set.push_back(next_char(*chars, &at));
  std::sort(set.begin(), set.end());
  const auto goes = [&](uint32_t c) { return chars ? std::binary_search(set.begin(), set.end(), c) : is_space(c); };
  size_t begin = 0, end = text.size();
  while (side != Side::kRight && begin < end) {
    size_t at = begin;
    if (!goes(next_char(text, &at))) break;
    begin = at;
  }
  while (side != Side::kLeft && end > begin) {
    size_t at = end;
    if (!goes(previous_char(text, &at))) break;
    end = at;
  }
  return text.substr(begin, end - begin);
}

// ---- text for people and machines ---------------------------------------------------------------

namespace {

void append_hex(std::string* out, const char* prefix, uint32_t c, int digits) {
  out->append(prefix);
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out->push_back("0123456789abcdef"[c >> shift & 15]);
}

}  // namespace

std::string repr_text(std::string_view text) {
  const bool single = text.find('\'') == text.npos || text.find('"') != text.npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_char(text, &at);
    if (c == '\\' || c == static_cast<uint32_t>(quote)) {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_utf8(&out, c);
    } else if (c < 0x100) {
      append_hex(&out, "\\x", c, 2);
    } else if (c < 0x10000) {
      append_hex(&out, "\\u", c, 4);
    } else {
      append_hex(&out, "\\U", c, 8);
    }
  }
  out.push_back(quote);
  return out;
}

std::string repr_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));
  std::string out;
  if (text[0] == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 1) digits += text.substr(2, e - 2);
  int exponent = 0;
  const std::string_view sign_and_exponent = text.substr(e + 1);
  std::from_chars(sign_and_exponent.data() + 1, sign_and_exponent.data() + sign_and_exponent.size(), exponent);
  if (sign_and_exponent[0] == '-') exponent = -exponent;

  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (num_digits > 1) out += "." + digits.substr(1);
    out += exponent < 0 ? "e-" : "e+";
    const std::string magnitude = std::to_string(std::abs(exponent));
    return out + (magnitude.size() < 2 ? "0" : "") + magnitude;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (num_digits <= exponent + 1)
    return out + digits + std::string(static_cast<size_t>(exponent + 1 - num_digits), '0') + ".0";
  return out + digits.substr(0, static_cast<size_t>(exponent + 1)) + "." +
         digits.substr(static_cast<size_t>(exponent + 1));
}

std::string escape_html(std::string_view text) {
  static constexpr std::pair<char, std::string_view> kEscapes[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}};
  std::string out;
  for (const char c : text) {
    const auto* escape = std::find_if(std::begin(kEscapes), std::end(kEscapes), [&](auto e) { return e.first == c; });
    if (escape != std::end(kEscapes)) out += escape->second;
    else out.push_back(c);
  }
  return out;
}

std::string quote_url(std::string_view text, bool for_query) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                       c == '.' || c == '-' || c == '~' || (c == '/' && !for_query);
    if (plain) {
      out.push_back(c);
    } else if (c == ' ' && for_query) {
      out.push_back('+');
    } else {
      const auto byte = static_cast<uint8_t>(c);
      out.push_back('%');
      out.push_back("0123456789ABCDEF"[byte >> 4]);
      out.push_back("0123456789ABCDEF"[byte & 15]);
    }
  }
  return out;
}

// ---- numbers ------------------------------------------------------------------------------------

namespace {

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

int base_of_prefix(std::string_view digits) {
  if (digits.size() < 2 || digits[0] != '0') return 0;
  const char letter = static_cast<char>(digits[1] | 0x20);
  return letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
}

}  // namespace

std::optional<int64_t> parse_int(std::string_view text, int base) {
  text = strip(text, Side::kBoth);
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  bool after_prefix = false;
  if (const int prefixed = base_of_prefix(text); prefixed != 0 && (base == 0 || base == prefixed)) {
    base = prefixed;
    text.remove_prefix(2);
    after_prefix = true;
  } else if (base == 0) {
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != text.npos) return std::nullopt;
    base = 10;
  }
  int64_t value = 0;
  bool after_digit = after_prefix;  // an underscore may stand after a digit or a prefix
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_') {
      if (!after_digit || i + 1 == text.size()) return std::nullopt;
      after_digit = false;
      continue;
    }
    const int digit = digit_value(text[i]);
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, base, &value) || __builtin_sub_overflow(value, digit, &value))
      return std::nullopt;
    after_digit = true;
  }
  if (text.empty() || (!negative && value == INT64_MIN)) return std::nullopt;
  return negative ? value : -value;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip(text, Side::kBoth);
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit_at = [&](size_t k) { return k < text.size() && text[k] >= '0' && text[k] <= '9'; };
    if (text[i] != '_') {
      digits.push_back(static_cast<char>(text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 0x20 : text[i]));
    } else if (i == 0 || !is_digit_at(i - 1) || !is_digit_at(i + 1)) {
      return std::nullopt;
    }
  }
  if (digits == "inf" || digits == "infinity") return negative ? -HUGE_VAL : HUGE_VAL;
  if (digits == "nan") return std::nan("");
  if (digits.empty() || !(digits[0] == '.' || (digits[0] >= '0' && digits[0] <= '9'))) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) value = std::strtod(digits.c_str(), nullptr);
  return negative ? -value : value;
}

}  // namespace llmb::jinja
