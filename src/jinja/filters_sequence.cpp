// Filters on sequences and mappings.
#include <algorithm>
#include <numeric>

#include "jinja/args.h"
#include "jinja/attribute_path.h"
#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/methods.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

// ---- keys ---------------------------------------------------------------------------------------

// The order of elements by their keys, stable.
std::vector<size_t> order_by(Heap& heap, const std::vector<Value>& keys, bool descending) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    heap.spend(1);
    return compare_order(heap, CompareOp::kLt, keys[descending ? b : a], keys[descending ? a : b]);
  });
  return order;
}

Value pick(Heap& heap, const std::vector<Value>& items, const std::vector<size_t>& order) {
  auto* list = heap.make<List>();
  const Value result = make_list(list);
  for (const size_t i : order) list->push(items[i]);
  return result;
}

// ---- order --------------------------------------------------------------------------------------

Value filter_sort(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("sort", a, {"reverse", "case_sensitive", "attribute"});
  std::vector<AttributePath> paths;
  if (b.given_not_none(2) && b.at(2).is_string()) {  // several, separated by commas
    std::string_view text = b.text(2);
    for (;;) {
      const size_t comma = std::min(text.find(','), text.size());
      const Value part = make_string(in.heap(), std::string(text.substr(0, comma)));
      paths.emplace_back(in, &part);
      if (comma == text.size()) break;
      text.remove_prefix(comma + 1);
    }
  } else {
    paths.emplace_back(in, b.get(2));
  }
  if (!b.flag(1, false)) {
    for (AttributePath& path : paths) path.fold_case();
  }
  Value items, keys;
  const List* list = collect(in, self, &items);
  auto* key_list = in.heap().make<List>();
  keys = make_list(key_list);
  for (const Value& item : list->items) {
    auto* key = in.heap().make<List>();
    const Value holder = make_list(key);
    for (const AttributePath& path : paths) key->push(path.of(in, item));
    key_list->push(holder);
  }
  return pick(in.heap(), list->items, order_by(in.heap(), key_list->items, b.flag(0, false)));
}

Value filter_dictsort(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("dictsort", a, {"case_sensitive", "by", "reverse"});
  const std::string_view by = b.given(1) ? b.text(1) : "key";
  if (by != "key" && by != "value") throw template_error("You can only sort by either \"key\" or \"value\"");
  require_defined(self);
  if (!self.is(Type::kDict)) throw type_error("dictsort needs a mapping, not " + std::string(type_name(self)));
  AttributePath path(in, nullptr);
  if (!b.flag(0, false)) path.fold_case();
  Value items;
  const List* list =
      collect(in, Value(Type::kDictView, in.heap().make<DictView>(DictView::Kind::kItems, self)), &items);
  auto* keys = in.heap().make<List>();
  const Value holder = make_list(keys);
  for (const Value& item : list->items) keys->push(path.of(in, item.as<List>().items[by == "value"]));
  return pick(in.heap(), list->items, order_by(in.heap(), keys->items, b.flag(2, false)));
}

Value filter_groupby(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("groupby", a, {"attribute", "default", "case_sensitive"}, 1);
  AttributePath exact(in, b.get(0));
  if (b.given_not_none(1)) exact.set_default(b.at(1));
  AttributePath path = exact;
  if (!b.flag(2, false)) path.fold_case();
  Value items;
  const List* list = collect(in, self, &items);
  auto* keys = in.heap().make<List>();
  const Value holder = make_list(keys);
  for (const Value& item : list->items) keys->push(path.of(in, item));
  auto* groups = in.heap().make<List>();
  const Value result = make_list(groups);
  List* group = nullptr;
  const Value* last = nullptr;
  for (const size_t i : order_by(in.heap(), keys->items, false)) {
    if (last == nullptr || !equal(in.heap(), *last, keys->items[i])) {
      group = in.heap().make<List>();
      const Value pair = make_tuple(in.heap(), exact.of(in, list->items[i]), make_list(group));
      pair.as<List>().grouped = true;
      groups->push(pair);
      last = &keys->items[i];
    }
    group->push(list->items[i]);
  }
  return result;
}

template <CompareOp Better>
Value filter_extreme(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("min or max", a, {"case_sensitive", "attribute"});
  AttributePath path(in, b.get(1));
  if (!b.flag(0, false)) path.fold_case();
  Value best, best_key;
  for_each(in, self, [&](const Value& v) {
    Value key = path.of(in, v);
    if (best.is_missing() || compare_order(in.heap(), Better, key, best_key)) {
      best = v;
      best_key = std::move(key);
    }
    return true;
  });
  return best.is_missing() ? make_undefined(in.heap(), "No aggregated item, sequence was empty.") : best;
}

Value filter_reverse(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("reverse", a, {});
  if (self.is_string()) return slice(in.heap(), self, Value(), Value(), Value::integer(-1));
  if (!self.is(Type::kIterator)) return make_reversed(in, self);
  Value items;
  collect(in, self, &items);
  return slice(in.heap(), items, Value(), Value(), Value::integer(-1));
}

