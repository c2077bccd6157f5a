// Methods and properties of the built-in types, as the immutable sandbox shows them to templates: those that Jinja's
// documentation names and those that published chat templates use.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/format.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/text.h"
#include "text/letter_case.h"

namespace llmb::jinja {

// ---- str ----------------------------------------------------------------------------------------

Value replace_text(Heap& heap, const Value& text, const Value& old, const Value& replacement, int64_t count) {
  for (const Value* v : {&old, &replacement}) {
    require_defined(*v);
    if (!v->is_string()) throw type_error("replace() argument must be str, not " + std::string(type_name(*v)));
  }
  const std::string_view all = text_of(text), from = text_of(old), to = text_of(replacement);
  if (count < 0) count = INT64_MAX;
  heap.spend_chars(all.size());
  TextBuilder out(heap);
  size_t done = 0;
  for (; count > 0; --count) {
    size_t at = from.empty() ? done : find_text(all, from, done);
    if (at == std::string_view::npos) break;
    out.append(all.substr(done, at - done));
    out.append(to);
    done = at + from.size();
    if (!from.empty()) continue;
    if (done == all.size()) break;  // "": before every character, and at the end
    next_char(all, &at);
    out.append(all.substr(done, at - done));
    done = at;
  }
  out.append(all.substr(done));
  return out.finish();
}

namespace {

// A string made of self is as safe as self.
Value piece(Call& c, std::string_view text) {
  return make_string(c.heap, std::string(text), c.self.as<String>().markup);
}

template <std::string (*Map)(std::string_view)>
Value map_case(Call& c) {
  c.heap.spend_chars((c.self.as<String>().ascii ? 1 : 12) * text_of(c.self).size());
  const ScopedCharge room(c.heap, 3 * text_of(c.self).size());
  return piece(c, Map(text_of(c.self)));
}

template <Side S>
Value str_strip(Call& c) {
  c.heap.spend_bytes(text_of(c.self).size());
  if (!c.given_not_none(0)) return piece(c, strip(text_of(c.self), S));
  const ScopedCharge room(c.heap, 8 * c.text(0).size());
  c.heap.spend_chars(2 * text_of(c.self).size() + 8 * c.text(0).size());
  return piece(c, strip(text_of(c.self), S, c.text(0)));
}

// The characters [start, end) of self, by arguments 1 and 2. False: they leave nothing, not even an empty string.
bool window(Call& c, std::string_view* out) {
  const auto& string = c.self.as<String>();
  const auto bound = [&](size_t i, int64_t otherwise) {
    const int64_t v = c.given_not_none(i) ? c.integer(i) : otherwise;
    return v < 0 ? std::max<int64_t>(0, v + string.num_chars) : v;
  };
  const int64_t start = bound(1, 0), end = std::min(bound(2, string.num_chars), string.num_chars);
  if (start > end) return false;
  c.heap.spend_chars(string.text.size());
  const size_t begin = char_offset(string.text, start);
  *out = std::string_view(string.text).substr(begin, char_offset(string.text, end) - begin);
  return true;
}

template <bool AtStart>
Value str_starts_or_ends(Call& c) {
  std::string_view text;
  const bool is_valid = window(c, &text);
  const auto matches = [&](const Value& v) {
    require_defined(v);
    if (!v.is_string()) {
      throw type_error(std::string(AtStart ? "startswith" : "endswith") +
                       " first arg must be str or a tuple of str, not " + type_name(v));
    }
    return is_valid && (AtStart ? text.starts_with(text_of(v)) : text.ends_with(text_of(v)));
  };
  if (!c.at(0).is(Type::kTuple)) return Value::boolean(matches(c.at(0)));
  const auto& options = c.at(0).as<List>().items;
  return Value::boolean(std::any_of(options.begin(), options.end(), matches));
}

Value str_split(Call& c) {
  std::string_view text = text_of(c.self);
  c.heap.spend_chars(text.size());
  int64_t left = c.integer(1, -1);
  if (left < 0) left = INT64_MAX;
  auto* list = c.heap.make<List>();
  const Value result = make_list(list);
  if (c.given_not_none(0)) {
    const std::string_view separator = c.text(0);
    if (separator.empty()) throw value_error("empty separator");
    for (size_t at; left-- > 0 && (at = find_text(text, separator)) != text.npos;) {
      list->push(piece(c, text.substr(0, at)));
      text.remove_prefix(at + separator.size());
    }
    list->push(piece(c, text));
    return result;
  }
  for (text = strip(text, Side::kLeft); !text.empty(); text = strip(text, Side::kLeft)) {
    size_t end = left-- > 0 ? 0 : text.size();
    for (size_t next = end; end < text.size(); end = next)
      if (is_space(next_char(text, &next))) break;
    list->push(piece(c, text.substr(0, end)));
    text.remove_prefix(end);
  }
  return result;
}

Value str_join(Call& c) {
  TextBuilder out(c.heap);
  int64_t i = 0;
  for_each(c.in, c.at(0), [&](const Value& v) {
    if (!v.is_string())
      throw type_error("sequence item " + std::to_string(i) + ": expected str instance, " + type_name(v) + " found");
    if (i++ > 0) out.append(text_of(c.self));
    out.append(text_of(v));
    return true;
  });
  return out.finish();
}

constexpr Builtin kStringMethods[] = {
    {"capitalize", map_case<capitalize>, ""},
    {"endswith", str_starts_or_ends<false>, "suffix! start end"},
    {"format", [](Call& c) { return format_braces(c.in, c.self, c.all); }, nullptr},
    {"join", str_join, "iterable!"},
    {"lower", map_case<to_lower>, ""},
    {"lstrip", str_strip<Side::kLeft>, "chars"},
    {"replace", [](Call& c) { return replace_text(c.heap, c.self, c.at(0), c.at(1), c.integer(2, -1)); },
     "old! new! count"},
    {"rstrip", str_strip<Side::kRight>, "chars"},
    {"split", str_split, "sep maxsplit"},
    {"startswith", str_starts_or_ends<true>, "prefix! start end"},
    {"strip", str_strip<Side::kBoth>, "chars"},
    {"title", map_case<to_title>, ""},
    {"upper", map_case<to_upper>, ""},
};

// ---- dict ---------------------------------------------------------------------------------------

Value dict_get(Call& c) {
  (void)hash_value(c.heap, c.at(0));  // refuses what cannot be a key
  Value out;
  if (subscript(c.heap, c.self, c.at(0), &out)) return out;
  return c.given(1) ? c.at(1) : Value::none();
}

template <DictView::Kind Kind>
Value dict_view(Call& c) {
  return Value(Type::kDictView, c.heap.make<DictView>(Kind, c.self));
}

constexpr Builtin kDictMethods[] = {
    {"get", dict_get, "key! default"},
    {"items", dict_view<DictView::Kind::kItems>, ""},
    {"keys", dict_view<DictView::Kind::kKeys>, ""},
    {"values", dict_view<DictView::Kind::kValues>, ""},
};

// ---- loop, cycler -------------------------------------------------------------------------------

Value loop_cycle(Call& c) {
  const auto& items = c.all.positional;
  if (!c.all.keyword.empty()) throw type_error("cycle() takes no keyword arguments");
  if (items.empty()) throw type_error("no items for cycling given");
  return items[static_cast<size_t>(c.self.as<Loop>().index0) % items.size()];
}

Value loop_changed(Call& c) {
  if (!c.all.keyword.empty()) throw type_error("changed() takes no keyword arguments");
  auto* now = c.heap.make<List>();
  const Value current(Type::kTuple, now);
  for (const Value& v : c.all.positional) now->push(v);
  auto& loop = c.self.as<Loop>();
  const bool is_same = !loop.last_changed.is_missing() && equal(c.heap, loop.last_changed, current);
  if (!is_same) loop.last_changed = current;
  return Value::boolean(!is_same);
}

Value cycler_next(Call& c) {
  auto& cycler = c.self.as<Cycler>();
  const Value current = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return current;
}

Value cycler_reset(Call& c) {
  c.self.as<Cycler>().position = 0;
  return Value::none();
}

constexpr Builtin kLoopMethods[] = {{"cycle", loop_cycle, nullptr}, {"changed", loop_changed, nullptr}};
constexpr Builtin kCyclerMethods[] = {{"next", cycler_next, ""}, {"reset", cycler_reset, ""}};

struct LoopProperty {
  std::string_view name;
  Value (*get)(Interpreter& in, Loop& loop);
};

constexpr LoopProperty kLoopProperties[] = {
    {"index", [](Interpreter&, Loop& loop) { return Value::integer(loop.index0 + 1); }},
    {"index0", [](Interpreter&, Loop& loop) { return Value::integer(loop.index0); }},
    {"first", [](Interpreter&, Loop& loop) { return Value::boolean(loop.index0 == 0); }},
    {"last", [](Interpreter& in, Loop& loop) { return Value::boolean(loop.peek(in).is_missing()); }},
    {"length", [](Interpreter& in, Loop& loop) { return Value::integer(loop.length(in)); }},
    {"revindex", [](Interpreter& in, Loop& loop) { return Value::integer(loop.length(in) - loop.index0); }},
    {"revindex0", [](Interpreter& in, Loop& loop) { return Value::integer(loop.length(in) - loop.index0 - 1); }},
    {"depth", [](Interpreter&, Loop& loop) { return Value::integer(loop.depth0 + 1); }},
    {"depth0", [](Interpreter&, Loop& loop) { return Value::integer(loop.depth0); }},
    {"previtem",
     [](Interpreter& in, Loop& loop) {
       return loop.index0 == 0 ? make_undefined(in.heap(), "there is no previous item") : loop.previous;
     }},
    {"nextitem",
     [](Interpreter& in, Loop& loop) {
       return loop.peek(in).is_missing() ? make_undefined(in.heap(), "there is no next item") : loop.peek(in);
     }},
};

}  // namespace

const Builtin* find_method(const Value& v, std::string_view name) {
  switch (v.type()) {
    case Type::kString:
      return find_in(kStringMethods, name);
    case Type::kDict:
      return find_in(kDictMethods, name);
    case Type::kLoop:
      return find_in(kLoopMethods, name);
    case Type::kCycler:
      return find_in(kCyclerMethods, name);
    default:
      return nullptr;
  }
}

bool find_property(Interpreter& in, const Value& v, std::string_view name, Value* out) {
  if (v.is(Type::kMacro)) return find_macro_property(in, v, name, out);
  if (v.is(Type::kLoop)) {
    for (const LoopProperty& property : kLoopProperties)
      if (name == property.name) return *out = property.get(in, v.as<Loop>()), true;
  } else if (v.is(Type::kTuple) && v.as<List>().grouped && (name == "grouper" || name == "list")) {
    return *out = v.as<List>().items[name == "list"], true;
  } else if (v.is(Type::kCycler) && name == "current") {
    return *out = v.as<Cycler>().items[v.as<Cycler>().position], true;
  }
  return false;
}

}  // namespace llmb::jinja
