// The methods of str.
#include <algorithm>

#include "jinja/args.h"
#include "jinja/format.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/methods.h"
#include "jinja/split.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

bool is_markup(const Value& v) { return v.is_string() && v.as<String>().markup; }

// A piece of self, safe text where self is.
Value piece(Interpreter& in, const Value& self, std::string_view text) {
  return make_string(in.heap(), std::string(text), is_markup(self));
}

void no_arguments(const char* name, const Arguments& a) { const BoundArguments bound(name, a, {}); }

// ---- case ---------------------------------------------------------------------------------------

template <std::string (*Map)(std::string_view)>
Value map_case(Interpreter& in, const Value& self, Arguments& a) {
  no_arguments("str method", a);
  in.heap().spend_chars((self.as<String>().ascii ? 1 : 12) * text_of(self).size());
  const ScopedCharge room(in.heap(), 3 * text_of(self).size());
  return make_string(in.heap(), Map(text_of(self)), is_markup(self));
}

// All characters satisfy the test, and there is one.
template <bool (*Test)(uint32_t)>
Value all_chars(Interpreter& in, const Value& self, Arguments& a) {
  no_arguments("str method", a);
  const std::string_view text = text_of(self);
  in.heap().spend_chars(2 * text.size());
  size_t at = 0;
  while (at < text.size()) {
    if (!Test(next_char(text, &at))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

Value str_isascii(Interpreter&, const Value& self, Arguments& a) {
  no_arguments("isascii", a);
  return Value::boolean(self.as<String>().ascii);
}

Value str_isprintable(Interpreter& in, const Value& self, Arguments& a) {
  return text_of(self).empty() ? Value::boolean(true) : all_chars<is_printable>(in, self, a);
}

Value str_isidentifier(Interpreter&, const Value& self, Arguments& a) {
  no_arguments("isidentifier", a);
  const std::string_view text = text_of(self);
  bool good = !text.empty();
  for (size_t at = 0; good && at < text.size();) {
    const bool first = at == 0;
    const uint32_t c = next_char(text, &at);
    good = c == '_' || (first ? is_alpha(c) : is_alnum(c));
  }
  return Value::boolean(good);
}

// Wanted: at least one cased character, and none for which Wrong holds.
template <bool (*Right)(uint32_t), bool (*Wrong)(uint32_t)>
Value cased(Interpreter& in, const Value& self, Arguments& a) {
  no_arguments("str method", a);
  const std::string_view text = text_of(self);
  in.heap().spend_chars(2 * text.size());
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_char(text, &at);
    if (Wrong(c) || is_title(c)) return Value::boolean(false);
    any = any || Right(c);
  }
  return Value::boolean(any);
}

Value str_istitle(Interpreter& in, const Value& self, Arguments& a) {
  no_arguments("istitle", a);
  const std::string_view text = text_of(self);
  in.heap().spend_chars(2 * text.size());
  bool any = false, in_word = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_char(text, &at);
    const bool upper = is_upper(c) || is_title(c), lower = is_lower(c);
    if ((upper && in_word) || (lower && !in_word)) return Value::boolean(false);
    in_word = upper || lower;
    any = any || in_word;
  }
  return Value::boolean(any);
}

// ---- strip, prefixes ----------------------------------------------------------------------------

template <Side S>
Value str_strip(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("strip", a, {"chars"});
  in.heap().spend_bytes(text_of(self).size());
  if (!b.given_not_none(0)) return piece(in, self, strip(text_of(self), S));
  const ScopedCharge room(in.heap(), 8 * b.text(0).size());
  in.heap().spend_chars(2 * text_of(self).size() + 8 * b.text(0).size());
  return piece(in, self, strip(text_of(self), S, b.text(0)));
}

// self[start:end] as str.find and its kin read their bounds. `offset`: where it begins in characters of self.
// False: the bounds leave nothing, not even an empty string.
bool window(Interpreter& in, const Value& self, const BoundArguments& b, size_t first, std::string_view* out,
            int64_t* offset) {
  const auto& string = self.as<String>();
  const int64_t n = string.num_chars;
  const auto bound = [&](size_t i, int64_t otherwise) {
    const int64_t v = b.given_not_none(i) ? b.integer(i, 0) : otherwise;
    return v < 0 ? std::max<int64_t>(0, v + n) : v;
  };
  const int64_t start = bound(first, 0), end = std::min(bound(first + 1, n), n);
  if (start > end) return false;
  in.heap().spend_chars(string.text.size());
  *offset = start;
  const auto at = [&](int64_t i) { return string.ascii ? static_cast<size_t>(i) : char_offset(string.text, i); };
  const size_t begin = at(start);
  *out = std::string_view(string.text).substr(begin, at(end) - begin);
  return true;
}

template <bool AtStart>
Value str_starts_or_ends(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b(AtStart ? "startswith" : "endswith", a, {"prefix", "start", "end"}, 1);
  std::string_view text;
  int64_t offset = 0;
  const bool valid = window(in, self, b, 1, &text, &offset);
  const auto matches = [&](const Value& v) {
    require_defined(v);
    if (!v.is_string()) {
      throw type_error(std::string(AtStart ? "startswith" : "endswith") +
                       " first arg must be str or a tuple of str, not " + type_name(v));
    }
    return valid && (AtStart ? text.starts_with(text_of(v)) : text.ends_with(text_of(v)));
  };
  if (!b.at(0).is(Type::kTuple)) return Value::boolean(matches(b.at(0)));
  const auto& options = b.at(0).as<List>().items;
  return Value::boolean(std::any_of(options.begin(), options.end(), matches));
}

Value str_removeprefix(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("removeprefix", a, {"prefix"}, 1);
  std::string_view text = text_of(self);
  if (text.starts_with(b.text(0))) text.remove_prefix(b.text(0).size());
  return piece(in, self, text);
}

Value str_removesuffix(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("removesuffix", a, {"suffix"}, 1);
  std::string_view text = text_of(self);
  if (text.ends_with(b.text(0))) text.remove_suffix(b.text(0).size());
  return piece(in, self, text);
}

// ---- find ---------------------------------------------------------------------------------------

template <bool Last, bool Throws>
Value str_find(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b(Throws ? "index" : "find", a, {"sub", "start", "end"}, 1);
  const std::string_view needle = b.text(0);
  std::string_view text;
  int64_t offset = 0;
  size_t at = std::string_view::npos;
  if (window(in, self, b, 1, &text, &offset)) {
    const ScopedCharge room(in.heap(), Last ? 4 * needle.size() : 0);
    at = Last ? find_last_text(text, needle) : find_text(text, needle);
  }
  if (at != std::string_view::npos) return Value::integer(offset + count_chars(text.substr(0, at)));
  if (Throws) throw value_error("substring not found");
  return Value::integer(-1);
}

Value str_count(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("count", a, {"sub", "start", "end"}, 1);
  const std::string_view needle = b.text(0);
  std::string_view text;
  int64_t offset = 0, count = 0;
  if (!window(in, self, b, 1, &text, &offset)) return Value::integer(0);
  if (needle.empty()) return Value::integer(count_chars(text) + 1);
  for (size_t at = 0; (at = find_text(text, needle, at)) != std::string_view::npos; at += needle.size()) ++count;
  return Value::integer(count);
}

// ---- replace, split, join -----------------------------------------------------------------------

Value str_replace(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("replace", a, {"old", "new", "count"}, 2);
  return replace_text(in.heap(), self, b.at(0), b.at(1), b.integer(2, -1));
}

template <bool FromRight>
Value str_split(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("split", a, {"sep", "maxsplit"});
  const std::string_view text = text_of(self);
  in.heap().spend_chars(text.size());
  int64_t left = b.integer(1, -1);
  if (left < 0) left = INT64_MAX;
  std::vector<std::string_view> parts;
  int64_t charged = 0;
  const auto add = [&](std::string_view part) {
    in.heap().charge(2 * sizeof(part));
    charged += 2 * sizeof(part);
    parts.push_back(part);
  };
  if (b.given_not_none(0)) {
    const std::string_view separator = b.text(0);
    if (separator.empty()) throw value_error("empty separator");
    split_on(text, separator, left, FromRight, add);
  } else {
    split_on_space(text, left, FromRight, add);
  }
  auto* list = in.heap().make<List>();
  const Value result = make_list(list);
  if (FromRight) std::reverse(parts.begin(), parts.end());
  for (const std::string_view part : parts) list->push(piece(in, self, part));
  in.heap().discharge(charged);
  return result;
}

Value str_splitlines(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("splitlines", a, {"keepends"});
  auto* list = in.heap().make<List>();
  const Value result = make_list(list);
  const bool keep = b.flag(0, false);
  in.heap().spend_chars(text_of(self).size());
  for_each_line(text_of(self), [&](std::string_view line, std::string_view end) {
    list->push(piece(in, self, keep ? std::string_view(line.data(), line.size() + end.size()) : line));
  });
  return result;
}

template <bool FromRight>
Value str_partition(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("partition", a, {"sep"}, 1);
  const std::string_view text = text_of(self), separator = b.text(0);
  if (separator.empty()) throw value_error("empty separator");
  in.heap().spend_chars(text.size());
  const ScopedCharge room(in.heap(), FromRight ? 4 * separator.size() : 0);
  const size_t at = FromRight ? find_last_text(text, separator) : find_text(text, separator);
  auto* parts = in.heap().make<List>();
  const Value result(Type::kTuple, parts);
  const bool found = at != std::string_view::npos;
  const std::string_view before = found ? text.substr(0, at) : FromRight ? "" : text;
  const std::string_view after = found ? text.substr(at + separator.size()) : FromRight ? text : "";
  for (const std::string_view part : {before, found ? separator : "", after}) parts->push(piece(in, self, part));
  return result;
}

Value str_join(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("join", a, {"iterable"}, 1);
  TextBuilder out(in.heap());
  const bool safe = is_markup(self);
  int64_t i = 0;
  for_each(in, b.at(0), [&](const Value& v) {
    if (!safe && !v.is_string()) {
      throw type_error("sequence item " + std::to_string(i) + ": expected str instance, " + type_name(v) + " found");
    }
    if (i++ > 0) out.append(text_of(self));
    out.append(text_of(safe ? escape(in.heap(), v) : v));
    return true;
  });
  return out.finish(safe);
}

// ---- padding ------------------------------------------------------------------------------------

enum class Align { kLeft, kRight, kCenter };

template <Align A>
Value str_pad(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("justify", a, {"width", "fillchar"}, 1);
  const std::string_view fill = b.given(1) ? b.text(1) : " ";
  if (count_chars(fill) != 1) throw type_error("the fill character must be exactly one character long");
  const int64_t width = b.integer(0, 0), missing = std::max<int64_t>(0, width - self.as<String>().num_chars);
  int64_t left = A == Align::kRight ? missing : 0;
  if (A == Align::kCenter) left = missing / 2 + (missing & width & 1);
  TextBuilder out(in.heap());
  const auto pad = [&](int64_t count) {
    if (count > in.heap().limits().max_memory_bytes) throw budget_error("a padded string is too long");
    for (int64_t i = 0; i < count; ++i) out.append(fill);
  };
  pad(left);
  out.append(text_of(self));
  pad(missing - left);
  return out.finish(is_markup(self));
}

Value str_zfill(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("zfill", a, {"width"}, 1);
  std::string_view text = text_of(self);
  const int64_t missing = b.integer(0, 0) - self.as<String>().num_chars;
  TextBuilder out(in.heap());
  if (!text.empty() && (text[0] == '-' || text[0] == '+') && missing > 0) {
    out.push_back(text[0]);
    text.remove_prefix(1);
  }
  if (missing > 0) out.append(static_cast<size_t>(missing), '0');
  out.append(text);
  return out.finish(is_markup(self));
}

Value str_expandtabs(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("expandtabs", a, {"tabsize"});
  const int64_t size = b.integer(0, 8);
  in.heap().spend_chars(text_of(self).size());
  TextBuilder out(in.heap());
  int64_t column = 0;
  for (const char c : text_of(self)) {
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
      continue;
    }
    if (c == '\n' || c == '\r') column = 0;
    else if ((static_cast<uint8_t>(c) & 0xC0) != 0x80) ++column;
    out.push_back(c);
  }
  return out.finish(is_markup(self));
}

