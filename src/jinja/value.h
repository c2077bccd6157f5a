// The values a template computes with, after Python's types, and the heap that counts and bounds them.
//
// Invariants: 1. a heap's live bytes and spent steps never pass its limits: the operation that would throws Error;
// 2. releasing a value never recurses, however deep it is nested; 3. a heap frees all its objects, cycles included.
// Not thread-safe: a heap and its values belong to one render.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace llmb::jinja {

// Budgets of a render. A step is an evaluated node, an element visited, 8 bytes of text looked at one by one or 64
// bytes copied: all of them some tens of nanoseconds.
struct Limits {
  int64_t max_steps = 6'000'000;
  int64_t max_memory_bytes = int64_t{48} << 20;
  int64_t max_output_bytes = int64_t{16} << 20;
  int max_eval_depth = 1600;  // nested nodes under evaluation, over all macro calls
  int max_call_depth = 200;   // nested calls of macros and recursive loops
  int max_value_depth = 200;  // nesting of values that are compared, printed or written as JSON
};

// A template or its input is at fault. Thrown inside this folder only; ChatTemplate turns it into a Status.
class Error : public std::runtime_error {
 public:
  enum class Kind { kTemplate, kType, kLookup, kValue, kBudget };  // kType, kLookup, kValue: as Python's exceptions
  Error(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Kind kind() const { return kind_; }
  Status status() const { return kind_ == Kind::kBudget ? resource_exhausted(what()) : invalid_argument(what()); }

 private:
  Kind kind_;
};

inline Error template_error(const std::string& m) { return {Error::Kind::kTemplate, m}; }
inline Error type_error(const std::string& m) { return {Error::Kind::kType, m}; }
inline Error lookup_error(const std::string& m) { return {Error::Kind::kLookup, m}; }
inline Error value_error(const std::string& m) { return {Error::Kind::kValue, m}; }
inline Error budget_error(const std::string& m) { return {Error::Kind::kBudget, m}; }

class Object;

class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits) {}
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  const Limits& limits() const { return limits_; }
  int64_t live_bytes() const { return live_bytes_; }
  int64_t steps() const { return steps_; }

  void spend(int64_t steps) {
    if ((steps_ += steps) > limits_.max_steps) fail_steps();
  }
  void spend_bytes(size_t bytes) { spend(1 + static_cast<int64_t>(bytes / 64)); }
  void spend_chars(size_t bytes) { spend(1 + static_cast<int64_t>(bytes / 8)); }
  void charge(int64_t bytes) {
    if (live_bytes_ + bytes > limits_.max_memory_bytes) fail_memory();
    live_bytes_ += bytes;
  }
  void discharge(int64_t bytes) { live_bytes_ -= bytes; }

  // Makes an object that this heap owns, charged with its own size.
  template <typename T, typename... A>
  T* make(A&&... arguments) {
    constexpr int64_t kBytes = sizeof(T) + kAllocationBytes;
    charge(kBytes);
    T* object = new T(std::forward<A>(arguments)...);
    adopt(object, kBytes);
    return object;
  }

 private:
  friend class Object;
  friend class Value;
  static constexpr int64_t kAllocationBytes = 16;  // what the allocator takes beside
  [[noreturn]] void fail_steps() const;
  [[noreturn]] void fail_memory() const;
  void adopt(Object* object, int64_t bytes);
  void retire(Object* object);  // frees it, and what only it held, without recursion

  Limits limits_;
  int64_t live_bytes_ = 0;
  int64_t steps_ = 0;
  Object* first_ = nullptr;  // all objects, doubly linked
  Object* dead_ = nullptr;   // objects waiting to be freed, linked by next_
  bool draining_ = false;
};

class Object {
 public:
  virtual ~Object() = default;
  virtual void drop_references() {}  // forgets the values it holds; called before all objects are freed
  Heap& heap() const { return *heap_; }
  void grow(int64_t bytes) {  // charges what the object holds beside itself
    heap_->charge(bytes);
    charged_bytes_ += bytes;
  }
  void take_charge(int64_t bytes) { charged_bytes_ += bytes; }  // bytes already charged to the heap

