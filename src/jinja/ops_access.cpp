// str and repr, subscripts, slices and attributes.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/ops.h"
#include "jinja/text.h"

namespace llmb::jinja {

// ---- str and repr -------------------------------------------------------------------------------

namespace {

void append_items(TextBuilder& out, const std::vector<Value>& items, int depth) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(out, items[i], depth + 1);
  }
}

void append_dict(TextBuilder& out, const Dict& dict, int depth) {
  out.push_back('{');
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(out, dict.entries[i].first, depth + 1);
    out.append(": ");
    append_repr(out, dict.entries[i].second, depth + 1);
  }
  out.push_back('}');
}

void append_view(TextBuilder& out, const Value& v, int depth) {
  const auto& view = v.as<DictView>();
  out.append(type_name(v));
  out.append("([");
  bool first = true;
  for (const auto& [key, value] : view.dict.as<Dict>().entries) {
    if (!first) out.append(", ");
    first = false;
    if (view.kind == DictView::Kind::kItems) out.push_back('(');
    if (view.kind != DictView::Kind::kValues) append_repr(out, key, depth + 1);
    if (view.kind == DictView::Kind::kItems) out.append(", ");
    if (view.kind != DictView::Kind::kKeys) append_repr(out, value, depth + 1);
    if (view.kind == DictView::Kind::kItems) out.push_back(')');
  }
  out.append("])");
}

}  // namespace

void append_repr(TextBuilder& out, const Value& v, int depth) {
  Heap& heap = out.heap();
  heap.spend(1);
  if (depth > heap.limits().max_value_depth) throw budget_error("a value is nested too deeply");
  switch (v.type()) {
    case Type::kNone:
      return out.append("None");
    case Type::kBool:
      return out.append(v.as_bool() ? "True" : "False");
    case Type::kInt:
      return out.append(std::to_string(v.as_int()));
    case Type::kFloat:
      return out.append(repr_float(v.as_float()));
    case Type::kUndefined:
      return out.append("Undefined");
    case Type::kString: {
      heap.spend_chars(2 * text_of(v).size());
      const ScopedCharge room(heap, 10 * text_of(v).size());
      const std::string quoted = repr_text(text_of(v));
      return out.append(v.as<String>().markup ? "Markup(" + quoted + ")" : quoted);
    }
    case Type::kList:
      out.push_back('[');
      append_items(out, v.as<List>().items, depth);
      return out.push_back(']');
    case Type::kTuple:
      out.push_back('(');
      append_items(out, v.as<List>().items, depth);
      return out.append(v.as<List>().items.size() == 1 ? ",)" : ")");
    case Type::kDict:
      return append_dict(out, v.as<Dict>(), depth);
    case Type::kDictView:
      return append_view(out, v, depth);
    case Type::kRange: {
      const auto& r = v.as<Range>();
      out.append("range(" + std::to_string(r.start) + ", " + std::to_string(r.stop));
      return out.append(r.step == 1 ? ")" : ", " + std::to_string(r.step) + ")");
    }
    case Type::kNamespace:
      out.append("<Namespace ");
      append_repr(out, v.as<Namespace>().attributes, depth + 1);
      return out.push_back('>');
    case Type::kMacro:
      return out.append(macro_repr(v));
    case Type::kFunction:
      return out.append("<function " + std::string(v.as<Function>().code.name) + ">");
    default:
      return out.append("<" + std::string(type_name(v)) + " object>");
  }
}

void append_str(TextBuilder& out, const Value& v, int depth) {
  if (v.is_string()) return out.append(text_of(v));
  if (v.is_undefined()) return;
  append_repr(out, v, depth);
}

Value to_string(Heap& heap, const Value& v) {
  if (v.is_string() && !v.as<String>().markup) return v;
  TextBuilder out(heap);
  append_str(out, v);
  return out.finish();
}

Value soft_string(Heap& heap, const Value& v) { return v.is_string() ? v : to_string(heap, v); }

Value escape(Heap& heap, const Value& v) {
  if (v.is_string() && v.as<String>().markup) return v;
  const Value text = to_string(heap, v);
  heap.spend_chars(text_of(text).size());
  const ScopedCharge room(heap, 5 * text_of(text).size());
  return make_string(heap, escape_html(text_of(text)), true);
}

