// Filters on text and numbers, tojson, and the table of all.
#include <algorithm>
#include <cmath>

#include "jinja/args.h"
#include "jinja/builtins.h"
#include "jinja/format.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/json.h"
#include "jinja/methods.h"
#include "jinja/split.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

// ---- text ---------------------------------------------------------------------------------------

// A str method on the value as text.
Value as_method(Interpreter& in, const Value& self, const char* method, Arguments& a) {
  return find_string_method(method)->call(in, soft_string(in.heap(), self), a);
}

Value filter_upper(Interpreter& in, const Value& self, Arguments& a) { return as_method(in, self, "upper", a); }
Value filter_lower(Interpreter& in, const Value& self, Arguments& a) { return as_method(in, self, "lower", a); }
Value filter_capitalize(Interpreter& in, const Value& self, Arguments& a) {
  return as_method(in, self, "capitalize", a);
}
Value filter_trim(Interpreter& in, const Value& self, Arguments& a) { return as_method(in, self, "strip", a); }

Value filter_center(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("center", a, {"width"});
  Arguments method;
  method.positional.push_back(Value::integer(b.integer(0, 80)));
  return as_method(in, self, "center", method);
}

Value filter_title(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("title", a, {});
  const Value input = soft_string(in.heap(), self);
  const std::string_view text = text_of(input);
  in.heap().spend_chars(8 * text.size());
  TextBuilder out(in.heap());
  const auto separates = [](uint32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const bool separator = separates(next_char(text, &at));
    const size_t second = at;
    for (size_t next = at; at < text.size(); at = next) {
      if (separates(next_char(text, &next)) != separator) break;
    }
    const ScopedCharge room(in.heap(), 3 * (at - begin));
    out.append(to_upper(text.substr(begin, second - begin)));
    out.append(to_lower(text.substr(second, at - second)));
  }
  return out.finish();
}

Value filter_string(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("string", a, {});
  return soft_string(in.heap(), self);
}

Value filter_replace(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("replace", a, {"old", "new", "count"}, 2);
  Heap& heap = in.heap();
  return replace_text(heap, to_string(heap, self), to_string(heap, b.at(0)), to_string(heap, b.at(1)),
                      b.given_not_none(2) ? b.integer(2, -1) : -1);
}

Value filter_format(Interpreter& in, const Value& self, Arguments& a) {
  Heap& heap = in.heap();
  if (!a.positional.empty() && !a.keyword.empty()) {
    throw template_error("can't handle positional and keyword arguments at the same time");
  }
  Value values;
  if (a.keyword.empty()) {
    auto* tuple = heap.make<List>();
    values = Value(Type::kTuple, tuple);
    for (Value& v : a.positional) tuple->push(v);
  } else {
    auto* dict = heap.make<Dict>();
    values = Value(Type::kDict, dict);
    for (auto& [name, v] : a.keyword) dict->set(make_string(heap, name), v);
  }
  return format_percent(heap, soft_string(heap, self), values);
}