Value str_format(Interpreter& in, const Value& self, Arguments& a) { return format_braces(in, self, a); }

Value str_format_map(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("format_map", a, {"mapping"}, 1);
  Arguments named;
  if (!b.at(0).is(Type::kDict)) throw type_error("format_map() needs a dict");
  for (const auto& [key, value] : b.at(0).as<Dict>().entries) {
    if (key.is_string()) named.keyword.emplace_back(std::string(text_of(key)), value);
  }
  return format_braces(in, self, named);
}

constexpr MethodEntry kStringMethods[] = {
    {"capitalize", map_case<capitalize>},
    {"casefold", map_case<to_casefold>},
    {"center", str_pad<Align::kCenter>},
    {"count", str_count},
    {"endswith", str_starts_or_ends<false>},
    {"expandtabs", str_expandtabs},
    {"find", str_find<false, false>},
    {"format", str_format},
    {"format_map", str_format_map},
    {"index", str_find<false, true>},
    {"isalnum", all_chars<is_alnum>},
    {"isalpha", all_chars<is_alpha>},
    {"isascii", str_isascii},
    {"isdecimal", all_chars<is_decimal>},
    {"isdigit", all_chars<is_digit>},
    {"isidentifier", str_isidentifier},
    {"islower", cased<is_lower, is_upper>},
    {"isnumeric", all_chars<is_numeric>},
    {"isprintable", str_isprintable},
    {"isspace", all_chars<is_space>},
    {"istitle", str_istitle},
    {"isupper", cased<is_upper, is_lower>},
    {"join", str_join},
    {"ljust", str_pad<Align::kLeft>},
    {"lower", map_case<to_lower>},
    {"lstrip", str_strip<Side::kLeft>},
    {"partition", str_partition<false>},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"replace", str_replace},
    {"rfind", str_find<true, false>},
    {"rindex", str_find<true, true>},
    {"rjust", str_pad<Align::kRight>},
    {"rpartition", str_partition<true>},
    {"rsplit", str_split<true>},
    {"rstrip", str_strip<Side::kRight>},
    {"split", str_split<false>},
    {"splitlines", str_splitlines},
    {"startswith", str_starts_or_ends<true>},
    {"strip", str_strip<Side::kBoth>},
    {"swapcase", map_case<swap_case>},
    {"title", map_case<to_title>},
    {"upper", map_case<to_upper>},
    {"zfill", str_zfill},
};

}  // namespace

const MethodEntry* find_string_method(std::string_view name) {
  for (const MethodEntry& entry : kStringMethods) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

}  // namespace llmb::jinja
