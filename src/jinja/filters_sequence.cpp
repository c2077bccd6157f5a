// Filters on sequences and mappings.
#include <algorithm>
#include <numeric>

#include "jinja/attribute_path.h"
#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

// ---- order --------------------------------------------------------------------------------------

// For filters whose arguments are case_sensitive and attribute.
AttributePath key_path(Call& c) {
  AttributePath path(c.heap, c.get(1));
  path.folds_case = !c.flag(0);
  return path;
}

// The order of elements by their keys, stable.
std::vector<size_t> order_by(Heap& heap, const std::vector<Value>& keys, bool is_descending) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    heap.spend(1);
    return compare_order(heap, CompareOp::kLt, keys[is_descending ? b : a], keys[is_descending ? a : b]);
  });
  return order;
}

// The elements in the order of key(element).
template <typename Key>
Value sorted(Call& c, const Value& source, bool is_descending, const Key& key) {
  const Value all = to_list(c.in, source);
  const auto& items = all.as<List>().items;
  auto *keys = c.heap.make<List>(), *list = c.heap.make<List>();
  const Value holder = make_list(keys), result = make_list(list);
  for (const Value& item : items) keys->push(key(item));
  for (const size_t i : order_by(c.heap, keys->items, is_descending)) list->push(items[i]);
  return result;
}

Value filter_sort(Call& c) {
  std::vector<AttributePath> paths;
  if (c.given_not_none(2) && c.at(2).is_string()) {  // several, separated by commas
    for (std::string_view text = c.text(2);;) {
      const size_t comma = std::min(text.find(','), text.size());
      paths.emplace_back().add_parts(c.heap, text.substr(0, comma));
      if (comma == text.size()) break;
      text.remove_prefix(comma + 1);
    }
  } else {
    paths.emplace_back(c.heap, c.get(2));
  }
  for (AttributePath& path : paths) path.folds_case = !c.flag(1);
  return sorted(c, c.self, c.flag(0), [&](const Value& item) {
    auto* key = c.heap.make<List>();
    const Value holder = make_list(key);
    for (const AttributePath& path : paths) key->push(path.of(c.in, item));
    return holder;
  });
}

Value filter_dictsort(Call& c) {
  const std::string_view by = c.text(1, "key");
  if (by != "key" && by != "value") throw template_error("You can only sort by either \"key\" or \"value\"");
  require_defined(c.self);
  if (!c.self.is(Type::kDict)) throw type_error("dictsort needs a mapping, not " + std::string(type_name(c.self)));
  AttributePath path;
  path.folds_case = !c.flag(0);
  return sorted(c, make_items(c.heap, c.self), c.flag(2),
                [&](const Value& item) { return path.of(c.in, item.as<List>().items[by == "value"]); });
}

Value filter_groupby(Call& c) {
  AttributePath exact(c.heap, c.get(0));
  if (c.given_not_none(1)) exact.otherwise = c.at(1);
  AttributePath path = exact;
  path.folds_case = !c.flag(2);
  const Value all = sorted(c, c.self, false, [&](const Value& item) { return path.of(c.in, item); });
  auto* groups = c.heap.make<List>();
  const Value result = make_list(groups);
  List* group = nullptr;
  Value last;
  for (const Value& item : all.as<List>().items) {
    const Value key = path.of(c.in, item);
    if (group == nullptr || !equal(c.heap, last, key)) {
      group = c.heap.make<List>();
      const Value pair = make_sequence(c.heap, Type::kTuple, {exact.of(c.in, item), make_list(group)});
      pair.as<List>().grouped = true;
      groups->push(pair);
      last = key;
    }
    group->push(item);
  }
  return result;
}

template <CompareOp Better>
Value filter_extreme(Call& c) {
  const AttributePath path = key_path(c);
  Value best, best_key;
  for_each(c.in, c.self, [&](const Value& v) {
    Value key = path.of(c.in, v);
    if (!best.is_missing() && !compare_order(c.heap, Better, key, best_key)) return true;
    best = v;
    best_key = std::move(key);
    return true;
  });
  return best.is_missing() ? make_undefined(c.heap, "No aggregated item, sequence was empty.") : best;
}

Value filter_reverse(Call& c) {
  if (!c.self.is_string() && !c.self.is(Type::kIterator)) return make_reversed(c.in, c.self);
  const Value items = c.self.is_string() ? c.self : to_list(c.in, c.self);
  return slice(c.heap, items, Value(), Value(), Value::integer(-1));
}

// ---- elements -----------------------------------------------------------------------------------

Value filter_items(Call& c) {
  if (c.self.is_undefined()) return make_iterator(c.in, c.self);
  if (!c.self.is(Type::kDict)) throw type_error("Can only get item pairs from a mapping.");
  return make_iterator(c.in, make_items(c.heap, c.self));
}

Value filter_first(Call& c) {
  Value out;
  if (advance(c.in, make_iterator(c.in, c.self), &out)) return out;
  return make_undefined(c.heap, "No first item, sequence was empty.");
}

