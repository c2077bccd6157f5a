// Interpreter: expressions.
#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/ops.h"
#include "jinja/text.h"

namespace llmb::jinja {

Value Interpreter::eval(const Expr& e) {
  const DepthGuard guard(*this);
  switch (e.kind) {
    case ExprKind::kConst:
      return eval_const(static_cast<const ConstExpr&>(e));
    case ExprKind::kName:
      return eval_name(static_cast<const NameExpr&>(e));
    case ExprKind::kTuple:
      return eval_items(static_cast<const ListExpr&>(e), Type::kTuple);
    case ExprKind::kList:
      return eval_items(static_cast<const ListExpr&>(e), Type::kList);
    case ExprKind::kDict:
      return eval_dict(static_cast<const DictExpr&>(e));
    case ExprKind::kConcat:
      return eval_concat(static_cast<const ListExpr&>(e));
    case ExprKind::kUnary:
      return eval_unary(static_cast<const UnaryExpr&>(e));
    case ExprKind::kBinary: {
      const auto& b = static_cast<const BinaryExpr&>(e);
      const Value left = eval(*b.left);
      return binary(heap_, b.op, left, eval(*b.right));
    }
    case ExprKind::kCompare:
      return eval_compare(static_cast<const CompareExpr&>(e));
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return eval_logic(static_cast<const BinaryExpr&>(e));
    case ExprKind::kConditional:
      return eval_conditional(static_cast<const ConditionalExpr&>(e));
    case ExprKind::kAttribute: {
      const auto& a = static_cast<const AttributeExpr&>(e);
      return get_attribute(*this, eval(*a.object), a.name);
    }
    case ExprKind::kItem:
      return eval_item(static_cast<const ItemExpr&>(e));
    case ExprKind::kCall:
      return eval_call(static_cast<const CallExpr&>(e), nullptr);
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return eval_filter(static_cast<const FilterExpr&>(e), nullptr);
    case ExprKind::kSlice:
    case ExprKind::kNamespaceRef:
      break;  // never by themselves
  }
  throw template_error("this expression has no value");
}

Value Interpreter::eval_const(const ConstExpr& e) {
  switch (e.type) {
    case Type::kBool:
      return Value::boolean(e.integer != 0);
    case Type::kInt:
      return Value::integer(e.integer);
    case Type::kFloat:
      return Value::real(e.real);
    case Type::kString: {
      Value& made = strings_[static_cast<size_t>(e.number)];
      if (made.is_missing()) made = make_string(heap_, e.text);
      return made;
    }
    default:
      return Value::none();
  }
}

Value Interpreter::eval_name(const NameExpr& e) {
  const Value& v = scope_at(e.at.hops).slots[static_cast<size_t>(e.at.slot)];
  return v.is_missing() ? undefined_name(e.name) : v;
}

Value Interpreter::eval_items(const ListExpr& e, Type type) {
  auto* list = heap_.make<List>();
  const Value result(type, list);
  for (const auto& item : e.items) list->push(eval(*item));
  return result;
}

Value Interpreter::eval_dict(const DictExpr& e) {
  auto* dict = heap_.make<Dict>();
  const Value result(Type::kDict, dict);
  for (const auto& [key, value] : e.items) {
    const Value k = eval(*key);
    dict->set(k, eval(*value));
  }
  return result;
}

Value Interpreter::eval_concat(const ListExpr& e) {
  TextBuilder out(heap_);
  for (const auto& item : e.items) append_str(out, eval(*item));
  return out.finish();
}

Value Interpreter::eval_unary(const UnaryExpr& e) {
  const Value v = eval(*e.operand);
  switch (e.op) {
    case UnaryOp::kNot:
      return Value::boolean(!truthy(v));
    case UnaryOp::kNegate:
      return negate(v);
    case UnaryOp::kPlus:
      return plus(v);
  }
  return v;
}

Value Interpreter::eval_logic(const BinaryExpr& e) {
  Value left = eval(*e.left);
  return truthy(left) == (e.kind == ExprKind::kAnd) ? eval(*e.right) : left;
}

Value Interpreter::eval_compare(const CompareExpr& e) {
  Value left = eval(*e.first);
  for (const auto& [op, operand] : e.rest) {
    Value right = eval(*operand);
    if (!compare(*this, op, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::eval_conditional(const ConditionalExpr& e) {
  if (truthy(eval(*e.condition))) return eval(*e.yes);
  if (e.no != nullptr) return eval(*e.no);
  return make_undefined(heap_, "the inline if-expression on line " + std::to_string(e.line) +
                                   " evaluated to false and no else section was defined.");
}

Value Interpreter::eval_item(const ItemExpr& e) {
  const Value object = eval(*e.object);
  if (e.key->kind != ExprKind::kSlice) return get_item(*this, object, eval(*e.key));
  const auto& s = static_cast<const SliceExpr&>(*e.key);
  const auto bound = [&](const ExprPtr& p) { return p == nullptr ? Value() : eval(*p); };
  const Value start = bound(s.start), stop = bound(s.stop), step = bound(s.step);
  return slice(heap_, object, start, stop, step);
}

Arguments Interpreter::eval_arguments(const CallArguments& a) {
  Arguments result;
  for (const auto& e : a.positional) result.positional.push_back(eval(*e));
  for (const auto& [name, e] : a.keyword) result.keyword.emplace_back(name, eval(*e));
  if (a.star != nullptr) {
    for_each(*this, eval(*a.star), [&](const Value& v) {
      if (result.positional.size() >= 10'000) throw budget_error("a call has too many arguments");
      result.positional.push_back(v);
      return true;
    });
  }
  if (a.double_star != nullptr) {
    const Value named = eval(*a.double_star);
    require_defined(named);
    if (!named.is(Type::kDict))
      throw type_error("argument after ** must be a mapping, not " + std::string(type_name(named)));
    for (const auto& [key, value] : named.as<Dict>().entries) {
      if (!key.is_string()) throw type_error("keywords must be strings");
      if (result.keyword.size() >= 1'000) throw budget_error("a call has too many arguments");
      for (const auto& [name, other] : result.keyword) {
        if (name == text_of(key)) throw type_error("got multiple values for keyword argument " + repr_text(name));
      }
      result.keyword.emplace_back(std::string(text_of(key)), value);
    }
  }
  return result;
}

Value Interpreter::eval_call(const CallExpr& e, const Value* caller) {
  const Value callee = eval(*e.callee);
  Arguments arguments = eval_arguments(e.arguments);
  if (caller != nullptr) arguments.keyword.emplace_back("caller", *caller);
  return call(callee, arguments);
}

Value Interpreter::eval_filter(const FilterExpr& e, const Value* operand) {
  const bool filter = e.kind == ExprKind::kFilter;
  // A chain that began with a block's text has an operand of its own in each link but the first.
  const Value input = e.operand == nullptr ? *operand
                      : operand != nullptr ? eval_filter(static_cast<const FilterExpr&>(*e.operand), operand)
                                           : eval(*e.operand);
  Arguments arguments = eval_arguments(e.arguments);
  if (e.function == nullptr) {
    throw template_error(std::string("No ") + (filter ? "filter" : "test") + " named " + repr_text(e.name) + " found.");
  }
  return invoke(*e.function, *this, input, arguments);
}

}  // namespace llmb::jinja