std::string repr_of(Heap& heap, const Value& v) {
  TextBuilder out(heap);
  append_repr(out, v);
  return std::string(out.view());
}

// ---- subscripts ---------------------------------------------------------------------------------

bool has_length(const Value& v) { return v.type() >= Type::kUndefined && v.type() <= Type::kRange; }

int64_t length_of(const Value& v) {
  if (v.is_undefined()) return 0;
  if (v.is_string()) return v.as<String>().num_chars;
  if (v.is_sequence()) return static_cast<int64_t>(v.as<List>().items.size());
  if (v.is(Type::kRange)) return v.as<Range>().length;
  if (!has_length(v)) throw type_error("object of type '" + std::string(type_name(v)) + "' has no len()");
  const Value& dict = v.is(Type::kDictView) ? v.as<DictView>().dict : v;
  return static_cast<int64_t>(dict.as<Dict>().entries.size());
}

int64_t to_index(const Value& v, const char* what) {
  if (v.is_integral()) return v.as_int();
  require_defined(v);
  throw type_error(std::string(what) + " must be an integer, not " + type_name(v));
}

namespace {

// Characters [first, last) of a string.
std::string_view chars_between(Heap& heap, const String& string, int64_t first, int64_t last) {
  if (string.ascii)
    return std::string_view(string.text).substr(static_cast<size_t>(first), static_cast<size_t>(last - first));
  heap.spend_chars(string.text.size());
  const size_t begin = char_offset(string.text, first);
  return std::string_view(string.text)
      .substr(begin, char_offset(std::string_view(string.text).substr(begin), last - first));
}

// Element i, which is there, of a string, list, tuple or range.
Value element_at(Heap& heap, const Value& v, int64_t i) {
  if (v.is_sequence()) return v.as<List>().items[static_cast<size_t>(i)];
  if (v.is(Type::kRange)) return Value::integer(v.as<Range>().start + i * v.as<Range>().step);
  const auto& string = v.as<String>();
  return make_string(heap, std::string(chars_between(heap, string, i, i + 1)));
}

}  // namespace

bool subscript(Heap& heap, const Value& v, const Value& key, Value* out) {
  require_defined(v);
  switch (v.type()) {
    case Type::kDict: {
      if (key.is(Type::kList) || key.is(Type::kDict)) return false;  // not hashable
      const Value* found = key.is_string() ? v.as<Dict>().find(text_of(key)) : v.as<Dict>().find(key);
      if (found != nullptr) *out = *found;
      return found != nullptr;
    }
    case Type::kString:
    case Type::kList:
    case Type::kTuple:
    case Type::kRange: {
      if (!key.is_integral()) return false;
      const int64_t length = length_of(v);
      const int64_t i = key.as_int() < 0 ? key.as_int() + length : key.as_int();
      if (i < 0 || i >= length) return false;
      *out = element_at(heap, v, i);
      return true;
    }
    default:
      return false;
  }
}

