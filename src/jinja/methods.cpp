#include "jinja/methods.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "jinja/args.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"

namespace llmb::jinja {

namespace {

// ---- dict ---------------------------------------------------------------------------------------

Value dict_get(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("get", a, {"key", "default"}, 1);
  (void)hash_value(in.heap(), b.at(0));  // refuses what cannot be a key
  Value out;
  if (subscript(in.heap(), self, b.at(0), &out)) return out;
  return b.given(1) ? b.at(1) : Value::none();
}

template <DictView::Kind Kind>
Value dict_view(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("dict view", a, {});
  return Value(Type::kDictView, in.heap().make<DictView>(Kind, self));
}

Value dict_copy(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("copy", a, {});
  auto* dict = in.heap().make<Dict>();
  const Value result(Type::kDict, dict);
  for (const auto& [key, value] : self.as<Dict>().entries) dict->set(key, value);
  return result;
}

constexpr MethodEntry kDictMethods[] = {
    {"copy", dict_copy},
    {"get", dict_get},
    {"items", dict_view<DictView::Kind::kItems>},
    {"keys", dict_view<DictView::Kind::kKeys>},
    {"values", dict_view<DictView::Kind::kValues>},
};

// ---- list and tuple -----------------------------------------------------------------------------

Value list_count(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("count", a, {"value"}, 1);
  int64_t count = 0;
  for_each(in, self, [&](const Value& v) {
    count += equal(in.heap(), v, b.at(0));
    return true;
  });
  return Value::integer(count);
}

Value list_index(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("index", a, {"value", "start", "stop"}, 1);
  const int64_t n = length_of(self);
  const auto bound = [&](size_t i, int64_t otherwise) {
    const int64_t v = b.integer(i, otherwise);
    return v < 0 ? std::max<int64_t>(0, v + n) : v;
  };
  int64_t at = -1, i = 0;
  const int64_t start = bound(1, 0), stop = bound(2, n);
  for_each(in, self, [&](const Value& v) {
    if (i >= start && i < stop && equal(in.heap(), v, b.at(0))) at = i;
    return ++i < stop && at < 0;
  });
  if (at < 0) throw value_error(repr_of(in.heap(), b.at(0)) + " is not in list");
  return Value::integer(at);
}

Value list_copy(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("copy", a, {});
  Value result;
  collect(in, self, &result);
  return result;
}

constexpr MethodEntry kListMethods[] = {{"copy", list_copy}, {"count", list_count}, {"index", list_index}};
constexpr MethodEntry kTupleMethods[] = {{"count", list_count}, {"index", list_index}};

// ---- numbers ------------------------------------------------------------------------------------

Value float_is_integer(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("is_integer", a, {});
  return Value::boolean(std::isfinite(self.as_float()) && self.as_float() == std::floor(self.as_float()));
}

Value int_bit_length(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("bit_length", a, {});
  const auto v = static_cast<uint64_t>(self.as_int());
  return Value::integer(64 - std::countl_zero(self.as_int() < 0 ? -v : v));
}

constexpr MethodEntry kFloatMethods[] = {{"is_integer", float_is_integer}};
constexpr MethodEntry kIntMethods[] = {{"bit_length", int_bit_length}};

// ---- loop, cycler -------------------------------------------------------------------------------

Value loop_cycle(Interpreter&, const Value& self, Arguments& a) {
  if (!a.keyword.empty()) throw type_error("cycle() takes no keyword arguments");
  if (a.positional.empty()) throw type_error("no items for cycling given");
  return a.positional[static_cast<size_t>(self.as<Loop>().index0) % a.positional.size()];
}

Value loop_changed(Interpreter& in, const Value& self, Arguments& a) {
  if (!a.keyword.empty()) throw type_error("changed() takes no keyword arguments");
  auto* now = in.heap().make<List>();
  const Value current(Type::kTuple, now);
  for (Value& v : a.positional) now->push(v);
  auto& loop = self.as<Loop>();
  const bool same = !loop.last_changed.is_missing() && equal(in.heap(), loop.last_changed, current);
  if (!same) loop.last_changed = current;
  return Value::boolean(!same);
}

Value cycler_next(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("next", a, {});
  auto& cycler = self.as<Cycler>();
  const Value current = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return current;
}

Value cycler_reset(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("reset", a, {});
  self.as<Cycler>().position = 0;
  return Value::none();
}

constexpr MethodEntry kLoopMethods[] = {{"cycle", loop_cycle}, {"changed", loop_changed}};
constexpr MethodEntry kCyclerMethods[] = {{"next", cycler_next}, {"reset", cycler_reset}};

template <size_t N>
const MethodEntry* find_in(const MethodEntry (&table)[N], std::string_view name) {
  const auto* at =
      std::find_if(std::begin(table), std::end(table), [&](const MethodEntry& e) { return name == e.name; });
  return at == std::end(table) ? nullptr : at;
}

template <size_t N>
bool is_one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool find_loop_property(Interpreter& in, Loop& loop, std::string_view name, Value* out) {
  if (name == "index") *out = Value::integer(loop.index0 + 1);
  else if (name == "index0") *out = Value::integer(loop.index0);
  else if (name == "first") *out = Value::boolean(loop.index0 == 0);
  else if (name == "last") *out = Value::boolean(loop.peek(in).is_missing());
  else if (name == "length") *out = Value::integer(loop.length(in));
  else if (name == "revindex") *out = Value::integer(loop.length(in) - loop.index0);
  else if (name == "revindex0") *out = Value::integer(loop.length(in) - loop.index0 - 1);
  else if (name == "depth") *out = Value::integer(loop.depth0 + 1);
  else if (name == "depth0") *out = Value::integer(loop.depth0);
  else if (name == "previtem")
    *out = loop.index0 == 0 ? make_undefined(in.heap(), "there is no previous item") : loop.previous;
  else if (name == "nextitem")
    *out = loop.peek(in).is_missing() ? make_undefined(in.heap(), "there is no next item") : loop.peek(in);
  else return false;
  return true;
}

}  // namespace

const MethodEntry* find_method(const Value& v, std::string_view name) {
  switch (v.type()) {
    case Type::kString:
      return find_string_method(name);
    case Type::kDict:
      return find_in(kDictMethods, name);
    case Type::kList:
      return find_in(kListMethods, name);
    case Type::kTuple:
    case Type::kRange:
      return find_in(kTupleMethods, name);
    case Type::kBool:
    case Type::kInt:
      return find_in(kIntMethods, name);
    case Type::kFloat:
      return find_in(kFloatMethods, name);
    case Type::kLoop:
      return find_in(kLoopMethods, name);
    case Type::kCycler:
      return find_in(kCyclerMethods, name);
    default:
      return nullptr;
  }
}

bool changes_its_object(const Value& v, std::string_view name) {
  static constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                               "insert", "sort",  "extend", "remove"};
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (v.is(Type::kList)) return is_one_of(kList, name);
  return v.is(Type::kDict) && is_one_of(kDict, name);
}

bool find_property(Interpreter& in, const Value& v, std::string_view name, Value* out) {
  switch (v.type()) {
    case Type::kLoop:
      return find_loop_property(in, v.as<Loop>(), name, out);
    case Type::kRange: {
      const auto& r = v.as<Range>();
      if (name == "start") *out = Value::integer(r.start);
      else if (name == "stop") *out = Value::integer(r.stop);
      else if (name == "step") *out = Value::integer(r.step);
      else return false;
      return true;
    }
    case Type::kTuple: {
      const auto& list = v.as<List>();
      if (!list.grouped || (name != "grouper" && name != "list")) return false;
      *out = list.items[name == "list"];
      return true;
    }
    case Type::kBool:
    case Type::kInt:
      if (name == "real" || name == "numerator") *out = Value::integer(v.as_int());
      else if (name == "imag") *out = Value::integer(0);
      else if (name == "denominator") *out = Value::integer(1);
      else return false;
      return true;
    case Type::kCycler:
      if (name != "current") return false;
      *out = v.as<Cycler>().items[v.as<Cycler>().position];
      return true;
    case Type::kMacro:
      return find_macro_property(in, v, name, out);
    default:
      return false;
  }
}

}  // namespace llmb::jinja
