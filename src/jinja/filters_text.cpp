// Filters on text and numbers, and tojson.
#include <algorithm>
#include <cmath>

#include "jinja/builtins.h"
#include "jinja/format.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/json.h"
#include "jinja/text.h"
#include "text/letter_case.h"

namespace llmb::jinja {

namespace {

// ---- text ---------------------------------------------------------------------------------------

Value make_text(Call& c, std::string text) { return make_string(c.heap, std::move(text)); }

std::string spaces(int64_t count, int64_t limit) {
  return std::string(static_cast<size_t>(std::clamp<int64_t>(count, 0, limit)), ' ');
}

// The filter that is the method of str with its name.
template <const char* const& Name>
Value as_method(Call& c) {
  const Value text = soft_string(c.heap, c.self);
  return invoke(*find_method(text, Name), c.in, text, c.all);
}
constexpr const char *kCapitalize = "capitalize", *kLower = "lower", *kStrip = "strip", *kUpper = "upper";

Value filter_center(Call& c) {
  const Value text = soft_string(c.heap, c.self);
  const int64_t width = c.integer(0, 80), missing = std::max<int64_t>(0, width - text.as<String>().num_chars);
  const int64_t left = missing / 2 + (missing & width & 1);
  TextBuilder out(c.heap);
  out.append(static_cast<size_t>(left), ' ');
  out.append(text_of(text));
  out.append(static_cast<size_t>(missing - left), ' ');
  return out.finish();
}

Value filter_title(Call& c) {
  const Value input = soft_string(c.heap, c.self);
  const std::string_view text = text_of(input);
  c.heap.spend_chars(8 * text.size());
  TextBuilder out(c.heap);
  const auto separates = [](uint32_t ch) {
    return is_space(ch) ||
           (ch < 0x80 && std::string_view("-({[<").find(static_cast<char>(ch)) != std::string_view::npos);
  };
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const bool separator = separates(next_char(text, &at));
    const size_t second = at;
    for (size_t next = at; at < text.size(); at = next) {
      if (separates(next_char(text, &next)) != separator) break;
    }
    const ScopedCharge room(c.heap, 3 * (at - begin));
    out.append(to_upper(text.substr(begin, second - begin)));
    out.append(to_lower(text.substr(second, at - second)));
  }
  return out.finish();
}

Value filter_replace(Call& c) {
  return replace_text(c.heap, to_string(c.heap, c.self), to_string(c.heap, c.at(0)), to_string(c.heap, c.at(1)),
                      c.given_not_none(2) ? c.integer(2) : -1);
}

Value filter_format(Call& c) {
  if (!c.all.positional.empty() && !c.all.keyword.empty())
    throw template_error("can't handle positional and keyword arguments at the same time");
  if (c.all.keyword.empty())
    return format_percent(c.heap, soft_string(c.heap, c.self), make_sequence(c.heap, Type::kTuple, c.all.positional));
  auto* dict = c.heap.make<Dict>();
  const Value values(Type::kDict, dict);
  for (auto& [name, v] : c.all.keyword) dict->set(make_string(c.heap, name), v);
  return format_percent(c.heap, soft_string(c.heap, c.self), values);
}

bool breaks_line(uint32_t c) {  // for str.splitlines
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

Value filter_indent(Call& c) {
  require_defined(c.self);
  if (!c.self.is_string()) throw type_error("indent needs a string, not " + std::string(type_name(c.self)));
  const std::string indent =
      c.given(0) && c.at(0).is_string() ? std::string(c.text(0)) : spaces(c.integer(0, 4), 10'000);
  const bool is_first_too = c.flag(1), is_blank_too = c.flag(2);
  const std::string_view text = text_of(c.self);
  c.heap.spend_chars(text.size());
  TextBuilder out(c.heap);
  size_t begin = 0;
  const auto put_line = [&](size_t end) {
    if (begin > 0) out.push_back('\n');
    if (begin == 0 ? is_first_too : is_blank_too || end > begin) out.append(indent);
    out.append(text.substr(begin, end - begin));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const uint32_t ch = next_char(text, &at);
    if (!breaks_line(ch)) continue;
    if (ch == '\r' && at < text.size() && text[at] == '\n') ++at;
    put_line(end);
    begin = at;
  }
  put_line(text.size());
  return out.finish();
}

Value filter_truncate(Call& c) {
  const int64_t length = c.integer(0, 255), leeway = c.given_not_none(3) ? c.integer(3) : 5;
  const std::string_view end = c.text(2, "...");
  const int64_t end_chars = count_chars(end);
  if (length < end_chars) throw template_error("expected length >= " + std::to_string(end_chars));
  if (leeway < 0) throw template_error("expected leeway >= 0");
  const int64_t num_chars = length_of(c.self);
  if (num_chars <= length || num_chars - length <= leeway) return c.self;
  if (!c.self.is_string()) throw type_error("truncate needs a string, not " + std::string(type_name(c.self)));
  const std::string_view text = text_of(c.self);
  std::string_view kept = text.substr(0, char_offset(text, length - end_chars));
  if (!c.flag(1)) kept = kept.substr(0, kept.rfind(' '));
  TextBuilder out(c.heap);
  out.append(kept);
  out.append(end);
  return out.finish();
}

Value filter_wordcount(Call& c) {
  const Value input = soft_string(c.heap, c.self);
  c.heap.spend_chars(2 * text_of(input).size());
  int64_t count = 0;
  bool in_word = false;
  for (size_t at = 0; at < text_of(input).size();) {
    const uint32_t ch = next_char(text_of(input), &at);
    const bool is_word = ch == '_' || is_alnum(ch);
    count += is_word && !in_word;
    in_word = is_word;
  }
  return Value::integer(count);
}

Value quoted_url(Call& c, const Value& v, bool is_query) {
  const Value text = to_string(c.heap, v);
  c.heap.spend_chars(4 * text_of(text).size());
  const ScopedCharge room(c.heap, 3 * text_of(text).size());
  return make_text(c, quote_url(text_of(text), is_query));
}

Value filter_urlencode(Call& c) {
  if (c.self.is_string() || !is_iterable(c.self)) return quoted_url(c, c.self, false);
  TextBuilder out(c.heap);
  for_each(c.in, c.self.is(Type::kDict) ? make_items(c.heap, c.self) : c.self, [&](const Value& pair) {
    const Value list = to_list(c.in, pair);
    const auto& parts = list.as<List>().items;
    if (parts.size() != 2) throw value_error("urlencode needs pairs");
    if (out.size() > 0) out.push_back('&');
    out.append(text_of(quoted_url(c, parts[0], true)));
    out.push_back('=');
    out.append(text_of(quoted_url(c, parts[1], true)));
    return true;
  });
  return out.finish();
}

Value filter_filesizeformat(Call& c) {
  const bool is_binary = c.flag(0);
  const auto parsed = c.self.is_string()   ? parse_float(text_of(c.self))
                      : c.self.is_number() ? std::optional<double>(c.self.to_double())
                                           : std::nullopt;
  if (!parsed) throw type_error("filesizeformat needs a number");
  const double bytes = *parsed, base = is_binary ? 1024 : 1000;
  if (bytes == 1) return make_text(c, "1 Byte");
  char text[400];
  if (bytes < base) {
    snprintf(text, sizeof text, "%.0f Bytes", std::trunc(bytes));
    return make_text(c, text);
  }
  const std::string_view letters = is_binary ? "KMGTPEZY" : "kMGTPEZY";
  double size = bytes / base;
  size_t unit = 0;
  for (; size >= base && unit + 1 < letters.size(); ++unit) size /= base;
  snprintf(text, sizeof text, "%.1f %c%s", size, letters[unit], is_binary ? "iB" : "B");
  return make_text(c, text);
}

// ---- numbers ------------------------------------------------------------------------------------

Value truncated(double f) {
  if (!(std::fabs(f) < 0x1p63)) throw template_error("cannot convert this float to a 64-bit integer");
  return Value::integer(static_cast<int64_t>(f));
}

Value filter_int(Call& c) {
  const Value otherwise = c.given(0) ? c.at(0) : Value::integer(0);
  require_defined(c.self);
  if (c.self.is_integral()) return Value::integer(c.self.as_int());
  if (c.self.is(Type::kFloat)) return std::isnan(c.self.as_float()) ? otherwise : truncated(c.self.as_float());
  if (!c.self.is_string()) return otherwise;
  const auto base = static_cast<int>(std::clamp<int64_t>(c.integer(1, 10), -1, 100));
  if (const auto i = parse_int(text_of(c.self), base)) return Value::integer(*i);
  const auto f = parse_float(text_of(c.self));
  return f && std::isfinite(*f) ? truncated(*f) : otherwise;
}

Value filter_float(Call& c) {
  require_defined(c.self);
  if (c.self.is_number()) return Value::real(c.self.to_double());
  const auto f = c.self.is_string() ? parse_float(text_of(c.self)) : std::nullopt;
  if (f) return Value::real(*f);
  return c.given(0) ? c.at(0) : Value::real(0);
}

Value filter_abs(Call& c) {
  if (c.self.is(Type::kFloat)) return Value::real(std::fabs(c.self.as_float()));
  if (!c.self.is_integral()) throw type_error("bad operand type for abs(): '" + std::string(type_name(c.self)) + "'");
  return c.self.as_int() < 0 ? negate(c.self) : plus(c.self);
}

// round(value, precision) of Python: to even at halves, exact in decimal.
Value round_common(const Value& v, int64_t precision) {
  const double unit = precision < 0 ? std::pow(10.0, static_cast<double>(-precision)) : 1;
  if (v.is_integral()) {
    if (precision >= 0) return Value::integer(v.as_int());
    return truncated(std::nearbyint(static_cast<double>(v.as_int()) / unit) * unit);
  }
  const double f = v.as_float();
  if (!std::isfinite(f)) return v;
  if (precision < 0) return Value::real(std::isinf(unit) ? 0.0 : std::nearbyint(f / unit) * unit);
  char text[800];
  snprintf(text, sizeof text, "%.*f", static_cast<int>(std::min<int64_t>(precision, 330)), f);
  return Value::real(std::strtod(text, nullptr));
}

Value filter_round(Call& c) {
  const int64_t precision = c.integer(0, 0);
  const std::string_view method = c.text(1, "common");
  require_defined(c.self);
  if (method != "common" && method != "ceil" && method != "floor")
    throw template_error("method must be common, ceil or floor");
  if (!c.self.is_number())
    throw type_error("type " + std::string(type_name(c.self)) + " doesn't define __round__ method");
  if (method == "common") return round_common(c.self, precision);
  const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = c.self.to_double() * scale;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// ---- tojson -------------------------------------------------------------------------------------

Value filter_tojson(Call& c) {
  JsonStyle style;
  style.ensure_ascii = c.flag(0);
  style.indented = c.given_not_none(1);
  if (style.indented) {
    style.indent = c.at(1).is_string() ? std::string(c.text(1)) : spaces(c.integer(1), 1000);
    style.item_separator = ",";
  }
  if (c.given_not_none(2)) {
    const Value& pair = c.at(2);
    const auto is_text = [&](size_t i) { return pair.as<List>().items[i].is_string(); };
    if (!pair.is_sequence() || length_of(pair) != 2 || !is_text(0) || !is_text(1))
      throw value_error("tojson: separators must be two strings");
    style.item_separator = text_of(pair.as<List>().items[0]);
    style.key_separator = text_of(pair.as<List>().items[1]);
  }
  style.sort_keys = c.flag(3);
  return write_json(c.heap, c.self, style);
}

constexpr Builtin kTextFilters[] = {
    {"abs", filter_abs, ""},
    {"capitalize", as_method<kCapitalize>, nullptr},
    {"center", filter_center, "width"},
    {"e", [](Call& c) { return escape(c.heap, c.self); }, ""},
    {"escape", [](Call& c) { return escape(c.heap, c.self); }, ""},
    {"filesizeformat", filter_filesizeformat, "binary"},
    {"float", filter_float, "default"},
    {"forceescape", [](Call& c) { return escape(c.heap, to_string(c.heap, c.self)); }, ""},
    {"format", filter_format, nullptr},
    {"indent", filter_indent, "width first blank"},
    {"int", filter_int, "default base"},
    {"lower", as_method<kLower>, nullptr},
    {"replace", filter_replace, "old! new! count"},
    {"round", filter_round, "precision method"},
    {"safe", [](Call& c) { return make_string(c.heap, std::string(text_of(to_string(c.heap, c.self))), true); }, ""},
    {"string", [](Call& c) { return soft_string(c.heap, c.self); }, ""},
    {"title", filter_title, ""},
    {"tojson", filter_tojson, "ensure_ascii indent separators sort_keys"},
    {"trim", as_method<kStrip>, nullptr},
    {"truncate", filter_truncate, "length killwords end leeway"},
    {"upper", as_method<kUpper>, nullptr},
    {"urlencode", filter_urlencode, ""},
    {"wordcount", filter_wordcount, ""},
};

}  // namespace

const Builtin* find_text_filter(std::string_view name) { return find_in(kTextFilters, name); }

}  // namespace llmb::jinja
