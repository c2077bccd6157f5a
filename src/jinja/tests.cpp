// The tests behind `is`.
#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/text.h"
#include "text/letter_case.h"

namespace llmb::jinja {

namespace {

using V = const Value&;

// A test of the value alone.
template <bool (*Holds)(V)>
Value plain(Call& c) {
  return Value::boolean(Holds(c.self));
}

bool is_large_integer(V v) { return v.is_string() && v.as<String>().is_integer; }
bool is_text(V v) { return v.is_string() && !is_large_integer(v); }
bool is_true(V v) { return v.is(Type::kBool) && v.as_bool(); }
bool is_false(V v) { return v.is(Type::kBool) && !v.as_bool(); }
bool is_defined(V v) { return !v.is_undefined(); }
bool is_undefined(V v) { return v.is_undefined(); }
bool is_none(V v) { return v.is_none(); }
bool is_number(V v) { return v.is_number() || is_large_integer(v); }
bool is_integer(V v) { return v.is(Type::kInt) || is_large_integer(v); }
bool is_escaped(V v) { return v.is_string() && v.as<String>().markup; }
template <Type T>
bool is_type(V v) {
  return v.is(T);
}

bool is_sequence(V v) {
  return is_text(v) || v.is_sequence() || v.is(Type::kDict) || v.is(Type::kRange) || v.is_undefined();
}

bool is_callable(V v) {
  return v.is(Type::kFunction) || v.is(Type::kMacro) || v.is(Type::kLoop) || v.is(Type::kJoiner) || v.is_undefined();
}

Value remainder_is(Call& c, const Value& divisor, int64_t wanted) {
  return Value::boolean(equal(c.heap, binary(c.heap, BinaryOp::kMod, c.self, divisor), Value::integer(wanted)));
}

// str(value).islower() or isupper(): at least one cased character, and none of another case.
template <bool (*Right)(char32_t), bool (*Wrong)(char32_t)>
Value test_case(Call& c) {
  const Value string = to_string(c.heap, c.self);
  const std::string_view text = text_of(string);
  c.heap.spend_chars(2 * text.size());
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t ch = next_char(text, &at);
    if (Wrong(ch) || is_title(ch)) return Value::boolean(false);
    any = any || Right(ch);
  }
  return Value::boolean(any);
}

template <CompareOp Op>
Value test_compare(Call& c) {
  return Value::boolean(compare(c.in, Op, c.self, c.at(0)));
}

template <const Builtin* (*Find)(std::string_view)>
Value test_name(Call& c) {
  return Value::boolean(c.self.is_string() && Find(text_of(c.self)) != nullptr);
}

constexpr const char* kOther = "other!";
constexpr Builtin kTests[] = {
    {"!=", test_compare<CompareOp::kNe>, kOther},
    {"<", test_compare<CompareOp::kLt>, kOther},
    {"<=", test_compare<CompareOp::kLe>, kOther},
    {"==", test_compare<CompareOp::kEq>, kOther},
    {">", test_compare<CompareOp::kGt>, kOther},
    {">=", test_compare<CompareOp::kGe>, kOther},
    {"boolean", plain<is_type<Type::kBool>>, ""},
    {"callable", plain<is_callable>, ""},
    {"defined", plain<is_defined>, ""},
    {"divisibleby", [](Call& c) { return remainder_is(c, c.at(0), 0); }, "num!"},
    {"eq", test_compare<CompareOp::kEq>, kOther},
    {"equalto", test_compare<CompareOp::kEq>, kOther},
    {"escaped", plain<is_escaped>, ""},
    {"even", [](Call& c) { return remainder_is(c, Value::integer(2), 0); }, ""},
    {"false", plain<is_false>, ""},
    {"filter", test_name<find_filter>, ""},
    {"float", plain<is_type<Type::kFloat>>, ""},
    {"ge", test_compare<CompareOp::kGe>, kOther},
    {"greaterthan", test_compare<CompareOp::kGt>, kOther},
    {"gt", test_compare<CompareOp::kGt>, kOther},
    {"in", test_compare<CompareOp::kIn>, kOther},
    {"integer", plain<is_integer>, ""},
    {"iterable", plain<is_iterable>, ""},
    {"le", test_compare<CompareOp::kLe>, kOther},
    {"lessthan", test_compare<CompareOp::kLt>, kOther},
    {"lower", test_case<is_lower, is_upper>, ""},
    {"lt", test_compare<CompareOp::kLt>, kOther},
    {"mapping", plain<is_type<Type::kDict>>, ""},
    {"ne", test_compare<CompareOp::kNe>, kOther},
    {"none", plain<is_none>, ""},
    {"number", plain<is_number>, ""},
    {"odd", [](Call& c) { return remainder_is(c, Value::integer(2), 1); }, ""},
    {"sameas", [](Call& c) { return Value::boolean(identical(c.self, c.at(0))); }, kOther},
    {"sequence", plain<is_sequence>, ""},
    {"string", plain<is_text>, ""},
    {"test", test_name<find_test>, ""},
    {"true", plain<is_true>, ""},
    {"undefined", plain<is_undefined>, ""},
    {"upper", test_case<is_upper, is_lower>, ""},
};

}  // namespace

const Builtin* find_test(std::string_view name) { return find_in(kTests, name); }

}  // namespace llmb::jinja
