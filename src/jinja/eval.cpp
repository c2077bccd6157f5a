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
      return eval_const(e);
    case ExprKind::kName: {
      const Value& v = scope_at(e.at.hops).slots[static_cast<size_t>(e.at.slot)];
      return v.is_missing() ? make_undefined(heap_, repr_text(e.text) + " is undefined") : v;
    }
    case ExprKind::kTuple:
      return eval_items(e, Type::kTuple);
    case ExprKind::kList:
      return eval_items(e, Type::kList);
    case ExprKind::kDict:
      return eval_dict(e);
    case ExprKind::kConcat: {
      TextBuilder out(heap_);
      for (const ExprPtr& part : e.parts) append_str(out, eval(*part));
      return out.finish();
    }
    case ExprKind::kNot:
      return Value::boolean(!truthy(eval(e.part(0))));
    case ExprKind::kNegate:
      return negate(eval(e.part(0)));
    case ExprKind::kPlus:
      return plus(eval(e.part(0)));
    case ExprKind::kBinary: {
      const Value left = eval(e.part(0));
      return binary(heap_, e.binary_op, left, eval(e.part(1)));
    }
    case ExprKind::kCompare:
      return eval_compare(e);
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = eval(e.part(0));
      return truthy(left) == (e.kind == ExprKind::kAnd) ? eval(e.part(1)) : left;
    }
    case ExprKind::kConditional:
      return eval_conditional(e);
    case ExprKind::kAttribute:
      return get_attribute(*this, eval(e.part(0)), e.text);
    case ExprKind::kItem:
      return eval_item(e);
    case ExprKind::kCall:
      return eval_call(e, nullptr);
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return eval_filter(e, nullptr);
    case ExprKind::kSlice:
    case ExprKind::kNamespaceRef:
      break;  // never by themselves
  }
  throw template_error("this expression has no value");
}

Value Interpreter::eval_const(const Expr& e) {
  if (e.type == Type::kBool) return Value::boolean(e.integer != 0);
  if (e.type == Type::kInt) return Value::integer(e.integer);
  if (e.type == Type::kFloat) return Value::real(e.real);
  if (e.type != Type::kString) return Value::none();
  Value& made = strings_[static_cast<size_t>(e.number)];
  if (made.is_missing()) made = make_string(heap_, e.text);
  return made;
}

Value Interpreter::eval_items(const Expr& e, Type type) {
  auto* list = heap_.make<List>();
  const Value result(type, list);
  for (const ExprPtr& item : e.parts) list->push(eval(*item));
  return result;
}

Value Interpreter::eval_dict(const Expr& e) {
  auto* dict = heap_.make<Dict>();
  const Value result(Type::kDict, dict);
  for (size_t i = 0; i < e.parts.size(); i += 2) {
    const Value key = eval(e.part(i));
    dict->set(key, eval(e.part(i + 1)));
  }
  return result;
}

Value Interpreter::eval_compare(const Expr& e) {
  Value left = eval(e.part(0));
  for (size_t i = 0; i < e.compare_ops.size(); ++i) {
    Value right = eval(e.part(i + 1));
    if (!compare(*this, e.compare_ops[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::eval_conditional(const Expr& e) {
  if (truthy(eval(e.part(0)))) return eval(e.part(1));
  if (e.parts[2] != nullptr) return eval(e.part(2));
  return make_undefined(heap_, "the inline if-expression on line " + std::to_string(e.line) +
                                   " evaluated to false and no else section was defined.");
}

Value Interpreter::eval_item(const Expr& e) {
  const Value object = eval(e.part(0));
  const Expr& key = e.part(1);
  if (key.kind != ExprKind::kSlice) return get_item(*this, object, eval(key));
  const auto bound = [&](size_t i) { return key.parts[i] == nullptr ? Value() : eval(key.part(i)); };
  const Value start = bound(0), stop = bound(1), step = bound(2);
  return slice(heap_, object, start, stop, step);
}

Arguments Interpreter::eval_arguments(const Expr& e) {
  Arguments result;
  const size_t star = e.parts.size() - 2, first_keyword = star - e.names.size();
  for (size_t i = 1; i < first_keyword; ++i) result.positional.push_back(eval(e.part(i)));
  for (size_t k = 0; k < e.names.size(); ++k) result.keyword.emplace_back(e.names[k], eval(e.part(first_keyword + k)));
  if (e.parts[star] != nullptr) {
    for_each(*this, eval(e.part(star)), [&](const Value& v) {
      if (result.positional.size() >= 10'000) throw budget_error("a call has too many arguments");
      result.positional.push_back(v);
      return true;
    });
  }
  if (e.parts[star + 1] == nullptr) return result;
  const Value named = eval(e.part(star + 1));
  require_defined(named);
  if (!named.is(Type::kDict))
    throw type_error("argument after ** must be a mapping, not " + std::string(type_name(named)));
  for (const auto& [key, value] : named.as<Dict>().entries) {
    if (!key.is_string()) throw type_error("keywords must be strings");
    if (result.keyword.size() >= 1'000) throw budget_error("a call has too many arguments");
    for (const auto& [name, other] : result.keyword)
      if (name == text_of(key)) throw type_error("got multiple values for keyword argument " + repr_text(name));
    result.keyword.emplace_back(std::string(text_of(key)), value);
  }
  return result;
}

Value Interpreter::eval_call(const Expr& e, const Value* caller) {
  const Value callee = eval(e.part(0));
  Arguments arguments = eval_arguments(e);
  if (caller != nullptr) arguments.keyword.emplace_back("caller", *caller);
  return call(callee, arguments);
}

Value Interpreter::eval_filter(const Expr& e, const Value* block_text) {
  // In a chain that began with a block's text each link but the first has an operand of its own.
  const Value input = e.parts[0] == nullptr   ? *block_text
                      : block_text != nullptr ? eval_filter(e.part(0), block_text)
                                              : eval(e.part(0));
  Arguments arguments = eval_arguments(e);
  if (e.function != nullptr) return invoke(*e.function, *this, input, arguments);
  throw template_error(std::string(e.kind == ExprKind::kFilter ? "No filter" : "No test") + " named " +
                       repr_text(e.text) + " found.");
}

}  // namespace llmb::jinja
