#include "jinja/value.h"

#include <algorithm>

#include "jinja/ops.h"
#include "jinja/text.h"

namespace llmb::jinja {

// ---- heap ---------------------------------------------------------------------------------------

void Heap::fail_steps() const {
  throw budget_error("the chat template ran longer than " + std::to_string(limits_.max_steps) + " steps");
}

void Heap::fail_memory() const {
  throw budget_error("the chat template used more than " + std::to_string(limits_.max_memory_bytes) +
                     " bytes of memory");
}

void Heap::adopt(Object* object, int64_t bytes) {
  object->heap_ = this;
  object->charged_bytes_ += bytes;
  object->next_ = first_;
  if (first_ != nullptr) first_->previous_ = object;
  first_ = object;
}

void Heap::retire(Object* object) {
  if (object->previous_ != nullptr) object->previous_->next_ = object->next_;
  if (object->next_ != nullptr) object->next_->previous_ = object->previous_;
  if (first_ == object) first_ = object->next_;
  object->next_ = dead_;
  dead_ = object;
  if (draining_) return;
  draining_ = true;
  while (dead_ != nullptr) {
    Object* victim = dead_;
    dead_ = victim->next_;
    live_bytes_ -= victim->charged_bytes_;
    delete victim;  // what it held comes back to retire(), which only queues it
  }
  draining_ = false;
}

Heap::~Heap() {
  // Cycles hold the objects that are left. Every object is pinned while all let go of each other.
  for (Object* o = first_; o != nullptr; o = o->next_) ++o->references_;
  for (Object* o = first_; o != nullptr; o = o->next_) o->drop_references();
  while (first_ != nullptr) {
    Object* next = first_->next_;
    delete first_;
    first_ = next;
  }
}

// ---- strings ------------------------------------------------------------------------------------

String::String(std::string t, bool m) : text(std::move(t)), markup(m) {
  num_chars = count_chars(text);
  ascii = num_chars == static_cast<int64_t>(text.size());
}

Value make_string(Heap& heap, std::string text, bool markup) {
  heap.spend_bytes(text.size());
  const auto bytes = static_cast<int64_t>(text.capacity());
  heap.charge(bytes);
  String* string;
  try {
    string = heap.make<String>(std::move(text), markup);
  } catch (...) {
    heap.discharge(bytes);
    throw;
  }
  string->take_charge(bytes);
  return Value(Type::kString, string);
}

void TextBuilder::reserve(size_t more) {
  const size_t needed = text_.size() + more;
  if (needed <= text_.capacity()) return;
  const size_t capacity = std::max(needed, 2 * text_.capacity());
  heap_.charge(static_cast<int64_t>(capacity));
  const int64_t before = charged_bytes_;
  charged_bytes_ += static_cast<int64_t>(capacity);
  text_.reserve(capacity);
  heap_.discharge(before);
  charged_bytes_ -= before;
}

Value TextBuilder::finish(bool markup) {
  heap_.discharge(charged_bytes_);
  charged_bytes_ = 0;
  return make_string(heap_, std::move(text_), markup);
}

Value make_sequence(Heap& heap, Type type, const std::vector<Value>& items) {
  auto* list = heap.make<List>();
  const Value result(type, list);
  for (const Value& item : items) list->push(item);
  return result;
}

// ---- dict ---------------------------------------------------------------------------------------

namespace {
constexpr size_t kMaxScanned = 8;  // entries that a dict without an index may have
}

const Value* Dict::find(std::string_view key) {
  for (size_t i = 0; i < entries.size() && index_.empty(); ++i) {
    const Value& k = entries[i].first;
    if (k.is_string() && text_of(k) == key) return &entries[i].second;
  }
  if (index_.empty()) return nullptr;
  const uint64_t hash = hash_text(key);
  for (size_t at = hash & (index_.size() - 1); index_[at] != 0; at = (at + 1) & (index_.size() - 1)) {
    heap().spend(1);
    const Value& k = entries[index_[at] - 1].first;
    if (k.is_string() && text_of(k) == key) return &entries[index_[at] - 1].second;
  }
  return nullptr;
}

size_t Dict::probe(const Value& key, uint64_t hash) {
  size_t at = hash & (index_.size() - 1);
  while (index_[at] != 0 && !equal(heap(), entries[index_[at] - 1].first, key)) {
    heap().spend(1);
    at = (at + 1) & (index_.size() - 1);
  }
  return at;
}

const Value* Dict::find(const Value& key) {
  const uint64_t hash = hash_value(heap(), key);
  if (!index_.empty()) {
    const size_t at = probe(key, hash);
    return index_[at] == 0 ? nullptr : &entries[index_[at] - 1].second;
  }
  for (auto& [k, v] : entries) {
    if (equal(heap(), k, key)) return &v;
  }
  return nullptr;
}

void Dict::rebuild_index() {
  const size_t size = std::max<size_t>(32, 2 * index_.size());
  grow(static_cast<int64_t>((size - index_.size()) * sizeof(uint32_t)));
  index_.assign(size, 0);
  for (size_t i = 0; i < entries.size(); ++i) {
    size_t at = hash_value(heap(), entries[i].first) & (size - 1);
    while (index_[at] != 0) at = (at + 1) & (size - 1);
    index_[at] = static_cast<uint32_t>(i + 1);
  }
}

void Dict::set(const Value& key, Value value) {
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  grow(2 * sizeof(entries[0]));
  entries.emplace_back(key, std::move(value));
  const bool crowded = index_.empty() ? entries.size() > kMaxScanned : 2 * entries.size() > index_.size();
  if (crowded) {
    rebuild_index();
  } else if (!index_.empty()) {
    index_[probe(key, hash_value(heap(), key))] = static_cast<uint32_t>(entries.size());
  }
}

// ---- names --------------------------------------------------------------------------------------

const char* type_name(const Value& v) {
  if (v.is_string()) return v.as<String>().markup ? "Markup" : "str";
  if (v.is(Type::kIterator)) return v.as<Iterator>().type_name();
  static constexpr const char* kViews[] = {"dict_keys", "dict_values", "dict_items"};
  if (v.is(Type::kDictView)) return kViews[static_cast<size_t>(v.as<DictView>().kind)];
  static constexpr const char* kNames[] = {
      "missing",   "NoneType",    "bool",  "int",      "float",     "Undefined",  // by Type
      "str",       "list",        "tuple", "dict",     "dict view", "range",     "iterator",
      "Namespace", "LoopContext", "Macro", "function", "Cycler",    "Joiner",    "scope"};
  return kNames[static_cast<size_t>(v.type())];
}

}  // namespace llmb::jinja
