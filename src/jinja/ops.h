// Python's operators, str(), repr(), [] and . on template values. Errors are thrown as jinja::Error.
#pragma once

#include <string_view>

#include "jinja/value.h"

namespace llmb::jinja {

enum class BinaryOp { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOp { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

bool truthy(const Value& v);
bool equal(Heap& heap, const Value& a, const Value& b, int depth = 0);
bool identical(const Value& a, const Value& b);  // Python's `is`
uint64_t hash_value(Heap& heap, const Value& v, int depth = 0);
bool compare_order(Heap& heap, CompareOp op, const Value& a, const Value& b, int depth = 0);  // <, <=, >, >=
bool compare(Interpreter& interpreter, CompareOp op, const Value& a, const Value& b);         // all of them
Value binary(Heap& heap, BinaryOp op, const Value& a, const Value& b);
Value negate(const Value& v);
Value plus(const Value& v);

// str(v) and repr(v), appended.
void append_str(TextBuilder& out, const Value& v, int depth = 0);
void append_repr(TextBuilder& out, const Value& v, int depth = 0);
Value to_string(Heap& heap, const Value& v);    // str(v), without the mark of safe text
Value soft_string(Heap& heap, const Value& v);  // a string as it is (markup stays), anything else as str(v)
Value escape(Heap& heap, const Value& v);       // for HTML; what is marked as safe stays
// text.replace(old, replacement, count); count < 0: all.
Value replace_text(Heap& heap, const Value& text, const Value& old, const Value& replacement, int64_t count);
std::string repr_of(Heap& heap, const Value& v);

// Throws the error of using an undefined value, if v is one.
void require_defined(const Value& v);
std::string object_name(const Value& v);  // "dict object", as jinja names a value in messages

// v[key] of Python: false where it raises TypeError or LookupError.
bool subscript(Heap& heap, const Value& v, const Value& key, Value* out);
// v[start:stop:step]; bounds that are missing or None are open.
Value slice(Heap& heap, const Value& v, const Value& start, const Value& stop, const Value& step);

// The environment's obj.name and obj[key] under the immutable sandbox: attribute first, or subscript first; an
// undefined value where there is neither or the sandbox refuses.
Value get_attribute(Interpreter& interpreter, const Value& v, std::string_view name);
Value get_item(Interpreter& interpreter, const Value& v, const Value& key);

// getattr(v, name): false where there is none, or none for templates.
bool find_attribute(Interpreter& interpreter, const Value& v, std::string_view name, Value* out);

bool has_length(const Value& v);
int64_t length_of(const Value& v);  // len(v); throws kType where it has none
// v as the index of a sequence: an int or a bool; throws kType otherwise.
int64_t to_index(const Value& v, const char* what);

}  // namespace llmb::jinja