Value filter_last(Call& c) {
  Value out;
  const bool is_found = c.self.is_string() ? subscript(c.heap, c.self, Value::integer(-1), &out)
                                           : advance(c.in, make_reversed(c.in, c.self), &out);
  return is_found ? out : make_undefined(c.heap, "No last item, sequence was empty.");
}

Value filter_join(Call& c) {
  const AttributePath path(c.heap, c.get(1));
  const Value separator = c.given(0) ? to_string(c.heap, c.at(0)) : make_string(c.heap, "");
  TextBuilder out(c.heap);
  bool is_first = true;
  for_each(c.in, c.self, [&](const Value& v) {
    if (!is_first) out.append(text_of(separator));
    is_first = false;
    append_str(out, path.of(c.in, v));
    return true;
  });
  return out.finish();
}

Value filter_sum(Call& c) {
  const AttributePath path(c.heap, c.get(0));
  Value sum = c.given(1) ? c.at(1) : Value::integer(0);
  if (sum.is_string()) throw type_error("sum() can't sum strings [use ''.join(seq) instead]");
  for_each(c.in, c.self, [&](const Value& v) {
    sum = binary(c.heap, BinaryOp::kAdd, sum, path.of(c.in, v));
    return true;
  });
  return sum;
}

Value filter_batch(Call& c) {
  const int64_t size = c.integer(0);
  auto* rows = c.heap.make<List>();
  const Value result = make_list(rows);
  List* row = nullptr;
  for_each(c.in, c.self, [&](const Value& v) {
    if (row == nullptr || static_cast<int64_t>(row->items.size()) == size) {
      row = c.heap.make<List>();
      rows->push(make_list(row));
    }
    row->push(v);
    return true;
  });
  while (row != nullptr && c.given_not_none(1) && static_cast<int64_t>(row->items.size()) < size) {
    c.heap.spend(1);
    row->push(c.at(1));
  }
  return make_iterator(c.in, result);
}

Value filter_slice(Call& c) {
  const int64_t num_slices = c.integer(0);
  const Value all = to_list(c.in, c.self);
  const auto& items = all.as<List>().items;
  const int64_t length = length_of(all);
  if (num_slices == 0) throw template_error("integer division or modulo by zero");
  auto* columns = c.heap.make<List>();
  const Value result = make_list(columns);
  int64_t at = 0;
  for (int64_t i = 0; i < num_slices; ++i) {
    c.heap.spend(1);
    auto* column = c.heap.make<List>();
    columns->push(make_list(column));
    const bool is_longer = i < length % num_slices;
    for (int64_t k = 0; k < length / num_slices + is_longer; ++k) column->push(items[static_cast<size_t>(at++)]);
    if (c.given_not_none(1) && !is_longer) column->push(c.at(1));
  }
  return make_iterator(c.in, result);
}

Value filter_default(Call& c) {
  if (!c.self.is_undefined() && !(c.flag(1) && !truthy(c.self))) return c.self;
  return c.given(0) ? c.at(0) : make_string(c.heap, "");
}

Value filter_attr(Call& c) {
  Value out;
  if (find_attribute(c.in, c.self, c.text(0), &out)) return out;
  return make_undefined(c.heap, "'" + object_name(c.self) + "' has no attribute " + repr_text(c.text(0)));
}

// ---- those that give an iterator ----------------------------------------------------------------

class UniqueIterator final : public Iterator {
 public:
  UniqueIterator(Value source, AttributePath path, Value seen)
      : source_(std::move(source)), path_(std::move(path)), seen_(std::move(seen)) {}
  void drop_references() override { source_ = seen_ = Value(), path_ = {}; }
  bool next(Interpreter& in, Value* out) override {
    while (advance(in, source_, out)) {
      in.heap().spend(1);
      const Value key = path_.of(in, *out);
      if (seen_.as<Dict>().find(key) != nullptr) continue;
      seen_.as<Dict>().set(key, Value::none());
      return true;
    }
    return false;
  }

 private:
  Value source_;
  AttributePath path_;
  Value seen_;
};

Value filter_unique(Call& c) {
  const AttributePath path = key_path(c);
  const Value seen(Type::kDict, c.heap.make<Dict>());
  return Value(Type::kIterator, c.heap.make<UniqueIterator>(make_iterator(c.in, c.self), path, seen));
}

// map, select, reject, selectattr and rejectattr: a filter or test applied to each element, or to its attribute.
class ApplyIterator final : public Iterator {
 public:
  enum class Mode { kMap, kSelect, kReject };
  ApplyIterator(Value source, Mode mode, AttributePath path, const Builtin* function, Arguments arguments)
      : source_(std::move(source)),
        mode_(mode),
        path_(std::move(path)),
        function_(function),
        arguments_(std::move(arguments)) {}
  void drop_references() override { source_ = Value(), path_ = {}, arguments_ = {}; }
  bool next(Interpreter& in, Value* out) override {
    while (advance(in, source_, out)) {
      in.heap().spend(1);
      Value v = path_.of(in, *out);
      if (function_ != nullptr) {
        Arguments copy = arguments_;
        v = invoke(*function_, in, v, copy);
      }
      if (mode_ == Mode::kMap) return *out = std::move(v), true;
      if (truthy(v) == (mode_ == Mode::kSelect)) return true;
    }
    return false;
  }