Value filter_indent(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("indent", a, {"width", "first", "blank"});
  require_defined(self);
  if (!self.is_string()) throw type_error("indent needs a string, not " + std::string(type_name(self)));
  const std::string indent =
      b.given(0) && b.at(0).is_string()
          ? std::string(b.text(0))
          : std::string(static_cast<size_t>(std::clamp<int64_t>(b.integer(0, 4), 0, 10'000)), ' ');
  const bool first = b.flag(1, false), blank = b.flag(2, false);
  TextBuilder out(in.heap());
  bool at_first = true;
  const auto line = [&](std::string_view text) {
    if (!at_first) out.push_back('\n');
    if (at_first ? first : blank || !text.empty()) out.append(indent);
    out.append(text);
    at_first = false;
  };
  in.heap().spend_chars(text_of(self).size());
  bool ended = true;  // a line end at the very end begins an empty line
  for_each_line(text_of(self), [&](std::string_view text, std::string_view end) {
    line(text);
    ended = !end.empty();
  });
  if (ended) line("");
  return out.finish(self.as<String>().markup);
}

Value filter_truncate(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("truncate", a, {"length", "killwords", "end", "leeway"});
  const int64_t length = b.integer(0, 255), leeway = b.given_not_none(3) ? b.integer(3, 5) : 5;
  const std::string_view end = b.given(2) ? b.text(2) : "...";
  const int64_t end_chars = count_chars(end);
  if (length < end_chars) throw template_error("expected length >= " + std::to_string(end_chars));
  if (leeway < 0) throw template_error("expected leeway >= 0");
  const int64_t num_chars = length_of(self);
  if (num_chars <= length || num_chars - length <= leeway) return self;
  if (!self.is_string()) throw type_error("truncate needs a string, not " + std::string(type_name(self)));
  const std::string_view text = text_of(self);
  std::string_view kept = text.substr(0, char_offset(text, length - end_chars));
  if (!b.flag(1, false)) {
    if (const size_t space = kept.rfind(' '); space != kept.npos) kept = kept.substr(0, space);
  }
  TextBuilder out(in.heap());
  out.append(kept);
  out.append(end);
  return out.finish();
}

Value filter_wordcount(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("wordcount", a, {});
  const Value input = soft_string(in.heap(), self);
  in.heap().spend_chars(2 * text_of(input).size());
  int64_t count = 0;
  bool in_word = false;
  for (size_t at = 0; at < text_of(input).size();) {
    const uint32_t c = next_char(text_of(input), &at);
    const bool word = c == '_' || is_alnum(c);
    count += word && !in_word;
    in_word = word;
  }
  return Value::integer(count);
}

Value filter_escape(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("escape", a, {});
  return escape(in.heap(), self);
}

Value filter_forceescape(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("forceescape", a, {});
  return escape(in.heap(), to_string(in.heap(), self));
}

Value filter_safe(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("safe", a, {});
  const Value text = to_string(in.heap(), self);
  return make_string(in.heap(), std::string(text_of(text)), true);
}

Value filter_urlencode(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("urlencode", a, {});
  Heap& heap = in.heap();
  const auto quoted = [&](const Value& v, bool query) {
    const Value text = to_string(heap, v);
    heap.spend_chars(4 * text_of(text).size());
    const ScopedCharge room(heap, 3 * text_of(text).size());
    return make_string(heap, quote_url(text_of(text), query));
  };
  if (self.is_string() || !is_iterable(self)) return quoted(self, false);
  TextBuilder out(heap);
  const Value pairs =
      self.is(Type::kDict) ? Value(Type::kDictView, heap.make<DictView>(DictView::Kind::kItems, self)) : self;
  for_each(in, pairs, [&](const Value& pair) {
    Value holder;
    const auto& parts = collect(in, pair, &holder)->items;
    if (parts.size() != 2) throw value_error("urlencode needs pairs");
    if (out.size() > 0) out.push_back('&');
    out.append(text_of(quoted(parts[0], true)));
    out.push_back('=');
    out.append(text_of(quoted(parts[1], true)));
    return true;
  });
  return out.finish();
}

Value filter_filesizeformat(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("filesizeformat", a, {"binary"});
  const bool binary = b.flag(0, false);
  const auto parsed = self.is_string()   ? parse_float(text_of(self))
                      : self.is_number() ? std::optional<double>(self.to_double())
                                         : std::nullopt;
  if (!parsed) throw type_error("filesizeformat needs a number");
  const double bytes = *parsed, base = binary ? 1024 : 1000;
  if (bytes == 1) return make_string(in.heap(), "1 Byte");
  char text[400];
  if (bytes < base) {
    snprintf(text, sizeof text, "%.0f Bytes", std::trunc(bytes));
    return make_string(in.heap(), text);
  }
  double unit = base;
  const std::string_view letters = binary ? "KMGTPEZY" : "kMGTPEZY";
  for (size_t i = 0; i < letters.size(); ++i) {
    unit *= base;
    if (bytes >= unit && i + 1 < letters.size()) continue;
    snprintf(text, sizeof text, "%.1f %c%s", base * bytes / unit, letters[i], binary ? "iB" : "B");
    break;
  }
  return make_string(in.heap(), text);
}

// ---- numbers ------------------------------------------------------------------------------------

Value truncated(double f) {
  if (!(std::fabs(f) < 0x1p63)) throw template_error("cannot convert this float to a 64-bit integer");
  return Value::integer(static_cast<int64_t>(f));
}

Value filter_int(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("int", a, {"default", "base"});
  const Value otherwise = b.given(0) ? b.at(0) : Value::integer(0);
  require_defined(self);
  if (self.is_integral()) return Value::integer(self.as_int());
  if (self.is(Type::kFloat)) return std::isnan(self.as_float()) ? otherwise : truncated(self.as_float());
  if (!self.is_string()) return otherwise;
  const int64_t base = b.integer(1, 10);
  if (const auto i = parse_int(text_of(self), static_cast<int>(std::clamp<int64_t>(base, -1, 100))))
    return Value::integer(*i);
  const auto f = parse_float(text_of(self));
  return f && std::isfinite(*f) ? truncated(*f) : otherwise;
}

Value filter_float(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("float", a, {"default"});
  const Value otherwise = b.given(0) ? b.at(0) : Value::real(0);
  require_defined(self);
  if (self.is_number()) return Value::real(self.to_double());
  const auto f = self.is_string() ? parse_float(text_of(self)) : std::nullopt;
  return f ? Value::real(*f) : otherwise;
}

Value filter_abs(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("abs", a, {});
  if (self.is(Type::kFloat)) return Value::real(std::fabs(self.as_float()));
  if (!self.is_integral()) throw type_error("bad operand type for abs(): '" + std::string(type_name(self)) + "'");
  return self.as_int() < 0 ? negate(self) : plus(self);
}

// round(value, precision) of Python: to even at halves, exact in decimal.
Value round_common(const Value& v, int64_t precision) {
  if (v.is_integral()) {
    if (precision >= 0) return Value::integer(v.as_int());
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return truncated(std::nearbyint(static_cast<double>(v.as_int()) / unit) * unit);
  }
  const double f = v.as_float();
  if (!std::isfinite(f)) return v;
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return Value::real(std::isinf(unit) ? 0.0 : std::nearbyint(f / unit) * unit);
  }
  char text[800];
  snprintf(text, sizeof text, "%.*f", static_cast<int>(std::min<int64_t>(precision, 330)), f);
  return Value::real(std::strtod(text, nullptr));
}

Value filter_round(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("round", a, {"precision", "method"});
  const int64_t precision = b.integer(0, 0);
  const std::string_view method = b.given(1) ? b.text(1) : "common";
  require_defined(self);
  if (method != "common" && method != "ceil" && method != "floor")
    throw template_error("method must be common, ceil or floor");
  if (!self.is_number()) throw type_error("type " + std::string(type_name(self)) + " doesn't define __round__ method");
  if (method == "common") return round_common(self, precision);
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = self.to_double() * scale;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// ---- tojson -------------------------------------------------------------------------------------

Value filter_tojson(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("tojson", a, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = b.flag(0, false);
  style.indented = b.given_not_none(1);
  if (style.indented) {
    style.indent = b.at(1).is_string()
                       ? std::string(b.text(1))
                       : std::string(static_cast<size_t>(std::clamp<int64_t>(b.integer(1, 0), 0, 1000)), ' ');
    style.item_separator = ",";
  }
  if (b.given_not_none(2)) {
    const Value& pair = b.at(2);
    if (!pair.is_sequence() || length_of(pair) != 2 || !pair.as<List>().items[0].is_string() ||
        !pair.as<List>().items[1].is_string()) {
      throw value_error("tojson: separators must be two strings");
    }
    style.item_separator = text_of(pair.as<List>().items[0]);
    style.key_separator = text_of(pair.as<List>().items[1]);
  }
  style.sort_keys = b.flag(3, false);
  return write_json(in.heap(), self, style);
}

constexpr MethodEntry kTextFilters[] = {
    {"abs", filter_abs},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"filesizeformat", filter_filesizeformat},
    {"float", filter_float},
    {"forceescape", filter_forceescape},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"lower", filter_lower},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", filter_upper},
    {"urlencode", filter_urlencode},
    {"wordcount", filter_wordcount},
};

}  // namespace

NativeFunction find_text_filter(std::string_view name) {
  for (const MethodEntry& entry : kTextFilters) {
    if (name == entry.name) return entry.call;
  }
  return nullptr;
}

NativeFunction find_filter(std::string_view name) {
  for (const auto find : {find_text_filter, find_sequence_filter, find_lazy_filter}) {
    if (const NativeFunction found = find(name); found != nullptr) return found;
  }
  return nullptr;
}

}  // namespace llmb::jinja
