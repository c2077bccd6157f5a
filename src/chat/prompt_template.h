// A template of the user's (--template): renders the fields of a line of data to the text of its prompt.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace llmb {

// Immutable after construction; render() may be called from any number of threads. A render uses at most the budgets of
// jinja::Limits, whatever the template and the fields are.
class PromptTemplate {
 public:
  // kInvalidArgument: it does not parse; the message says where.
  static Result<std::unique_ptr<PromptTemplate>> parse(std::string_view source);
  ~PromptTemplate();

  // `fields_json`: an object; each member is a variable, and `fields` is all of them. kInvalidArgument: the template fails
  // or prints a field that the line does not have; kResourceExhausted: a budget.
  Result<std::string> render(std::string_view fields_json) const;

  // Names that it reads and does not set, sorted.
  std::vector<std::string> variables() const;

 private:
  struct Parsed;
  explicit PromptTemplate(std::unique_ptr<Parsed> parsed);
  std::unique_ptr<Parsed> parsed_;
};

}  // namespace llmb
