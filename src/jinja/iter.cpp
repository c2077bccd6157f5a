#include "jinja/iter.h"

#include "jinja/interpreter.h"
#include "jinja/ops.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

// Element i of a container that does not change, forwards or backwards.
class IndexIterator final : public Iterator {
 public:
  IndexIterator(Value container, int64_t length, bool backwards)
      : container_(std::move(container)), length_(length), backwards_(backwards) {}
  void drop_references() override {
    container_ = Value();
    length_ = 0;
  }
  bool next(Interpreter&, Value* out) override {
    if (position_ >= length_) return false;
    *out = element(backwards_ ? length_ - 1 - position_ : position_);
    ++position_;
    return true;
  }
  const char* type_name() const override { return backwards_ ? "reversed" : "iterator"; }

 private:
  Value element(int64_t i) const {
    switch (container_.type()) {
      case Type::kList:
      case Type::kTuple:
        return container_.as<List>().items[static_cast<size_t>(i)];
      case Type::kRange: {
        const auto& r = container_.as<Range>();
        return Value::integer(r.start + i * r.step);
      }
      case Type::kDict:
        return container_.as<Dict>().entries[static_cast<size_t>(i)].first;
      default:
        break;
    }
    const auto& view = container_.as<DictView>();
    const auto& [key, value] = view.dict.as<Dict>().entries[static_cast<size_t>(i)];
    if (view.kind == DictView::Kind::kKeys) return key;
    if (view.kind == DictView::Kind::kValues) return value;
    return make_sequence(heap(), Type::kTuple, {key, value});
  }

  Value container_;
  int64_t length_;
  bool backwards_;
  int64_t position_ = 0;
};

class CharIterator final : public Iterator {
 public:
  explicit CharIterator(Value string) : string_(std::move(string)) {}
  void drop_references() override { string_ = Value(); }
  bool next(Interpreter&, Value* out) override {
    if (!string_.is_string() || at_ >= text_of(string_).size()) return false;
    const size_t begin = at_;
    next_char(text_of(string_), &at_);
    *out = make_string(heap(), std::string(text_of(string_).substr(begin, at_ - begin)));
    return true;
  }
  const char* type_name() const override { return "str_iterator"; }

 private:
  Value string_;
  size_t at_ = 0;
};

class EmptyIterator final : public Iterator {
 public:
  bool next(Interpreter&, Value*) override { return false; }
};

bool has_elements(const Value& v) { return v.type() >= Type::kList && v.type() <= Type::kRange; }

}  // namespace

Heap& heap_of(Interpreter& interpreter) { return interpreter.heap(); }

bool is_iterable(const Value& v) {
  return has_elements(v) || v.is_string() || v.is_undefined() || v.is(Type::kIterator) || v.is(Type::kLoop);
}

Value make_iterator(Interpreter& interpreter, const Value& v) {
  Heap& heap = interpreter.heap();
  if (v.is(Type::kIterator)) return v;
  if (has_elements(v)) return Value(Type::kIterator, heap.make<IndexIterator>(v, length_of(v), false));
  if (v.is_string()) return Value(Type::kIterator, heap.make<CharIterator>(v));
  if (v.is_undefined()) return Value(Type::kIterator, heap.make<EmptyIterator>());
  throw type_error("'" + std::string(type_name(v)) + "' object is not iterable");
}

Value make_reversed(Interpreter& interpreter, const Value& v) {
  Heap& heap = interpreter.heap();
  if (has_elements(v)) return Value(Type::kIterator, heap.make<IndexIterator>(v, length_of(v), true));
  if (v.is_undefined()) return Value(Type::kIterator, heap.make<EmptyIterator>());
  throw type_error("'" + std::string(type_name(v)) + "' object is not reversible");
}

bool advance(Interpreter& interpreter, const Value& iterator, Value* out) {
  const DepthGuard guard(interpreter);
  return iterator.as<Iterator>().next(interpreter, out);
}

Value to_list(Interpreter& interpreter, const Value& v) {
  auto* list = interpreter.heap().make<List>();
  const Value result = make_list(list);
  for_each(interpreter, v, [&](const Value& element) {
    list->push(element);
    return true;
  });
  return result;
}

}  // namespace llmb::jinja