Value slice(Heap& heap, const Value& v, const Value& start, const Value& stop, const Value& step) {
  require_defined(v);
  if (!v.is_string() && !v.is_sequence() && !v.is(Type::kRange)) {
    throw type_error("'" + std::string(type_name(v)) + "' object is not subscriptable with a slice");
  }
  const auto bound = [](const Value& b, int64_t open) {
    return b.is_missing() || b.is_none() ? open : to_index(b, "slice indices");
  };
  const int64_t by = bound(step, 1);
  if (by == 0) throw value_error("slice step cannot be zero");
  const int64_t length = length_of(v);
  const auto clamp = [&](int64_t i) {
    if (i < 0) i = i < -length ? -1 : i + length;
    return by > 0 ? std::clamp<int64_t>(i, 0, length) : std::clamp<int64_t>(i, -1, length - 1);
  };
  const bool open_start = start.is_missing() || start.is_none(), open_stop = stop.is_missing() || stop.is_none();
  const int64_t first = open_start ? (by > 0 ? 0 : length - 1) : clamp(bound(start, 0));
  const int64_t last = open_stop ? (by > 0 ? length : -1) : clamp(bound(stop, 0));
  // |by| may be anything up to 2^63: no step is added that could overflow.
  int64_t count = 0;
  if (by > 0 && first < last) count = (last - first - 1) / by + 1;
  if (by < 0 && last < first) count = by == INT64_MIN ? 1 : (first - last - 1) / -by + 1;

  if (v.is(Type::kRange)) {
    const auto& r = v.as<Range>();
    const int64_t new_step = count > 1 ? r.step * by : r.step;
    return Value(Type::kRange, heap.make<Range>(r.start + first * r.step, r.start + last * r.step, new_step, count));
  }
  heap.spend(count);
  if (v.is_string()) {
    const auto& string = v.as<String>();
    if (by == 1) return make_string(heap, std::string(count == 0 ? "" : chars_between(heap, string, first, last)));
    heap.spend_chars(string.text.size());
    std::u32string chars;
    const ScopedCharge room(heap, string.ascii ? 0 : 4 * static_cast<size_t>(string.num_chars));
    for (size_t at = 0; !string.ascii && at < string.text.size();) chars.push_back(next_char(string.text, &at));
    std::string picked;
    for (int64_t k = 0, i = first; k < count; ++k, i += k < count ? by : 0) {
      if (string.ascii) picked.push_back(string.text[static_cast<size_t>(i)]);
      else append_utf8(&picked, chars[static_cast<size_t>(i)]);
    }
    return make_string(heap, std::move(picked));
  }
  auto* list = heap.make<List>();
  const Value result(v.type(), list);
  for (int64_t k = 0, i = first; k < count; ++k, i += k < count ? by : 0) {
    list->push(v.as<List>().items[static_cast<size_t>(i)]);
  }
  return result;
}

// ---- attributes ---------------------------------------------------------------------------------

std::string object_name(const Value& v) { return v.is_none() ? "None" : std::string(type_name(v)) + " object"; }

namespace {

// There is no attribute for templates: Python has none, or the sandbox keeps it from them.
Value undefined_attribute(Heap& heap, const Value& v, std::string_view name) {
  static constexpr std::string_view kChanging[] = {"append", "clear",   "extend",     "insert", "pop",   "popitem",
                                                   "remove", "reverse", "setdefault", "sort",   "update"};
  const bool changes = (v.is(Type::kList) || v.is(Type::kDict)) &&
                       std::find(std::begin(kChanging), std::end(kChanging), name) != std::end(kChanging);
  if (!changes && !name.starts_with("__"))
    return make_undefined(heap, "'" + object_name(v) + "' has no attribute " + repr_text(name));
  return make_undefined(heap,
                        "access to attribute " + repr_text(name) + " of '" + type_name(v) + "' object is unsafe.");
}

}  // namespace

bool find_attribute(Interpreter& interpreter, const Value& v, std::string_view name, Value* out) {
  require_defined(v);
  if (v.is(Type::kNamespace)) {
    const Value* found = v.as<Namespace>().attributes.as<Dict>().find(name);
    if (found != nullptr) *out = *found;
    return found != nullptr;
  }
  if (find_property(interpreter, v, name, out)) return true;
  const Builtin* method = find_method(v, name);
  if (method != nullptr) *out = Value(Type::kFunction, interpreter.heap().make<Function>(*method, v));
  return method != nullptr;
}

Value get_attribute(Interpreter& interpreter, const Value& v, std::string_view name) {
  Value out;
  if (find_attribute(interpreter, v, name, &out)) return out;
  const Value* found = v.is(Type::kDict) ? v.as<Dict>().find(name) : nullptr;
  return found != nullptr ? *found : undefined_attribute(interpreter.heap(), v, name);
}

Value get_item(Interpreter& interpreter, const Value& v, const Value& key) {
  Heap& heap = interpreter.heap();
  Value out;
  if (subscript(heap, v, key, &out)) return out;
  if (!key.is_string()) return make_undefined(heap, object_name(v) + " has no element " + repr_of(heap, key));
  return find_attribute(interpreter, v, text_of(key), &out) ? out : undefined_attribute(heap, v, text_of(key));
}

}  // namespace llmb::jinja
