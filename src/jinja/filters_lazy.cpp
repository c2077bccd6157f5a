// The filters that give an iterator: map, select, reject, selectattr, rejectattr, unique.
#include <algorithm>

#include "jinja/args.h"
#include "jinja/attribute_path.h"
#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/iter.h"
#include "jinja/methods.h"
#include "jinja/text.h"

namespace llmb::jinja {

AttributePath::AttributePath(Interpreter& in, const Value* attribute) {
  if (attribute == nullptr || attribute->is_none()) return;
  if (!attribute->is_string()) {
    parts_.push_back(*attribute);
    return;
  }
  std::string_view text = text_of(*attribute);
  for (;;) {
    const size_t dot = std::min(text.find('.'), text.size());
    const std::string_view part = text.substr(0, dot);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    const auto value = number ? parse_int(part, 10) : std::nullopt;
    parts_.push_back(value ? Value::integer(*value) : make_string(in.heap(), std::string(part)));
    if (dot == text.size()) return;
    text.remove_prefix(dot + 1);
  }
}

Value AttributePath::of(Interpreter& in, Value item) const {
  for (const Value& part : parts_) {
    item = get_item(in, item, part);
    if (item.is_undefined() && !otherwise_.is_missing()) item = otherwise_;
  }
  if (!fold_case_ || !item.is_string()) return item;
  Arguments none;
  return find_string_method("lower")->call(in, item, none);
}

namespace {

class UniqueIterator final : public Iterator {
 public:
  UniqueIterator(Value source, AttributePath path, Value seen)
      : source_(std::move(source)), path_(std::move(path)), seen_(std::move(seen)) {}
  void drop_references() override {
    source_ = seen_ = Value();
    path_.clear();
  }
  bool next(Interpreter& in, Value* out) override {
    while (advance(in, source_, out)) {
      in.heap().spend(1);
      const Value key = path_.of(in, *out);
      if (seen_.as<Dict>().find(key) != nullptr) continue;
      seen_.as<Dict>().set(key, Value::none());
      return true;
    }
    return false;
  }

 private:
  Value source_;
  AttributePath path_;
  Value seen_;
};

// map, select, reject, selectattr and rejectattr: a filter or test applied to each element, or to its attribute.
class ApplyIterator final : public Iterator {
 public:
  enum class Mode { kMap, kSelect, kReject };
  ApplyIterator(Value source, Mode mode, AttributePath path, NativeFunction function, Arguments arguments)
      : source_(std::move(source)),
        mode_(mode),
        path_(std::move(path)),
        function_(function),
        arguments_(std::move(arguments)) {}
  void drop_references() override {
    source_ = Value();
    path_.clear();
    path_.set_default(Value());
    arguments_ = {};
  }
  bool next(Interpreter& in, Value* out) override {
    while (advance(in, source_, out)) {
      in.heap().spend(1);
      Value v = path_.of(in, *out);
      if (function_ != nullptr) {
        Arguments copy = arguments_;
        v = function_(in, v, copy);
      }
      if (mode_ == Mode::kMap) {
        *out = std::move(v);
        return true;
      }
      if (truthy(v) == (mode_ == Mode::kSelect)) return true;
    }
    return false;
  }

 private:
  Value source_;
  Mode mode_;
  AttributePath path_;
  NativeFunction function_;  // null: the element itself
  Arguments arguments_;
};

Value filter_unique(Interpreter& in, const Value& self, Arguments& a) {
  const BoundArguments b("unique", a, {"case_sensitive", "attribute"});
  AttributePath path(in, b.get(1));
  if (!b.flag(0, false)) path.fold_case();
  const Value seen(Type::kDict, in.heap().make<Dict>());
  return Value(Type::kIterator, in.heap().make<UniqueIterator>(make_iterator(in, self), path, seen));
}

// What a lazy filter makes of a false value, whatever it is.
Value nothing(Interpreter& in) { return make_iterator(in, make_list(in.heap().make<List>())); }

// Takes the name of a filter or test from the arguments.
NativeFunction take_function(Arguments* a, size_t at, bool filter) {
  const Value name = a->positional[at];
  a->positional.erase(a->positional.begin(), a->positional.begin() + static_cast<ptrdiff_t>(at) + 1);
  const NativeFunction function = !name.is_string() ? nullptr
                                  : filter          ? find_filter(text_of(name))
                                                    : find_test(text_of(name));
  if (function == nullptr) {
    throw template_error(std::string("No ") + (filter ? "filter" : "test") + " named " +
                         (name.is_string() ? repr_text(text_of(name)) : std::string(type_name(name))) + ".");
  }
  return function;
}

Value make_lazy(Interpreter& in, Value source, ApplyIterator::Mode mode, const AttributePath& path,
                NativeFunction function, Arguments arguments) {
  const size_t num_arguments = arguments.positional.size() + arguments.keyword.size();
  auto* lazy = in.heap().make<ApplyIterator>(std::move(source), mode, path, function, std::move(arguments));
  const Value result(Type::kIterator, lazy);
  lazy->grow(static_cast<int64_t>(num_arguments * 2 * sizeof(Arguments)));
  return result;
}

Value filter_map(Interpreter& in, const Value& self, Arguments& a) {
  if (!truthy(self)) return nothing(in);
  const Value source = make_iterator(in, self);
  const bool by_attribute = a.positional.empty() && std::any_of(a.keyword.begin(), a.keyword.end(),
                                                                [](const auto& k) { return k.first == "attribute"; });
  if (by_attribute) {
    const BoundArguments b("map", a, {"attribute", "default"});
    AttributePath path(in, b.get(0));
    if (b.given_not_none(1)) path.set_default(b.at(1));
    return make_lazy(in, source, ApplyIterator::Mode::kMap, path, nullptr, {});
  }
  if (a.positional.empty()) throw template_error("map requires a filter argument");
  const NativeFunction function = take_function(&a, 0, true);
  return make_lazy(in, source, ApplyIterator::Mode::kMap, AttributePath(in, nullptr), function, a);
}

template <ApplyIterator::Mode Mode, bool ByAttribute>
Value filter_select(Interpreter& in, const Value& self, Arguments& a) {
  if (!truthy(self)) return nothing(in);
  if (ByAttribute && a.positional.empty()) throw template_error("Missing parameter for attribute name");
  const AttributePath path(in, ByAttribute ? &a.positional[0] : nullptr);
  const Value source = make_iterator(in, self);
  constexpr size_t kTestAt = ByAttribute ? 1 : 0;
  NativeFunction function = nullptr;
  if (a.positional.size() > kTestAt) function = take_function(&a, kTestAt, false);
  return make_lazy(in, source, Mode, path, function, function == nullptr ? Arguments{} : a);
}

using Mode = ApplyIterator::Mode;
constexpr MethodEntry kLazyFilters[] = {
    {"map", filter_map},
    {"reject", filter_select<Mode::kReject, false>},
    {"rejectattr", filter_select<Mode::kReject, true>},
    {"select", filter_select<Mode::kSelect, false>},
    {"selectattr", filter_select<Mode::kSelect, true>},
    {"unique", filter_unique},
};

}  // namespace

NativeFunction find_lazy_filter(std::string_view name) {
  for (const MethodEntry& entry : kLazyFilters) {
    if (name == entry.name) return entry.call;
  }
  return nullptr;
}

}  // namespace llmb::jinja
