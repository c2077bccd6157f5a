#include "jinja/builtins.h"

#include "jinja/interpreter.h"
#include "jinja/text.h"

namespace llmb::jinja {

namespace {

struct Parameter {
  std::string_view name;
  bool is_required;
};

std::vector<Parameter> parse_parameters(std::string_view text) {
  std::vector<Parameter> parameters;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const bool is_required = text[end - 1] == '!';
    parameters.push_back({text.substr(0, end - is_required), is_required});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parameters;
}

}  // namespace

Call::Call(const Builtin& builtin, Interpreter& interpreter, const Value& v, Arguments& arguments)
    : in(interpreter), heap(interpreter.heap()), self(v), all(arguments), name_(builtin.name) {
  if (builtin.parameters == nullptr) return;
  const auto parameters = parse_parameters(builtin.parameters);
  values_.resize(parameters.size(), nullptr);
  const std::string name = std::string(name_) + "()";
  if (all.positional.size() > parameters.size()) {
    throw type_error(name + " takes at most " + std::to_string(parameters.size()) + " argument(s), " +
                     std::to_string(all.positional.size()) + " given");
  }
  for (size_t i = 0; i < all.positional.size(); ++i) values_[i] = &all.positional[i];
  for (const auto& [keyword, value] : all.keyword) {
    size_t i = 0;
    while (i < parameters.size() && keyword != parameters[i].name) ++i;
    if (i == parameters.size()) throw type_error(name + " got an unexpected keyword argument " + repr_text(keyword));
    if (values_[i] != nullptr) throw type_error(name + " got multiple values for argument " + repr_text(keyword));
    values_[i] = &value;
  }
  for (size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].is_required && values_[i] == nullptr)
      throw type_error(name + " misses its argument '" + std::string(parameters[i].name) + "'");
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
