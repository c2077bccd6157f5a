#include "jinja/ops.h"

#include <cmath>

#include "jinja/iter.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

void check_depth(Heap& heap, int depth) {
  heap.spend(1);
  if (depth > heap.limits().max_value_depth) throw budget_error("a value is nested too deeply");
}

uint64_t mix(uint64_t h) {
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccd;
  h ^= h >> 33;
  return h;
}

// Exact: 64 bits of mantissa hold every int64.
int order_numbers(const Value& a, const Value& b) {
  const auto widen = [](const Value& v) -> long double {
    return v.is(Type::kFloat) ? static_cast<long double>(v.as_float()) : static_cast<long double>(v.as_int());
  };
  const long double x = widen(a), y = widen(b);
  if (std::isnan(x) || std::isnan(y)) return 2;
  return x < y ? -1 : x > y;
}

}  // namespace

bool truthy(const Value& v) {
  if (v.is_integral()) return v.as_int() != 0;
  if (v.is(Type::kFloat)) return v.as_float() != 0;
  if (v.is_missing() || v.is_none()) return false;
  return !has_length(v) || length_of(v) > 0;
}

bool identical(const Value& a, const Value& b) {
  if (a.type() != b.type() || a.is(Type::kFloat)) return false;
  if (a.is_none() || a.is_missing()) return true;
  return a.is_integral() ? a.as_int() == b.as_int() : a.object() == b.object();
}

bool equal(Heap& heap, const Value& a, const Value& b, int depth) {
  if (a.is_number() && b.is_number()) return order_numbers(a, b) == 0;
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kNone:
    case Type::kUndefined:
      return true;
    case Type::kString: {
      if (text_of(a).size() != text_of(b).size()) return false;
      heap.spend_bytes(text_of(a).size());
      return text_of(a) == text_of(b);
    }
    case Type::kList:
    case Type::kTuple: {
      if (a.object() == b.object()) return true;
      const auto &x = a.as<List>().items, &y = b.as<List>().items;
      if (x.size() != y.size()) return false;
      check_depth(heap, depth);
      for (size_t i = 0; i < x.size(); ++i) {
        heap.spend(1);
        if (!equal(heap, x[i], y[i], depth + 1)) return false;
      }
      return true;
    }
    case Type::kDict: {
      if (a.object() == b.object()) return true;
      auto &x = a.as<Dict>(), &y = b.as<Dict>();
      if (x.entries.size() != y.entries.size()) return false;
      check_depth(heap, depth);
      for (const auto& [key, value] : x.entries) {
        heap.spend(1);
        const Value* other = y.find(key);
        if (other == nullptr || !equal(heap, value, *other, depth + 1)) return false;
      }
      return true;
    }
    case Type::kRange: {
      const auto &x = a.as<Range>(), &y = b.as<Range>();
      return x.length == y.length && (x.length == 0 || (x.start == y.start && (x.length == 1 || x.step == y.step)));
    }
    default:
      return a.object() == b.object();
  }
}

uint64_t hash_value(Heap& heap, const Value& v, int depth) {
  switch (v.type()) {
    case Type::kBool:
    case Type::kInt:
      return mix(static_cast<uint64_t>(v.as_int()));
    case Type::kFloat: {
      const double f = v.as_float();
      if (f >= -0x1p63 && f < 0x1p63 && f == std::floor(f)) return mix(static_cast<uint64_t>(static_cast<int64_t>(f)));
      return mix(std::hash<double>()(f));
    }
    case Type::kString:
      heap.spend_bytes(text_of(v).size());
      return hash_text(text_of(v));
    case Type::kTuple: {
      check_depth(heap, depth);
      uint64_t h = 0x345678;
      for (const Value& item : v.as<List>().items) h = mix(h * 31 + hash_value(heap, item, depth + 1));
      return h;
    }
    case Type::kList:
    case Type::kDict:
    case Type::kDictView:
      throw type_error("unhashable type: '" + std::string(type_name(v)) + "'");
    case Type::kNone:
    case Type::kUndefined:
    case Type::kMissing:
      return mix(static_cast<uint64_t>(v.type()) + 0x1234567);
    default:
      return mix(reinterpret_cast<uintptr_t>(v.object()));
  }
}

// ---- order --------------------------------------------------------------------------------------

namespace {

const char* symbol(CompareOp op) {
  static constexpr const char* kSymbols[] = {"==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSymbols[static_cast<size_t>(op)];
}

bool holds(CompareOp op, int order) {  // order: -1, 0, 1, or 2 for a NaN, for which nothing holds
  if (order == 2) return false;
  return op == CompareOp::kLt   ? order < 0
         : op == CompareOp::kLe ? order <= 0
         : op == CompareOp::kGt ? order > 0
                                : order >= 0;
}

}  // namespace

bool compare_order(Heap& heap, CompareOp op, const Value& a, const Value& b, int depth) {
  if (a.is_number() && b.is_number()) return holds(op, order_numbers(a, b));
  require_defined(a);
  require_defined(b);
  if (a.is_string() && b.is_string()) {
    heap.spend_bytes(std::min(text_of(a).size(), text_of(b).size()));
    const int order = text_of(a).compare(text_of(b));
    return holds(op, order < 0 ? -1 : order > 0);
  }
  if (a.is_sequence() && a.type() == b.type()) {
    check_depth(heap, depth);
    const auto &x = a.as<List>().items, &y = b.as<List>().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      heap.spend(1);
      if (!equal(heap, x[i], y[i], depth + 1)) return compare_order(heap, op, x[i], y[i], depth + 1);
    }
    return holds(op, x.size() < y.size() ? -1 : x.size() > y.size());
  }
  throw type_error("'" + std::string(symbol(op)) + "' not supported between instances of '" + type_name(a) + "' and '" +
                   type_name(b) + "'");
}

namespace {

bool contains(Interpreter& interpreter, const Value& container, const Value& item) {
  Heap& heap = heap_of(interpreter);
  switch (container.type()) {
    case Type::kString:
      if (!item.is_string()) {
        throw type_error("'in <string>' requires string as left operand, not " + std::string(type_name(item)));
      }
      heap.spend_chars(text_of(container).size() + text_of(item).size());
      return find_text(text_of(container), text_of(item)) != std::string_view::npos;
    case Type::kDict:
      return container.as<Dict>().find(item) != nullptr;
    case Type::kDictView:
      if (container.as<DictView>().kind == DictView::Kind::kKeys) {
        return container.as<DictView>().dict.as<Dict>().find(item) != nullptr;
      }
      break;
    case Type::kRange: {
      const auto& r = container.as<Range>();
      if (!item.is_number()) return false;
      const double position = (item.to_double() - static_cast<double>(r.start)) / static_cast<double>(r.step);
      return position >= 0 && position < static_cast<double>(r.length) && position == std::floor(position);
    }
    default:
      break;
  }
  if (!is_iterable(container)) {
    throw type_error("argument of type '" + std::string(type_name(container)) + "' is not iterable");
  }
  bool found = false;
  for_each(interpreter, container, [&](const Value& v) {
    found = identical(v, item) || equal(heap, v, item);
    return !found;
  });
  return found;
}

}  // namespace

bool compare(Interpreter& interpreter, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return equal(heap_of(interpreter), a, b);
    case CompareOp::kNe:
      return !equal(heap_of(interpreter), a, b);
    case CompareOp::kIn:
      return contains(interpreter, b, a);
    case CompareOp::kNotIn:
      return !contains(interpreter, b, a);
    default:
      return compare_order(heap_of(interpreter), op, a, b);
  }
}

}  // namespace llmb::jinja