 private:
  friend class Heap;
  friend class Value;
  Heap* heap_ = nullptr;
  Object* previous_ = nullptr;
  Object* next_ = nullptr;
  int64_t charged_bytes_ = 0;
  int64_t references_ = 0;
};

// In an order that has_object(), has_length() and iteration rely on: from kUndefined on objects, up to kRange with a
// length, from kList to kRange with elements.
enum class Type : uint8_t {
  kMissing,  // a variable without a value; never seen by operations
  kNone,
  kBool,
  kInt,
  kFloat,
  kUndefined,
  kString,
  kList,
  kTuple,
  kDict,
  kDictView,
  kRange,
  kIterator,
  kNamespace,
  kLoop,
  kMacro,
  kFunction,
  kCycler,
  kJoiner,
  kScope,  // variables of a frame; never a value that a template sees
};

class Value {
 public:
  Value() = default;  // missing
  static Value none() { return Value(Type::kNone, int64_t{0}); }
  static Value boolean(bool b) { return Value(Type::kBool, int64_t{b}); }
  static Value integer(int64_t i) { return Value(Type::kInt, i); }
  static Value real(double f) {
    Value v;
    v.type_ = Type::kFloat;
    v.f_ = f;
    return v;
  }
  Value(Type type, Object* object) : type_(type), o_(object) { ++o_->references_; }

  Value(const Value& other) : type_(other.type_), i_(other.i_) {
    if (has_object()) ++o_->references_;
  }
  Value(Value&& other) noexcept : type_(other.type_), i_(other.i_) { other.type_ = Type::kMissing; }
  Value& operator=(Value other) noexcept {
    std::swap(type_, other.type_);
    std::swap(i_, other.i_);
    return *this;
  }
  ~Value() {
    if (has_object() && --o_->references_ == 0) o_->heap_->retire(o_);
  }

  Type type() const { return type_; }
  bool is(Type t) const { return type_ == t; }
  bool is_missing() const { return type_ == Type::kMissing; }
  bool is_undefined() const { return type_ == Type::kUndefined; }
  bool is_none() const { return type_ == Type::kNone; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_integral() const { return type_ == Type::kInt || type_ == Type::kBool; }  // Python's bool is an int
  bool is_number() const { return is_integral() || type_ == Type::kFloat; }
  bool is_sequence() const { return type_ == Type::kList || type_ == Type::kTuple; }

  bool as_bool() const { return i_ != 0; }
  int64_t as_int() const { return i_; }
  double as_float() const { return f_; }
  double to_double() const { return type_ == Type::kFloat ? f_ : static_cast<double>(i_); }  // is_number() only
  Object* object() const { return o_; }
  template <typename T>
  T& as() const {
    return *static_cast<T*>(o_);
  }

 private:
  Value(Type type, int64_t i) : type_(type), i_(i) {}
  bool has_object() const { return type_ >= Type::kUndefined; }

  Type type_ = Type::kMissing;
  union {
    int64_t i_ = 0;
    double f_;
    Object* o_;
  };
};

// ---- objects ------------------------------------------------------------------------------------

// A use of it is an error with this message, but for the few things an undefined value may do.
struct Undefined : Object {
  explicit Undefined(std::string m) : message(std::move(m)) {}
  std::string message;
};

// UTF-8, always valid. `markup`: escaped for HTML, or said to be safe; the filter e leaves it as it is.
struct String : Object {
  explicit String(std::string t, bool m = false);
  std::string text;
  bool markup;
  bool ascii;
  bool is_integer = false;  // digits of an integer beyond 64 bits: a number to tests and JSON, text to all else
  int64_t num_chars;        // code points
};

// A list or a tuple (also groupby's named one). Elements are never changed after it is built.
struct List : Object {
  void drop_references() override { items.clear(); }
  void push(Value value) {
    grow(2 * sizeof(Value));
    items.push_back(std::move(value));
  }
  std::vector<Value> items;
  bool grouped = false;  // a groupby tuple: .grouper and .list name its two elements
};

// Insertion-ordered. Keys compare as in Python: 1, 1.0 and True are one key.
struct Dict : Object {
  void drop_references() override { entries.clear(); }
  const Value* find(const Value& key);  // throws kType where the key cannot be hashed
  const Value* find(std::string_view key);
  void set(const Value& key, Value value);
  std::vector<std::pair<Value, Value>> entries;

