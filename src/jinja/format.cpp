#include "jinja/format.h"

#include <algorithm>
#include <cmath>

#include "jinja/interpreter.h"
#include "jinja/ops.h"
#include "jinja/text.h"
#include "text/letter_case.h"

namespace llmb::jinja {

namespace {

constexpr int64_t kMaxWidth = 100'000;  // of a field, and most digits of a number

// One field: [[fill]align][sign][#][0][width][grouping][.precision][type]
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // < > = ^, 0: by the type
  char sign = '-';
  bool alternate = false;
  char grouping = 0;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

bool is_one_of(std::string_view set, char c) { return c != 0 && set.find(c) != set.npos; }

// ---- a value put into its field -----------------------------------------------------------------

std::string pad(const FormatSpec& spec, char align, const std::string& sign, const std::string& body,
                int64_t num_chars) {
  const int64_t missing = std::max<int64_t>(0, spec.width - num_chars);
  const int64_t left = align == '^' ? missing / 2 : align == '<' ? 0 : missing;
  std::string before, after;
  for (int64_t i = 0; i < left; ++i) before += spec.fill;
  for (int64_t i = left; i < missing; ++i) after += spec.fill;
  return (align == '=' ? sign + before : before + sign) + body + after;
}

std::string format_string(std::string_view text, const FormatSpec& spec) {
  if (spec.precision >= 0) text = text.substr(0, char_offset(text, spec.precision));
  return pad(spec, spec.align != 0 ? spec.align : '<', "", std::string(text), count_chars(text));
}

std::string pad_number(bool is_negative, const std::string& prefix, std::string body, const FormatSpec& spec,
                       size_t group) {
  if (spec.grouping != 0) {
    const size_t end = std::min(body.size(), body.find_first_not_of("0123456789abcdefABCDEF"));
    for (size_t i = end; i > group; i -= group) body.insert(i - group, 1, spec.grouping);
  }
  const std::string sign = is_negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  return pad(spec, spec.align != 0 ? spec.align : '>', sign + prefix, body,
             static_cast<int64_t>(sign.size() + prefix.size() + body.size()));
}

std::string print_float(double value, char type, int64_t precision, bool alternate) {
  const std::string format = std::string("%") + (alternate ? "#" : "") + ".*" + type;
  const int digits = static_cast<int>(precision < 0 ? 6 : precision);
  std::string out(static_cast<size_t>(snprintf(nullptr, 0, format.c_str(), digits, value)) + 1, '\0');
  snprintf(out.data(), out.size(), format.c_str(), digits, value);
  out.pop_back();
  return out;
}

std::string float_body(double value, const FormatSpec& spec) {
  if (!std::isfinite(value)) {
    const std::string text = std::isnan(value) ? "nan" : "inf";
    return (is_one_of("EFG", spec.type) ? to_upper(text) : text) + (spec.type == '%' ? "%" : "");
  }
  if (spec.type == '%') return print_float(value * 100, 'f', spec.precision, spec.alternate) + "%";
  if (spec.type != 0) {
    const bool is_general = is_one_of("gG", spec.type);
    return print_float(value, spec.type, is_general && spec.precision == 0 ? 1 : spec.precision, spec.alternate);
  }
  if (spec.precision < 0) return repr_float(value);
  const std::string text = print_float(value, 'g', std::max<int64_t>(1, spec.precision), spec.alternate);
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

std::string format_float(double value, const FormatSpec& spec) {
  return pad_number(std::signbit(value) && !std::isnan(value), "", float_body(std::fabs(value), spec), spec, 3);
}

std::string format_int(int64_t value, const FormatSpec& spec) {
  const unsigned base = is_one_of("xX", spec.type) ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
  const std::string_view digits = spec.type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  uint64_t magnitude = value < 0 ? -static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string body;
  do body.insert(body.begin(), digits[magnitude % base]);
  while ((magnitude /= base) != 0);
  if (spec.precision > static_cast<int64_t>(body.size()))  // of %: at least so many digits
    body.insert(0, static_cast<size_t>(spec.precision) - body.size(), '0');
  const std::string prefix = spec.alternate && base != 10 ? std::string("0") + spec.type : "";
  return pad_number(value < 0, prefix, body, spec, base == 10 ? 3 : 4);
}

std::string char_of(int64_t value) {
  if (value < 0 || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) throw template_error("%c arg not in range");
  std::string out;
  append_utf8(&out, static_cast<uint32_t>(value));
  return out;
}

// Decimal digits from text[*at] on, which moves behind them.
int64_t read_count(std::string_view text, size_t* at) {
  int64_t n = 0;
  for (; *at < text.size() && text[*at] >= '0' && text[*at] <= '9'; ++*at) {
    n = n * 10 + (text[*at] - '0');
    if (n > kMaxWidth) throw budget_error("a format field is too wide");
  }
  return n;
}

// ---- "..." % values -----------------------------------------------------------------------------

// Reads one conversion after its '%', up to its type.
FormatSpec parse_percent(std::string_view text, size_t* at) {
  FormatSpec spec;
  bool has_zero = false;
  for (; *at < text.size() && is_one_of("-+ #0", text[*at]); ++*at) {
    const char c = text[*at];
    if (c == '-') spec.align = '<';
    else if (c == '#') spec.alternate = true;
    else if (c == '0') has_zero = true;
    else if (spec.sign != '+') spec.sign = c;
  }
  spec.width = read_count(text, at);
  if (*at < text.size() && text[*at] == '.') spec.precision = read_count(text, &++*at);
  if (*at >= text.size()) throw value_error("incomplete format");
  spec.type = text[*at];
  if (!is_one_of("diuoxXeEfFgGcrsa%", spec.type)) {
    std::string shown;
    append_utf8(&shown, next_char(text, at));
    throw value_error("unsupported format character " + repr_text(shown));
  }
  ++*at;
  if (spec.align == 0) spec.align = '>';
  else has_zero = false;
  if (has_zero && !is_one_of("crsa", spec.type)) spec.fill = "0", spec.align = '=';
  return spec;
}

std::string percent_field(Heap& heap, const Value& v, const FormatSpec& spec) {
  if (spec.type == 's') return format_string(text_of(to_string(heap, v)), spec);
  if (spec.type == 'r' || spec.type == 'a') return format_string(repr_of(heap, v), spec);
  if (spec.type == 'c') {
    if (v.is_string() && v.as<String>().num_chars == 1) return format_string(text_of(v), spec);
    if (!v.is_integral()) throw type_error("%c requires int or char");
    return format_string(char_of(v.as_int()), spec);
  }
  if (!v.is_number()) {
    require_defined(v);
    std::string conversion = "%";
    conversion += spec.type;
    throw type_error(conversion.append(" format: a real number is required, not ").append(type_name(v)));
  }
  if (is_one_of("eEfFgG", spec.type)) return format_float(v.to_double(), spec);
  if (!v.is(Type::kFloat)) return format_int(v.as_int(), spec);
  if (!is_one_of("diu", spec.type))
    throw type_error(std::string("%") + spec.type + " format: an integer is required, not float");
  if (!(std::fabs(v.as_float()) < 0x1p63)) throw value_error("cannot convert float to a 64-bit integer");
  return format_int(static_cast<int64_t>(v.as_float()), spec);
}

}  // namespace

Value format_percent(Heap& heap, const Value& pattern, const Value& values) {
  const std::string_view text = text_of(pattern);
  const bool is_tuple = values.is(Type::kTuple);
  size_t num_used = 0;
  bool has_names = false;
  const auto next_value = [&]() -> Value {
    if (num_used >= (is_tuple ? values.as<List>().items.size() : 1))
      throw type_error("not enough arguments for format string");
    return is_tuple ? values.as<List>().items[num_used++] : (++num_used, values);
  };
  TextBuilder out(heap);
  for (size_t at = 0; at < text.size();) {
    const size_t mark = std::min(text.find('%', at), text.size());
    out.append(text.substr(at, mark - at));
    at = mark + 1;
    if (mark == text.size()) break;
    Value value;
    if (at < text.size() && text[at] == '(') {
      if (!values.is(Type::kDict)) throw type_error("format requires a mapping");
      const size_t end = text.find(')', at);
      if (end == text.npos) throw value_error("incomplete format key");
      const std::string_view key = text.substr(at + 1, end - at - 1);
      const Value* found = values.as<Dict>().find(key);
      if (found == nullptr) throw lookup_error(repr_text(key));
      value = *found;
      has_names = true;
      at = end + 1;
    }
    const FormatSpec spec = parse_percent(text, &at);
    if (spec.type == '%') out.push_back('%');
    else out.append(percent_field(heap, value.is_missing() ? next_value() : value, spec));
  }
  const bool has_subscripts =
      values.is(Type::kDict) || values.is(Type::kList) || values.is(Type::kRange) || values.is_undefined();
  const bool all_used = is_tuple ? num_used == values.as<List>().items.size() : num_used > 0 || has_subscripts;
  if (!all_used && !has_names) throw type_error("not all arguments converted during string formatting");
  return out.finish();
}

// ---- "...".format(...) --------------------------------------------------------------------------

namespace {

FormatSpec parse_spec(std::string_view text) {
  FormatSpec spec;
  size_t at = 0;
  if (!text.empty()) next_char(text, &at);
  if (at < text.size() && is_one_of("<>=^", text[at])) {
    spec.fill = text.substr(0, at);
    spec.align = text[at++];
  } else {
    at = !text.empty() && is_one_of("<>=^", text[0]);
    if (at == 1) spec.align = text[0];
  }
  const auto take = [&](std::string_view set) {
    return at < text.size() && is_one_of(set, text[at]) ? text[at++] : '\0';
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  if (take("0") != 0 && spec.align == 0) spec.fill = "0", spec.align = '=';
  spec.width = read_count(text, &at);
  spec.grouping = take(",_");
  if (take(".") != 0) {
    if (at >= text.size() || text[at] < '0' || text[at] > '9') throw value_error("Format specifier missing precision");
    spec.precision = read_count(text, &at);
  }
  spec.type = take("bcdeEfFgGosxX%");
  if (at != text.size()) throw value_error("Invalid format specifier");
  return spec;
}

std::string format_value(Heap& heap, const Value& v, std::string_view spec_text) {
  if (spec_text.empty()) return std::string(text_of(to_string(heap, v)));
  if (!v.is_number() && !v.is_string()) {
    require_defined(v);
    throw type_error("unsupported format string passed to " + std::string(type_name(v)) + ".__format__");
  }
  const FormatSpec spec = parse_spec(spec_text);
  const bool is_float_type = is_one_of("eEfFgG%", spec.type);
  const bool fits = v.is_string()        ? spec.type == 0 || spec.type == 's'
                    : v.is(Type::kFloat) ? spec.type == 0 || is_float_type
                                         : spec.type != 's';
  if (!fits)
    throw value_error(std::string("Unknown format code '") + spec.type + "' for object of type '" + type_name(v) + "'");
  if (v.is_string() && spec.align == '=') throw value_error("'=' alignment not allowed in string format specifier");
  if (v.is_string()) return format_string(text_of(v), spec);
  if (v.is(Type::kFloat) || is_float_type) return format_float(v.to_double(), spec);
  if (spec.type == 'c') return format_string(char_of(v.as_int()), spec);
  if (spec.precision >= 0) throw value_error("Precision not allowed in integer format specifier");
  return format_int(v.as_int(), spec);
}

bool all_digits(std::string_view s) { return !s.empty() && s.find_first_not_of("0123456789") == s.npos; }

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& in, const Arguments& arguments) : in_(in), arguments_(arguments) {}

