#include "engine/constraint_compiler.h"

#include <utility>

#include "grammar/answer_forms.h"
#include "grammar/call_forms.h"
#include "grammar/gbnf.h"
#include "grammar/grammar_constraint.h"
#include "grammar/json_schema.h"
#include "grammar/lark.h"

namespace llmb {

namespace {

constexpr size_t kMaxEntries = 1024, kMaxBytes = size_t{128} << 20, kMaxConstraintBytes = size_t{64} << 20;

std::string key_of(const AnswerForm& form) {
  std::string key = std::to_string(static_cast<int>(form.kind)) + (form.is_strict ? "!" : ".") + form.text;
  const auto add = [&key](const std::string& part) { key += std::to_string(part.size()) + ":" + part; };
  for (const std::string& choice : form.choices) add(choice);
  for (const CallFrame& call : form.calls) {
    key += call.is_strict ? "!" : ".";
    for (const std::string& part : {call.before, call.schema, call.after}) add(part);
  }
  add(form.quote);
  return key + (form.has_several_calls ? "+" : "");
}

Result<grammar::Rules> rules_of(const AnswerForm& form) {
  switch (form.kind) {
    case AnswerForm::Kind::kJsonObject:
      return grammar::json_object_rules();
    case AnswerForm::Kind::kJsonSchema:
      return grammar::json_schema_rules(form.text, form.is_strict);
    case AnswerForm::Kind::kRegex:
      return grammar::regex_rules(form.text);
    case AnswerForm::Kind::kChoice:
      return grammar::choice_rules(form.choices);
    case AnswerForm::Kind::kGrammar:
      return grammar::is_lark(form.text) ? grammar::read_lark(form.text) : grammar::read_gbnf(form.text);
    case AnswerForm::Kind::kCalls: {
      std::vector<grammar::CallShape> calls;
      for (const CallFrame& call : form.calls) calls.push_back({call.before, call.schema, call.after, call.is_strict});
      return grammar::call_rules(calls, form.text, form.has_several_calls, form.quote);
    }
  }
  return internal_error("an unknown form of answers");
}

Result<std::shared_ptr<const TokenConstraint>> make(const AnswerForm& form,
                                                    const std::shared_ptr<const grammar::Vocabulary>& vocabulary) {
  LLMB_ASSIGN_OR_RETURN(grammar::Rules rules, rules_of(form));
  LLMB_ASSIGN_OR_RETURN(auto constraint, grammar::make_constraint(std::move(rules), vocabulary));
  if (constraint->num_bytes() > kMaxConstraintBytes) return resource_exhausted("its automaton takes more than 64 MiB");
  return constraint;
}

}  // namespace

std::shared_ptr<const grammar::Vocabulary> ConstraintCompiler::vocabulary() {
  const std::lock_guard lock(mutex_);
  if (vocabulary_ == nullptr) vocabulary_ = make_vocabulary_();
  return vocabulary_;
}

Result<ConstraintCompiler::Compiled> ConstraintCompiler::compile(const AnswerForm& form) {
  std::string key = key_of(form);
  const std::lock_guard lock(mutex_);
  if (const auto known = by_key_.find(key); known != by_key_.end()) {
    entries_.splice(entries_.begin(), entries_, known->second);
    if (!entries_.front().status.ok()) return entries_.front().status;
    return Compiled{entries_.front().constraint, false};
  }
  if (vocabulary_ == nullptr) vocabulary_ = make_vocabulary_();
  auto made = make(form, vocabulary_);
  Entry entry{std::move(key), made.status(), nullptr, 0};
  if (made.ok()) entry.constraint = std::move(*made);
  entry.num_bytes = 2 * entry.key.size() + sizeof entry + (made.ok() ? entry.constraint->num_bytes() : 0);
  num_bytes_ += entry.num_bytes;
  entries_.push_front(std::move(entry));
  by_key_.emplace(entries_.front().key, entries_.begin());
  while (entries_.size() > 1 && (entries_.size() > kMaxEntries || num_bytes_ > kMaxBytes)) {
    num_bytes_ -= entries_.back().num_bytes;
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  if (!entries_.front().status.ok()) return entries_.front().status;
  return Compiled{entries_.front().constraint, true};
}

}  // namespace llmb
