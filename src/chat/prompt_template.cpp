#include "chat/prompt_template.h"

#include <set>
#include <utility>

#include "jinja/interpreter.h"
#include "jinja/json.h"
#include "jinja/parser.h"

namespace llmb {

struct PromptTemplate::Parsed {
  std::unique_ptr<jinja::Template> code;
};

PromptTemplate::PromptTemplate(std::unique_ptr<Parsed> parsed) : parsed_(std::move(parsed)) {}
PromptTemplate::~PromptTemplate() = default;

Result<std::unique_ptr<PromptTemplate>> PromptTemplate::parse(std::string_view source) {
  try {
    auto parsed = std::make_unique<Parsed>();
    parsed->code = jinja::parse_template(source);
    return std::unique_ptr<PromptTemplate>(new PromptTemplate(std::move(parsed)));
  } catch (const jinja::Error& e) {
    return e.status();
  }
}

Result<std::string> PromptTemplate::render(std::string_view fields_json) const {
  try {
    jinja::Heap heap{jinja::Limits{}};
    jinja::Interpreter interpreter(*parsed_->code, heap);
    interpreter.refuse_undefined_output();
    const jinja::Value fields = jinja::parse_json(heap, fields_json, "the line");
    if (!fields.is(jinja::Type::kDict)) return invalid_argument("the line is not a JSON object");
    interpreter.set_variable("fields", fields);
    for (const auto& [name, value] : fields.as<jinja::Dict>().entries)
      interpreter.set_variable(std::string(jinja::text_of(name)), value);
    return interpreter.run();
  } catch (const jinja::Error& e) {
    return e.status();
  }
}

std::vector<std::string> PromptTemplate::variables() const {
  std::set<std::string> names;
  for (const jinja::Variable& variable : parsed_->code->block.frame.variables)
    if (variable.load == jinja::Load::kResolve) names.insert(variable.name);
  return {names.begin(), names.end()};
}

}  // namespace llmb
