#include "jinja/format_spec.h"

#include <algorithm>
#include <cmath>

#include "jinja/ops.h"
#include "jinja/text.h"

namespace llmb::jinja {

std::string digits_of(uint64_t magnitude, unsigned base, bool upper) {
  const std::string_view digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string out;
  do {
    out.push_back(digits[magnitude % base]);
    magnitude /= base;
  } while (magnitude != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

std::string pad_number(const std::string& sign, const std::string& body, const FormatSpec& spec) {
  const auto length = static_cast<int64_t>(sign.size() + body.size());
  const int64_t missing = std::max<int64_t>(0, spec.width - length);
  const auto fill = [&](int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  switch (spec.align) {
    case '<':
      return sign + body + fill(missing);
    case '^':
      return fill(missing / 2) + sign + body + fill(missing - missing / 2);
    case '=':
      return sign + fill(missing) + body;
    default:
      return fill(missing) + sign + body;
  }
}

std::string sign_of(bool negative, const FormatSpec& spec) {
  return negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
}

namespace {

std::string print_float(double value, char type, int64_t precision, bool alternate) {
  const std::string format = std::string("%") + (alternate ? "#" : "") + ".*" + type;
  const int digits = static_cast<int>(precision < 0 ? 6 : precision);
  const int n = snprintf(nullptr, 0, format.c_str(), digits, value);
  std::string out(static_cast<size_t>(n) + 1, '\0');
  snprintf(out.data(), out.size(), format.c_str(), digits, value);
  out.pop_back();
  return out;
}

// The digits of a finite or infinite |value| in the spec's type.
std::string float_body(double value, const FormatSpec& spec) {
  const bool upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
  if (!std::isfinite(value)) {
    const std::string text = std::isnan(value) ? "nan" : "inf";
    return (upper ? to_upper(text) : text) + (spec.type == '%' ? "%" : "");
  }
  switch (spec.type) {
    case '%':
      return print_float(value * 100, 'f', spec.precision, spec.alternate) + "%";
    case 'n':
      return print_float(value, 'g', spec.precision, spec.alternate);
    case 0: {
      if (spec.precision < 0) return repr_float(value);
      std::string text = print_float(value, 'g', std::max<int64_t>(1, spec.precision), spec.alternate);
      return text.find_first_of(".e") == text.npos ? text + ".0" : text;
    }
    default:
      return print_float(value, spec.type, (spec.type | 0x20) == 'g' && spec.precision == 0 ? 1 : spec.precision,
                         spec.alternate);
  }
}

std::string group_digits(const std::string& body, char separator, size_t every) {
  const size_t end = std::min(body.size(), body.find_first_not_of("0123456789abcdefABCDEF"));
  std::string out;
  for (size_t i = 0; i < body.size(); ++i) {
    if (i > 0 && i < end && (end - i) % every == 0) out.push_back(separator);
    out.push_back(body[i]);
  }
  return out;
}

// sign, prefix and body put into the field.
}  // namespace

std::string format_float(double value, const FormatSpec& spec) {
  std::string body = float_body(std::fabs(value), spec);
  if (spec.grouping != 0) body = group_digits(body, spec.grouping, 3);
  return pad_number(sign_of(std::signbit(value) && !std::isnan(value), spec), body, spec);
}

std::string format_int(int64_t value, const FormatSpec& spec) {
  const uint64_t magnitude = value < 0 ? -static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  unsigned base = 10;
  const char* prefix = "";
  switch (spec.type) {
    case 'b':
      base = 2, prefix = "0b";
      break;
    case 'o':
      base = 8, prefix = "0o";
      break;
    case 'x':
      base = 16, prefix = "0x";
      break;
    case 'X':
      base = 16, prefix = "0X";
      break;
    default:
      break;
  }
  std::string body = digits_of(magnitude, base, spec.type == 'X');
  if (spec.grouping != 0) body = group_digits(body, spec.grouping, base == 10 ? 3 : 4);
  return pad_number(sign_of(value < 0, spec) + (spec.alternate ? prefix : ""), body, spec);
}

std::string char_of(int64_t value) {
  if (value < 0 || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) throw template_error("%c arg not in range");
  std::string out;
  append_utf8(&out, static_cast<uint32_t>(value));
  return out;
}

std::string format_string(std::string_view text, const FormatSpec& spec) {
  if (spec.precision >= 0) text = text.substr(0, char_offset(text, spec.precision));
  const int64_t missing = std::max<int64_t>(0, spec.width - count_chars(text));
  const int64_t left = spec.align == '>' ? missing : spec.align == '^' ? missing / 2 : 0;
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += spec.fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += spec.fill;
  return out;
}

int64_t read_count(std::string_view text, size_t* at) {
  int64_t n = 0;
  for (; *at < text.size() && text[*at] >= '0' && text[*at] <= '9'; ++*at) {
    n = n * 10 + (text[*at] - '0');
    if (n > kMaxWidth) throw budget_error("a format field is too wide");
  }
  return n;
}

namespace {

FormatSpec parse_spec(std::string_view text) {
  FormatSpec spec;
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '=' || c == '^'; };
  if (!text.empty()) {
    size_t after = 0;
    next_char(text, &after);
    if (after < text.size() && is_align(text[after])) {
      spec.fill = text.substr(0, after);
      spec.align = text[after];
      at = after + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  const auto take = [&](std::string_view set) {
    return at < text.size() && set.find(text[at]) != set.npos ? text[at++] : '\0';
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  if (take("#") != 0) spec.alternate = true;
  if (at < text.size() && text[at] == '0') {
    ++at;
    if (spec.align == 0) {
      spec.fill = "0";
      spec.align = '=';
    }
  }
  spec.width = read_count(text, &at);
  spec.grouping = take(",_");
  if (take(".") != 0) {
    if (at >= text.size() || text[at] < '0' || text[at] > '9') throw value_error("Format specifier missing precision");
    spec.precision = read_count(text, &at);
  }
  spec.type = take("bcdeEfFgGnosxX%");
  if (at != text.size()) throw value_error("Invalid format specifier");
  return spec;
}

}  // namespace

std::string format_value(Heap& heap, const Value& v, std::string_view spec_text) {
  if (spec_text.empty()) return std::string(text_of(to_string(heap, v)));
  if (!v.is_number() && !v.is_string()) {
    require_defined(v);
    throw type_error("unsupported format string passed to " + std::string(type_name(v)) + ".__format__");
  }
  const FormatSpec spec = parse_spec(spec_text);
  const auto refuse = [&] {
    throw value_error(std::string("Unknown format code '") + spec.type + "' for object of type '" + type_name(v) + "'");
  };
  if (v.is_string()) {
    if (spec.type != 0 && spec.type != 's') refuse();
    if (spec.align == '=') throw value_error("'=' alignment not allowed in string format specifier");
    return format_string(text_of(v), spec);
  }
  const bool float_type = spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  if (v.is(Type::kFloat) || float_type) {
    if (!float_type && spec.type != 0 && spec.type != 'n') refuse();
    return format_float(v.to_double(), spec);
  }
  if (spec.type == 's') refuse();
  if (spec.type == 'c') return format_string(char_of(v.as_int()), spec);
  if (spec.precision >= 0) throw value_error("Precision not allowed in integer format specifier");
  return format_int(v.as_int(), spec);
}

}  // namespace llmb::jinja
