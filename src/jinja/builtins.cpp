#include "jinja/builtins.h"

#include <algorithm>
#include <array>

#include "jinja/interpreter.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

struct Parameter {
  std::string_view name;
  bool is_required = false;
};

// Takes the next one from the front of a list.
Parameter take_parameter(std::string_view* list) {
  const size_t end = std::min(list->find(' '), list->size());
  const bool is_required = (*list)[end - 1] == '!';
  const Parameter parameter = {list->substr(0, end - is_required), is_required};
  list->remove_prefix(std::min(end + 1, list->size()));
  return parameter;
}

}  // namespace

Call::Call(const Builtin& builtin, Interpreter& interpreter, const Value& v, Arguments& arguments)
    : in(interpreter), heap(interpreter.heap()), self(v), all(arguments), name_(builtin.name) {
  if (builtin.parameters == nullptr) return;
  const auto fail = [&](const std::string& message) { throw type_error(std::string(name_) + "() " + message); };
  std::array<Parameter, kMaxParameters> parameters;
  size_t count = 0;
  for (std::string_view list = builtin.parameters; !list.empty();) parameters[count++] = take_parameter(&list);
  if (all.positional.size() > count) {
    fail("takes at most " + std::to_string(count) + " argument(s), " + std::to_string(all.positional.size()) +
         " given");
  }
  for (size_t i = 0; i < all.positional.size(); ++i) values_[i] = &all.positional[i];
  for (const auto& [keyword, value] : all.keyword) {
    size_t i = 0;
    while (i < count && keyword != parameters[i].name) ++i;
    if (i == count) fail("got an unexpected keyword argument " + repr_text(keyword));
    if (values_[i] != nullptr) fail("got multiple values for argument " + repr_text(keyword));
    values_[i] = &value;
  }
  for (size_t i = 0; i < count; ++i)
    if (parameters[i].is_required && values_[i] == nullptr)
      fail("misses its argument '" + std::string(parameters[i].name) + "'");
}

int64_t Call::integer(size_t i, int64_t otherwise) const { return given(i) ? to_index(*values_[i], name_) : otherwise; }

std::string_view Call::text(size_t i) const {
  require_defined(*values_[i]);
  if (!values_[i]->is_string())
    throw type_error(std::string(name_) + "() needs a string, not " + type_name(*values_[i]));
  return text_of(*values_[i]);
}

Value invoke(const Builtin& builtin, Interpreter& interpreter, const Value& self, Arguments& arguments) {
  Call call(builtin, interpreter, self, arguments);
  return builtin.code(call);
}

const Builtin* find_filter(std::string_view name) {
  const Builtin* found = find_text_filter(name);
  return found != nullptr ? found : find_sequence_filter(name);
}

}  // namespace llmb::jinja
