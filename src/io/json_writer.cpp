#include "io/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace llmb {

namespace {

// 1 where a byte can be copied as it is.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> plain{};
  for (int c = 0x20; c < 0x80; ++c) plain[c] = c != '"' && c != '\\';
  return plain;
}();

void append_escape(std::string& out, unsigned char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default: {
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
}

template <typename T, typename... Format>
void append_number(std::string& out, T value, Format... format) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, format...);
  out.append(buffer, result.ptr);
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char* plain_end = p;
    while (plain_end < end && kPlain[static_cast<unsigned char>(*plain_end)]) ++plain_end;
    out.append(p, plain_end);
    p = plain_end;
    if (p == end) break;
    const auto c = static_cast<unsigned char>(*p);
    if (c < 0x80) {
      append_escape(out, c);
      ++p;
    } else if (const size_t length = utf8_length(p, end); length > 0) {
      out.append(p, length);
      p += length;
    } else {
      out += "\xEF\xBF\xBD";
      ++p;
    }
  }
  out += '"';
}

void JsonWriter::separate() {
  if (out_.size() == start_) return;
  const char last = out_.back();
  if (last != '{' && last != '[' && last != ':') out_ += ',';
}

void JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
}

void JsonWriter::key(std::string_view name) {
  separate();
  append_json_string(out_, name);
  out_ += ':';
}

void JsonWriter::string(std::string_view text) {
  separate();
  append_json_string(out_, text);
}

void JsonWriter::integer(int64_t value) {
  separate();
  append_number(out_, value);
}

void JsonWriter::unsigned_integer(uint64_t value) {
  separate();
  append_number(out_, value);
}

void JsonWriter::floating(double value) {
  if (!std::isfinite(value)) return null();
  separate();
  append_number(out_, value);
}

void JsonWriter::single(float value) {
  if (!std::isfinite(value)) return null();
  separate();
  append_number(out_, value);
}

void JsonWriter::milliseconds(double value) {
  constexpr double kMaxExact = 9e12;  // in thousandths this still fits 53 bits
  if (!std::isfinite(value)) return null();
  if (std::fabs(value) > kMaxExact) return floating(value);
  separate();
  int64_t thousandths = std::llround(value * 1000.0);
  if (thousandths < 0) {
    out_ += '-';
    thousandths = -thousandths;
  }
  append_number(out_, thousandths / 1000);
  const auto fraction = static_cast<int>(thousandths % 1000);
  if (fraction == 0) return;
  const char digits[] = {'.', static_cast<char>('0' + fraction / 100), static_cast<char>('0' + fraction / 10 % 10),
                         static_cast<char>('0' + fraction % 10)};
  out_.append(digits, fraction % 10 != 0 ? 4 : fraction % 100 != 0 ? 3 : 2);
}

void JsonWriter::boolean(bool value) {
  separate();
  out_ += value ? "true" : "false";
}

void JsonWriter::null() {
  separate();
  out_ += "null";
}

void JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
}

}  // namespace llmb