 private:
  Value source_;
  Mode mode_;
  AttributePath path_;
  const Builtin* function_;  // null: the element itself
  Arguments arguments_;
};

using Mode = ApplyIterator::Mode;

// Takes the first `at` arguments and the name of a filter or test behind them from the arguments.
const Builtin* take_function(Arguments* a, size_t at, bool is_filter) {
  const Value name = a->positional[at];
  a->positional.erase(a->positional.begin(), a->positional.begin() + static_cast<ptrdiff_t>(at) + 1);
  const Builtin* found = nullptr;
  if (name.is_string()) found = is_filter ? find_filter(text_of(name)) : find_test(text_of(name));
  if (found == nullptr) {
    throw template_error(std::string("No ") + (is_filter ? "filter" : "test") + " named " +
                         (name.is_string() ? repr_text(text_of(name)) : std::string(type_name(name))) + ".");
  }
  return found;
}

Value make_lazy(Call& c, const Value& source, Mode mode, AttributePath path, const Builtin* function) {
  Arguments arguments = function == nullptr ? Arguments{} : c.all;
  const size_t num_arguments = arguments.positional.size() + arguments.keyword.size();
  auto* lazy = c.heap.make<ApplyIterator>(source, mode, std::move(path), function, std::move(arguments));
  const Value result(Type::kIterator, lazy);
  lazy->grow(static_cast<int64_t>(num_arguments * 2 * sizeof(Arguments)));
  return result;
}

// A false value, whatever it is, gives nothing.
Value source_of(Call& c) { return make_iterator(c.in, truthy(c.self) ? c.self : make_list(c.heap.make<List>())); }

Value map_attribute(Call& c) {
  AttributePath path(c.heap, c.get(0));
  if (c.given_not_none(1)) path.otherwise = c.at(1);
  return make_lazy(c, source_of(c), Mode::kMap, path, nullptr);
}

Value filter_map(Call& c) {
  if (!truthy(c.self)) return source_of(c);
  static constexpr Builtin kByAttribute = {"map", map_attribute, "attribute default"};
  const bool is_by_attribute =
      std::any_of(c.all.keyword.begin(), c.all.keyword.end(), [](const auto& k) { return k.first == "attribute"; });
  if (c.all.positional.empty() && is_by_attribute) return invoke(kByAttribute, c.in, c.self, c.all);
  const Value source = source_of(c);
  if (c.all.positional.empty()) throw template_error("map requires a filter argument");
  const Builtin* function = take_function(&c.all, 0, true);
  return make_lazy(c, source, Mode::kMap, {}, function);
}

template <Mode M, bool ByAttribute>
Value filter_select(Call& c) {
  if (!truthy(c.self)) return source_of(c);
  if (ByAttribute && c.all.positional.empty()) throw template_error("Missing parameter for attribute name");
  const AttributePath path(c.heap, ByAttribute ? &c.all.positional[0] : nullptr);
  const Value source = source_of(c);
  const Builtin* function = c.all.positional.size() > ByAttribute ? take_function(&c.all, ByAttribute, false) : nullptr;
  return make_lazy(c, source, M, path, function);
}

constexpr Builtin kSequenceFilters[] = {
    {"attr", filter_attr, "name!"},
    {"batch", filter_batch, "linecount! fill_with"},
    {"count", [](Call& c) { return Value::integer(length_of(c.self)); }, ""},
    {"d", filter_default, "default_value boolean"},
    {"default", filter_default, "default_value boolean"},
    {"dictsort", filter_dictsort, "case_sensitive by reverse"},
    {"first", filter_first, ""},
    {"groupby", filter_groupby, "attribute! default case_sensitive"},
    {"items", filter_items, ""},
    {"join", filter_join, "d attribute"},
    {"last", filter_last, ""},
    {"length", [](Call& c) { return Value::integer(length_of(c.self)); }, ""},
    {"list", [](Call& c) { return to_list(c.in, c.self); }, ""},
    {"map", filter_map, nullptr},
    {"max", filter_extreme<CompareOp::kGt>, "case_sensitive attribute"},
    {"min", filter_extreme<CompareOp::kLt>, "case_sensitive attribute"},
    {"reject", filter_select<Mode::kReject, false>, nullptr},
    {"rejectattr", filter_select<Mode::kReject, true>, nullptr},
    {"reverse", filter_reverse, ""},
    {"select", filter_select<Mode::kSelect, false>, nullptr},
    {"selectattr", filter_select<Mode::kSelect, true>, nullptr},
    {"slice", filter_slice, "slices! fill_with"},
    {"sort", filter_sort, "reverse case_sensitive attribute"},
    {"sum", filter_sum, "attribute start"},
    {"unique", filter_unique, "case_sensitive attribute"},
};

}  // namespace

const Builtin* find_sequence_filter(std::string_view name) { return find_in(kSequenceFilters, name); }

}  // namespace llmb::jinja