// ---- elements -----------------------------------------------------------------------------------

Value filter_length(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("length", a, {});
  return Value::integer(length_of(self));
}

Value filter_list(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("list", a, {});
  Value result;
  collect(in, self, &result);
  return result;
}

Value filter_items(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("items", a, {});
  if (self.is_undefined()) return make_iterator(in, self);
  if (!self.is(Type::kDict)) throw type_error("Can only get item pairs from a mapping.");
  return make_iterator(in, Value(Type::kDictView, in.heap().make<DictView>(DictView::Kind::kItems, self)));
}

Value filter_first(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("first", a, {});
  Value out;
  if (advance(in, make_iterator(in, self), &out)) return out;
  return make_undefined(in.heap(), "No first item, sequence was empty.");
}

Value filter_last(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("last", a, {});
  Value out;
  const bool found = self.is_string() ? subscript(in.heap(), self, Value::integer(-1), &out)
                                      : advance(in, make_reversed(in, self), &out);
  return found ? out : make_undefined(in.heap(), "No last item, sequence was empty.");
}

Value filter_join(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("join", a, {"d", "attribute"});
  const AttributePath path(in, b.get(1));
  const Value separator = b.given(0) ? to_string(in.heap(), b.at(0)) : make_string(in.heap(), "");
  TextBuilder out(in.heap());
  bool first = true;
  for_each(in, self, [&](const Value& v) {
    if (!first) out.append(text_of(separator));
    first = false;
    append_str(out, path.of(in, v));
    return true;
  });
  return out.finish();
}

Value filter_sum(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("sum", a, {"attribute", "start"});
  const AttributePath path(in, b.get(0));
  Value sum = b.given(1) ? b.at(1) : Value::integer(0);
  if (sum.is_string()) throw type_error("sum() can't sum strings [use ''.join(seq) instead]");
  for_each(in, self, [&](const Value& v) {
    sum = binary(in.heap(), BinaryOp::kAdd, sum, path.of(in, v));
    return true;
  });
  return sum;
}

Value filter_batch(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("batch", a, {"linecount", "fill_with"}, 1);
  const int64_t size = b.integer(0, 0);
  auto* rows = in.heap().make<List>();
  const Value result = make_list(rows);
  List* row = nullptr;
  for_each(in, self, [&](const Value& v) {
    if (row == nullptr || static_cast<int64_t>(row->items.size()) == size) {
      row = in.heap().make<List>();
      rows->push(make_list(row));
    }
    row->push(v);
    return true;
  });
  while (row != nullptr && b.given_not_none(1) && static_cast<int64_t>(row->items.size()) < size) {
    in.heap().spend(1);
    row->push(b.at(1));
  }
  return make_iterator(in, result);
}

Value filter_slice(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("slice", a, {"slices", "fill_with"}, 1);
  const int64_t slices = b.integer(0, 0);
  Value items;
  const List* list = collect(in, self, &items);
  const auto length = static_cast<int64_t>(list->items.size());
  if (slices == 0) throw template_error("integer division or modulo by zero");
  auto* columns = in.heap().make<List>();
  const Value result = make_list(columns);
  int64_t at = 0;
  for (int64_t i = 0; i < slices; ++i) {
    in.heap().spend(1);
    auto* column = in.heap().make<List>();
    columns->push(make_list(column));
    const bool longer = i < length % slices;
    for (int64_t k = 0; k < length / slices + longer; ++k) column->push(list->items[static_cast<size_t>(at++)]);
    if (b.given_not_none(1) && !longer) column->push(b.at(1));
  }
  return make_iterator(in, result);
}

Value filter_default(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("default", a, {"default_value", "boolean"});
  if (!self.is_undefined() && !(b.flag(1, false) && !truthy(self))) return self;
  return b.given(0) ? b.at(0) : make_string(in.heap(), "");
}

Value filter_attr(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("attr", a, {"name"}, 1);
  Value out;
  bool unsafe = false;
  if (find_attribute(in, self, b.text(0), &out, &unsafe)) return get_attribute(in, self, b.text(0));
  return make_undefined(in.heap(), "'" + object_name(self) + "' has no attribute " + repr_text(b.text(0)));
}

constexpr MethodEntry kSequenceFilters[] = {
    {"attr", filter_attr},
    {"batch", filter_batch},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"groupby", filter_groupby},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"max", filter_extreme<CompareOp::kGt>},
    {"min", filter_extreme<CompareOp::kLt>},
    {"reverse", filter_reverse},
    {"slice", filter_slice},
    {"sort", filter_sort},
    {"sum", filter_sum},
};

}  // namespace

NativeFunction find_sequence_filter(std::string_view name) {
  for (const MethodEntry& entry : kSequenceFilters) {
    if (name == entry.name) return entry.call;
  }
  return nullptr;
}

}  // namespace llmb::jinja