  Value expand(std::string_view text) {
    TextBuilder out(in_.heap());
    for (size_t at = 0; at < text.size();) {
      const size_t brace = std::min(text.find_first_of("{}", at), text.size());
      out.append(text.substr(at, brace - at));
      if (brace == text.size()) break;
      at = brace + 1;
      if (at < text.size() && text[at] == text[brace]) {
        out.push_back(text[at++]);
        continue;
      }
      if (text[brace] == '}') throw value_error("Single '}' encountered in format string");
      const size_t end = text.find('}', at);
      if (end == text.npos) throw value_error("expected '}' before end of string");
      out.append(field(text.substr(at, end - at)));
      at = end + 1;
    }
    return out.finish();
  }

 private:
  // name[!conversion][:spec]
  std::string field(std::string_view body) {
    const size_t split = std::min(body.find_first_of("!:"), body.size());
    std::string_view rest = body.substr(split);
    Value v = lookup(body.substr(0, split));
    if (rest.starts_with("!")) {
      const char how = rest.size() > 1 ? rest[1] : '\0';
      if (!is_one_of("sra", how)) throw value_error("Unknown conversion specifier; !s, !r and !a are known");
      v = how == 's' ? to_string(in_.heap(), v) : make_string(in_.heap(), repr_of(in_.heap(), v));
      rest.remove_prefix(2);
      if (!rest.empty() && rest[0] != ':') throw value_error("expected ':' after conversion specifier");
    }
    return format_value(in_.heap(), v, rest.empty() ? rest : rest.substr(1));
  }