 private:
  size_t probe(const Value& key, uint64_t hash);  // its place in index_, or a free one
  void rebuild_index();
  std::vector<uint32_t> index_;  // entry number + 1, open addressing; empty while the dict is small
};

struct DictView : Object {
  enum class Kind { kKeys, kValues, kItems };
  DictView(Kind k, Value d) : kind(k), dict(std::move(d)) {}
  void drop_references() override { dict = Value(); }
  Kind kind;
  Value dict;
};

struct Range : Object {
  Range(int64_t a, int64_t b, int64_t s, int64_t n) : start(a), stop(b), step(s), length(n) {}
  int64_t start, stop, step, length;
};

struct Namespace : Object {
  void drop_references() override { attributes = Value(); }
  Value attributes;  // a dict
};

struct Cycler : Object {
  void drop_references() override { items.clear(); }
  std::vector<Value> items;
  size_t position = 0;
};

struct Joiner : Object {
  void drop_references() override { separator = Value(); }
  Value separator;
  bool used = false;
};

class Interpreter;

// Gives one element after another, once. Lazy, as Python's generators.
class Iterator : public Object {
 public:
  virtual bool next(Interpreter& interpreter, Value* out) = 0;  // false: exhausted
  virtual const char* type_name() const { return "generator"; }
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

struct Builtin;

// A global function, or a method bound to its object.
struct Function : Object {
  Function(const Builtin& c, Value s) : code(c), self(std::move(s)) {}
  void drop_references() override { self = Value(); }
  const Builtin& code;
  Value self;
};

// ---- making values ------------------------------------------------------------------------------

Value make_string(Heap& heap, std::string text, bool markup = false);
inline Value make_undefined(Heap& heap, std::string message) {
  return Value(Type::kUndefined, heap.make<Undefined>(std::move(message)));
}
inline Value make_list(List* list) { return Value(Type::kList, list); }
Value make_sequence(Heap& heap, Type type, const std::vector<Value>& items);  // kList or kTuple
inline Value make_items(Heap& heap, const Value& dict) {
  return Value(Type::kDictView, heap.make<DictView>(DictView::Kind::kItems, dict));
}
inline std::string_view text_of(const Value& v) { return v.as<String>().text; }
const char* type_name(const Value& v);  // as Python's type(v).__name__

// Charges bytes to a heap while it lives, for text that is built outside it.
class ScopedCharge {
 public:
  ScopedCharge(Heap& heap, size_t bytes) : heap_(heap), bytes_(static_cast<int64_t>(bytes)) { heap_.charge(bytes_); }
  ~ScopedCharge() { heap_.discharge(bytes_); }
  ScopedCharge(const ScopedCharge&) = delete;
  ScopedCharge& operator=(const ScopedCharge&) = delete;

 private:
  Heap& heap_;
  int64_t bytes_;
};

// Text under construction: every byte is charged before it is stored.
class TextBuilder {
 public:
  explicit TextBuilder(Heap& heap) : heap_(heap) {}
  ~TextBuilder() { heap_.discharge(charged_bytes_); }
  TextBuilder(const TextBuilder&) = delete;
  TextBuilder& operator=(const TextBuilder&) = delete;

  void append(std::string_view text) {
    heap_.spend_bytes(text.size());
    reserve(text.size());
    text_.append(text);
  }
  void append(size_t count, char c) {
    heap_.spend_bytes(count);
    reserve(count);
    text_.append(count, c);
  }
  void push_back(char c) {
    reserve(1);
    text_.push_back(c);
  }
  size_t size() const { return text_.size(); }
  std::string_view view() const { return text_; }
  Heap& heap() const { return heap_; }
  Value finish(bool markup = false);
  std::string release() { return std::move(text_); }

 private:
  void reserve(size_t more);
  Heap& heap_;
  std::string text_;
  int64_t charged_bytes_ = 0;
};

}  // namespace llmb::jinja
