#include "jinja/format.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "jinja/args.h"
#include "jinja/format_spec.h"
#include "jinja/interpreter.h"
#include "jinja/ops.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

// ---- "..." % values -----------------------------------------------------------------------------

std::string percent_field(Heap& heap, const Value& v, FormatSpec spec, bool markup) {
  switch (spec.type) {
    case 's':
      return format_string(text_of(markup ? escape(heap, v) : to_string(heap, v)), spec);
    case 'r':
    case 'a':
      return format_string(repr_of(heap, v), spec);
    case 'c':
      if (v.is_string() && v.as<String>().num_chars == 1) return format_string(text_of(v), spec);
      if (!v.is_integral()) throw type_error("%c requires int or char");
      return format_string(char_of(v.as_int()), spec);
    default:
      break;
  }
  if (!v.is_number()) {
    require_defined(v);
    throw type_error(std::string("%") + spec.type + " format: a real number is required, not " + type_name(v));
  }
  if (spec.align == 0) spec.align = '>';
  if (std::string_view("eEfFgG").find(spec.type) != std::string_view::npos) return format_float(v.to_double(), spec);
  int64_t number = v.as_int();
  if (v.is(Type::kFloat)) {
    if (std::string_view("diu").find(spec.type) == std::string_view::npos) {
      throw type_error(std::string("%") + spec.type + " format: an integer is required, not float");
    }
    if (!(std::fabs(v.as_float()) < 0x1p63)) throw value_error("cannot convert float to a 64-bit integer");
    number = static_cast<int64_t>(v.as_float());
  }
  if (spec.precision > 0) {  // at least so many digits
    std::string body = digits_of(number < 0 ? -static_cast<uint64_t>(number) : static_cast<uint64_t>(number),
                                 spec.type == 'o'            ? 8
                                 : (spec.type | 0x20) == 'x' ? 16
                                                             : 10,
                                 spec.type == 'X');
    if (static_cast<int64_t>(body.size()) < spec.precision) {
      body.insert(0, static_cast<size_t>(spec.precision) - body.size(), '0');
    }
    return pad_number(sign_of(number < 0, spec), body, spec);
  }
  return format_int(number, spec);
}

// Reads one conversion after its '%', up to its type.
FormatSpec parse_percent(std::string_view text, size_t* at, const std::function<int64_t()>& next_star) {
  FormatSpec spec;
  bool zero = false;
  for (; *at < text.size(); ++*at) {
    const char c = text[*at];
    if (c == '-') spec.align = '<';
    else if (c == '+') spec.sign = '+';
    else if (c == ' ') spec.sign = spec.sign == '+' ? '+' : ' ';
    else if (c == '#') spec.alternate = true;
    else if (c == '0') zero = true;
    else break;
  }
  const auto count = [&] {
    if (*at < text.size() && text[*at] == '*') {
      ++*at;
      return next_star();
    }
    return read_count(text, at);
  };
  spec.width = count();
  if (spec.width < 0) {
    spec.width = -spec.width;
    spec.align = '<';
  }
  if (*at < text.size() && text[*at] == '.') {
    ++*at;
    spec.precision = std::max<int64_t>(0, count());
  }
  while (*at < text.size() && (text[*at] == 'l' || text[*at] == 'h' || text[*at] == 'L')) ++*at;
  if (*at >= text.size()) throw value_error("incomplete format");
  spec.type = text[(*at)++];
  if (std::string_view("diuoxXeEfFgGcrsa%").find(spec.type) == std::string_view::npos) {
    size_t begin = *at - 1;
    std::string shown;
    append_utf8(&shown, next_char(text, &begin));
    throw value_error("unsupported format character " + repr_text(shown));
  }
  const bool number = std::string_view("crsa").find(spec.type) == std::string_view::npos;
  if (zero && number && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  } else if (!number && spec.align == 0) {
    spec.align = '>';
  }
  return spec;
}

}  // namespace

Value format_percent(Heap& heap, const Value& pattern, const Value& values) {
  const bool markup = pattern.as<String>().markup;
  const std::string_view text = text_of(pattern);
  size_t used = 0;
  bool named = false;
  const bool many = values.is(Type::kTuple);
  const auto next_value = [&]() -> Value {
    if (many ? used >= values.as<List>().items.size() : used > 0)
      throw type_error("not enough arguments for format string");
    ++used;
    return many ? values.as<List>().items[used - 1] : values;
  };
  const std::function<int64_t()> next_star = [&] {
    const int64_t n = to_index(next_value(), "* of a format");
    if (n > kMaxWidth || n < -kMaxWidth) throw budget_error("a format field is too wide");
    return n;
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
      named = true;
      at = end + 1;
    }
    const FormatSpec spec = parse_percent(text, &at, next_star);
    if (spec.type == '%') {
      out.push_back('%');
      continue;
    }
    if (value.is_missing()) value = next_value();
    out.append(percent_field(heap, value, spec, markup));
  }
  const bool has_subscripts =
      values.is(Type::kDict) || values.is(Type::kList) || values.is(Type::kRange) || values.is_undefined();
  const bool all_used = many ? used == values.as<List>().items.size() : used > 0 || has_subscripts;
  if (!all_used && !named) throw type_error("not all arguments converted during string formatting");
  return out.finish(markup);
}

