// The tests behind `is`.
#include "jinja/args.h"
#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/methods.h"

namespace llmb::jinja {

namespace {

// A test of the value alone.
template <bool (*Holds)(const Value&)>
Value plain(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("test", a, {});
  return Value::boolean(Holds(self));
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.is(Type::kBool); }
bool is_true(const Value& v) { return v.is(Type::kBool) && v.as_bool(); }
bool is_false(const Value& v) { return v.is(Type::kBool) && !v.as_bool(); }
bool is_large_integer(const Value& v) { return v.is_string() && v.as<String>().is_integer; }
bool is_integer(const Value& v) { return v.is(Type::kInt) || is_large_integer(v); }
bool is_float(const Value& v) { return v.is(Type::kFloat); }
bool is_number(const Value& v) { return v.is_number() || is_large_integer(v); }
bool is_string(const Value& v) { return v.is_string() && !is_large_integer(v); }
bool is_mapping(const Value& v) { return v.is(Type::kDict); }
bool is_escaped(const Value& v) { return v.is_string() && v.as<String>().markup; }

bool is_sequence(const Value& v) {
  return is_string(v) || v.is_sequence() || v.is(Type::kDict) || v.is(Type::kRange) || v.is_undefined();
}

bool is_callable(const Value& v) {
  return v.is(Type::kFunction) || v.is(Type::kMacro) || v.is(Type::kLoop) || v.is(Type::kJoiner) || v.is_undefined();
}

Value remainder_is(Interpreter& in, const Value& self, const Value& divisor, int64_t wanted) {
  return Value::boolean(equal(in.heap(), binary(in.heap(), BinaryOp::kMod, self, divisor), Value::integer(wanted)));
}

Value test_odd(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("odd", a, {});
  return remainder_is(in, self, Value::integer(2), 1);
}

Value test_even(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("even", a, {});
  return remainder_is(in, self, Value::integer(2), 0);
}

Value test_divisibleby(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("divisibleby", a, {"num"}, 1);
  return remainder_is(in, self, b.at(0), 0);
}

// str(value).islower() or isupper()
template <bool Lower>
Value test_case(Interpreter& in, const Value& self, Arguments& a) {
  return find_string_method(Lower ? "islower" : "isupper")->call(in, to_string(in.heap(), self), a);
}

template <CompareOp Op>
Value test_compare(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("comparison", a, {"other"}, 1);
  return Value::boolean(compare(in, Op, self, b.at(0)));
}

Value test_sameas(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("sameas", a, {"other"}, 1);
  return Value::boolean(identical(self, b.at(0)));
}

Value test_filter(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("filter", a, {});
  return Value::boolean(self.is_string() && find_filter(text_of(self)) != nullptr);
}

Value test_test(Interpreter&, const Value& self, Arguments& a) {
  const BoundArguments b("test", a, {});
  return Value::boolean(self.is_string() && find_test(text_of(self)) != nullptr);
}

constexpr MethodEntry kTests[] = {
    {"!=", test_compare<CompareOp::kNe>},
    {"<", test_compare<CompareOp::kLt>},
    {"<=", test_compare<CompareOp::kLe>},
    {"==", test_compare<CompareOp::kEq>},
    {">", test_compare<CompareOp::kGt>},
    {">=", test_compare<CompareOp::kGe>},
    {"boolean", plain<is_boolean>},
    {"callable", plain<is_callable>},
    {"defined", plain<is_defined>},
    {"divisibleby", test_divisibleby},
    {"eq", test_compare<CompareOp::kEq>},
    {"equalto", test_compare<CompareOp::kEq>},
    {"escaped", plain<is_escaped>},
    {"even", test_even},
    {"false", plain<is_false>},
    {"filter", test_filter},
    {"float", plain<is_float>},
    {"ge", test_compare<CompareOp::kGe>},
    {"greaterthan", test_compare<CompareOp::kGt>},
    {"gt", test_compare<CompareOp::kGt>},
    {"in", test_compare<CompareOp::kIn>},
    {"integer", plain<is_integer>},
    {"iterable", plain<is_iterable>},
    {"le", test_compare<CompareOp::kLe>},
    {"lessthan", test_compare<CompareOp::kLt>},
    {"lower", test_case<true>},
    {"lt", test_compare<CompareOp::kLt>},
    {"mapping", plain<is_mapping>},
    {"ne", test_compare<CompareOp::kNe>},
    {"none", plain<is_none>},
    {"number", plain<is_number>},
    {"odd", test_odd},
    {"sameas", test_sameas},
    {"sequence", plain<is_sequence>},
    {"string", plain<is_string>},
    {"test", test_test},
    {"true", plain<is_true>},
    {"undefined", plain<is_undefined>},
    {"upper", test_case<false>},
};

}  // namespace

NativeFunction find_test(std::string_view name) {
  for (const MethodEntry& entry : kTests) {
    if (name == entry.name) return entry.call;
  }
  return nullptr;
}

}  // namespace llmb::jinja
