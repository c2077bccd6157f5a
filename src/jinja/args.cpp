#include "jinja/args.h"

#include "jinja/text.h"

namespace llmb::jinja {

BoundArguments::BoundArguments(const char* function, const Arguments& arguments,
                               std::initializer_list<const char*> parameters, size_t num_required)
    : function_(function), values_(parameters.size(), nullptr) {
  const std::string name = std::string(function) + "()";
  if (arguments.positional.size() > parameters.size()) {
    throw type_error(name + " takes at most " + std::to_string(parameters.size()) + " argument(s), " +
                     std::to_string(arguments.positional.size()) + " given");
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [keyword, value] : arguments.keyword) {
    size_t i = 0;
    while (i < parameters.size() && keyword != parameters.begin()[i]) ++i;
    if (i == parameters.size()) throw type_error(name + " got an unexpected keyword argument " + repr_text(keyword));
    if (values_[i] != nullptr) throw type_error(name + " got multiple values for argument " + repr_text(keyword));
    values_[i] = &value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (values_[i] == nullptr) throw type_error(name + " misses its argument '" + parameters.begin()[i] + "'");
  }
}

int64_t BoundArguments::integer(size_t i, int64_t otherwise) const {
  return given(i) ? to_index(*values_[i], function_) : otherwise;
}

std::string_view BoundArguments::text(size_t i) const {
  require_defined(*values_[i]);
  if (!values_[i]->is_string()) {
    throw type_error(std::string(function_) + "() needs a string, not " + type_name(*values_[i]));
  }
  return text_of(*values_[i]);
}

}  // namespace llmb::jinja