// ---- "...".format(...) --------------------------------------------------------------------------

namespace {

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& in, const Arguments& arguments, bool markup)
      : in_(in), arguments_(arguments), markup_(markup) {}

  // depth 2: a pattern; depth 1: the spec of a field, which may hold fields again.
  void expand(std::string_view text, int depth, TextBuilder& out) {
    if (depth < 1) throw value_error("Max string recursion exceeded");
    for (size_t at = 0; at < text.size();) {
      const char c = text[at];
      if (c != '{' && c != '}') {
        const size_t next = std::min(text.find_first_of("{}", at), text.size());
        out.append(text.substr(at, next - at));
        at = next;
        continue;
      }
      if (at + 1 < text.size() && text[at + 1] == c) {
        out.push_back(c);
        at += 2;
        continue;
      }
      if (c == '}') throw value_error("Single '}' encountered in format string");
      at = field(text, at + 1, depth, out);
    }
  }

 private:
  // The field that begins after its '{'. Returns where the text goes on.
  size_t field(std::string_view text, size_t begin, int depth, TextBuilder& out) {
    size_t end = begin;
    int open = 1, brackets = 0;
    size_t name_end = text.npos;  // the first '!' or ':' outside brackets
    for (; end < text.size(); ++end) {
      const char c = text[end];
      if (c == '[' && name_end == text.npos) ++brackets;
      if (c == ']' && brackets > 0) --brackets;
      if (brackets > 0) continue;
      if (c == '{') ++open;
      if (c == '}' && --open == 0) break;
      if ((c == '!' || c == ':') && name_end == text.npos) name_end = end;
    }
    if (end >= text.size()) throw value_error("expected '}' before end of string");
    const std::string_view body = text.substr(begin, end - begin);
    const size_t split = name_end == text.npos ? body.size() : name_end - begin;
    std::string_view rest = body.substr(split);
    Value v = lookup(body.substr(0, split));
    if (rest.starts_with("!")) {
      if (rest.size() < 2) throw value_error("end of string while looking for conversion specifier");
      v = convert(v, rest[1]);
      rest.remove_prefix(2);
      if (!rest.empty() && rest[0] != ':') throw value_error("expected ':' after conversion specifier");
    }
    TextBuilder spec(in_.heap());
    if (!rest.empty()) expand(rest.substr(1), depth - 1, spec);
    if (markup_ && !(v.is_string() && v.as<String>().markup)) {
      out.append(text_of(escape(in_.heap(), make_string(in_.heap(), format_value(in_.heap(), v, spec.view())))));
    } else {
      out.append(format_value(in_.heap(), v, spec.view()));
    }
    return end + 1;
  }

  Value convert(const Value& v, char how) {
    if (how == 's') return to_string(in_.heap(), v);
    if (how == 'r' || how == 'a') return make_string(in_.heap(), repr_of(in_.heap(), v));
    throw value_error("Unknown conversion specifier; !s, !r and !a are known");
  }

  Value lookup(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value v = first(name.substr(0, end));
    for (size_t at = end; at < name.size();) {
      if (name[at] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", at + 1), name.size());
        v = get_attribute(in_, v, name.substr(at + 1, stop - at - 1));
        at = stop;
      } else if (name[at] == '[') {
        const size_t stop = name.find(']', at);
        if (stop == name.npos) throw value_error("Missing ']' in format string");
        const std::string_view key = name.substr(at + 1, stop - at - 1);
        const auto number = all_digits(key) ? parse_int(key, 10) : std::nullopt;
        v = get_item(in_, v, number ? Value::integer(*number) : make_string(in_.heap(), std::string(key)));
        at = stop + 1;
      } else {
        throw value_error("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return v;
  }

  static bool all_digits(std::string_view s) { return !s.empty() && s.find_first_not_of("0123456789") == s.npos; }

  Value first(std::string_view name) {
    if (name.empty() || all_digits(name)) {
      if (name.empty() ? numbered_ : next_ > 0) {
        throw value_error("cannot switch between automatic field numbering and manual field specification");
      }
      numbered_ = numbered_ || !name.empty();
      const auto i = name.empty() ? static_cast<int64_t>(next_++) : parse_int(name, 10).value_or(INT64_MAX);
      if (i >= static_cast<int64_t>(arguments_.positional.size())) {
        throw lookup_error("Replacement index " + std::to_string(i) + " out of range for positional args tuple");
      }
      return arguments_.positional[static_cast<size_t>(i)];
    }
    for (const auto& [keyword, value] : arguments_.keyword) {
      if (keyword == name) return value;
    }
    throw lookup_error(repr_text(name));
  }

  Interpreter& in_;
  const Arguments& arguments_;
  bool markup_;
  bool numbered_ = false;
  size_t next_ = 0;
};

}  // namespace

Value format_braces(Interpreter& in, const Value& pattern, const Arguments& arguments) {
  const bool markup = pattern.as<String>().markup;
  TextBuilder out(in.heap());
  BraceFormatter(in, arguments, markup).expand(text_of(pattern), 2, out);
  return out.finish(markup);
}

}  // namespace llmb::jinja
