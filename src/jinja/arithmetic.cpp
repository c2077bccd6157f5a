// + - * / // % ** and the unary ones.
#include <cmath>

#include "jinja/format.h"
#include "jinja/ops.h"

namespace llmb::jinja {

namespace {

[[noreturn]] void fail_overflow() { throw template_error("an integer result does not fit in 64 bits"); }

const char* symbol(BinaryOp op) {
  static constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
  return kSymbols[static_cast<size_t>(op)];
}

Value int_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) throw template_error("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  for (int64_t e = exponent; e > 0; e >>= 1) {
    if ((e & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    if (e > 1 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return Value::integer(result);
}

Value int_arithmetic(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOp::kSub:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOp::kMul:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOp::kPow:
      return int_power(a, b);
    case BinaryOp::kDiv:
      if (b == 0) throw template_error("division by zero");
      return Value::real(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod:
      break;
  }
  if (b == 0) throw template_error("integer division or modulo by zero");
  if (a == INT64_MIN && b == -1) {
    if (op == BinaryOp::kFloorDiv) fail_overflow();
    return Value::integer(0);
  }
  const int64_t remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  return Value::integer(op == BinaryOp::kMod ? remainder + (adjust ? b : 0) : a / b - (adjust ? 1 : 0));
}

Value float_arithmetic(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::real(a + b);
    case BinaryOp::kSub:
      return Value::real(a - b);
    case BinaryOp::kMul:
      return Value::real(a * b);
    case BinaryOp::kPow: {
      if (a == 0 && b < 0) throw template_error("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
        throw template_error("complex numbers are not supported");
      }
      const double result = std::pow(a, b);
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b))
        throw template_error("numerical result out of range");
      return Value::real(result);
    }
    default:
      break;
  }
  if (b == 0)
    throw template_error(op == BinaryOp::kDiv ? "float division by zero" : "float floor division or modulo by zero");
  if (op == BinaryOp::kDiv) return Value::real(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (remainder == 0) remainder = std::copysign(0.0, b);
  if (op == BinaryOp::kMod) return Value::real(remainder);
  const double quotient = (a - remainder) / b;
  double floored = std::floor(quotient);
  if (quotient - floored > 0.5) floored += 1;
  if (quotient == 0) floored = std::copysign(0.0, a / b);
  return Value::real(floored);
}

Value repeat(Heap& heap, const Value& sequence, int64_t count) {
  if (count < 0) count = 0;
  if (sequence.is_string()) {
    const std::string_view text = text_of(sequence);
    TextBuilder out(heap);
    if (!text.empty() && count > heap.limits().max_memory_bytes / static_cast<int64_t>(text.size())) {
      throw budget_error("a repeated string is too long");
    }
    for (int64_t i = 0; i < count && !text.empty(); ++i) out.append(text);
    return out.finish();
  }
  auto* list = heap.make<List>();
  const Value result(sequence.type(), list);
  for (int64_t i = 0; i < count; ++i) {
    const auto& items = sequence.as<List>().items;
    if (items.empty()) break;
    heap.spend(static_cast<int64_t>(items.size()));
    for (const Value& item : items) list->push(item);
  }
  return result;
}

Value concatenate(Heap& heap, const Value& a, const Value& b) {
  if (a.is_string()) {
    const bool markup = a.as<String>().markup || b.as<String>().markup;
    TextBuilder out(heap);
    out.append(text_of(markup ? escape(heap, a) : a));
    out.append(text_of(markup ? escape(heap, b) : b));
    return out.finish(markup);
  }
  auto* list = heap.make<List>();
  const Value result(a.type(), list);
  for (const Value* part : {&a, &b}) {
    heap.spend(static_cast<int64_t>(part->as<List>().items.size()));
    for (const Value& item : part->as<List>().items) list->push(item);
  }
  return result;
}

}  // namespace

Value binary(Heap& heap, BinaryOp op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return int_arithmetic(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return float_arithmetic(op, a.to_double(), b.to_double());
  require_defined(a);
  if (op == BinaryOp::kMod && a.is_string()) return format_percent(heap, a, b);
  require_defined(b);
  const bool both_sequences = (a.is_string() || a.is_sequence()) && a.type() == b.type();
  if (op == BinaryOp::kAdd && both_sequences) return concatenate(heap, a, b);
  if (op == BinaryOp::kMul && (a.is_string() || a.is_sequence()) && b.is_integral()) return repeat(heap, a, b.as_int());
  if (op == BinaryOp::kMul && (b.is_string() || b.is_sequence()) && a.is_integral()) return repeat(heap, b, a.as_int());
  if (op == BinaryOp::kAdd && (a.is_string() || a.is_sequence())) {
    const std::string type = type_name(a);
    throw type_error("can only concatenate " + type + " (not \"" + type_name(b) + "\") to " + type);
  }
  throw type_error("unsupported operand type(s) for " + std::string(symbol(op)) + ": '" + type_name(a) + "' and '" +
                   type_name(b) + "'");
}

Value negate(const Value& v) {
  if (v.is_integral()) return int_arithmetic(BinaryOp::kSub, 0, v.as_int());
  if (v.is(Type::kFloat)) return Value::real(-v.as_float());
  require_defined(v);
  throw type_error("bad operand type for unary -: '" + std::string(type_name(v)) + "'");
}

Value plus(const Value& v) {
  if (v.is_integral()) return Value::integer(v.as_int());
  if (v.is(Type::kFloat)) return v;
  require_defined(v);
  throw type_error("bad operand type for unary +: '" + std::string(type_name(v)) + "'");
}

void require_defined(const Value& v) {
  if (v.is_undefined()) throw template_error(v.as<Undefined>().message);
}

}  // namespace llmb::jinja