  // An argument's number or name, then .attribute and [key].
  Value lookup(std::string_view name) {
    size_t at = std::min(name.find_first_of(".["), name.size());
    Value v = first(name.substr(0, at));
    while (at < name.size()) {
      const bool is_attribute = name[at] == '.';
      if (!is_attribute && name[at] != '[')
        throw value_error("Only '.' or '[' may follow ']' in format field specifier");
      const size_t stop = name.find_first_of(is_attribute ? ".[" : "]", at + 1);
      if (!is_attribute && stop == name.npos) throw value_error("Missing ']' in format string");
      const std::string_view key = name.substr(at + 1, std::min(stop, name.size()) - at - 1);
      const auto number = all_digits(key) ? parse_int(key, 10) : std::nullopt;
      v = is_attribute ? get_attribute(in_, v, key)
                       : get_item(in_, v, number ? Value::integer(*number) : make_string(in_.heap(), std::string(key)));
      at = is_attribute ? std::min(stop, name.size()) : stop + 1;
    }
    return v;
  }

  Value first(std::string_view name) {
    if (!name.empty() && !all_digits(name)) {
      for (const auto& [keyword, value] : arguments_.keyword)
        if (keyword == name) return value;
      throw lookup_error(repr_text(name));
    }
    if (name.empty() ? numbered_ : next_ > 0)
      throw value_error("cannot switch between automatic field numbering and manual field specification");
    numbered_ = numbered_ || !name.empty();
    const auto i = name.empty() ? static_cast<int64_t>(next_++) : parse_int(name, 10).value_or(INT64_MAX);
    if (i >= static_cast<int64_t>(arguments_.positional.size()))
      throw lookup_error("Replacement index " + std::to_string(i) + " out of range for positional args tuple");
    return arguments_.positional[static_cast<size_t>(i)];
  }

  Interpreter& in_;
  const Arguments& arguments_;
  bool numbered_ = false;
  size_t next_ = 0;
};

}  // namespace

Value format_braces(Interpreter& in, const Value& pattern, const Arguments& arguments) {
  return BraceFormatter(in, arguments).expand(text_of(pattern));
}

}  // namespace llmb::jinja
