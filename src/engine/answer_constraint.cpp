#include "engine/answer_constraint.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "chat/forced_calls.h"
#include "chat/reasoning.h"
#include "engine/thinking.h"
#include "engine/token_rules.h"

namespace llmb {

namespace {

bool is_split(const InputRequest& input) {
  return input.form == ApiForm::kOpenAiChat || input.form == ApiForm::kOpenAiResponses;
}

RequestError refused_form(const Status& status, const AnswerForm& form) {
  const char* const code = status.code() == StatusCode::kUnsupported         ? "unsupported_form"
                           : status.code() == StatusCode::kResourceExhausted ? "form_too_large"
                                                                             : "invalid_form";
  return {code, form.field + ": " + status.message(), form.field};
}

std::optional<RequestError> set_form(const AnswerForm& form, const ModelContext& model, Request* request) {
  if (model.eos_token_ids.empty())
    return RequestError{"no_eos_token", "the model has no end-of-sequence token, with which an answer in the form of " +
                        form.field + " could end", form.field};
  if (model.constraints == nullptr)
    return RequestError{"no_tokenizer", "the model directory has no tokenizer, which the form of an answer needs",
                        form.field};
  auto compiled = model.constraints->compile(form);
  if (!compiled.ok()) return refused_form(compiled.status(), form);
  if (compiled->is_new) request->constraint_bytes = compiled->constraint->num_bytes();
  request->constraint = std::move(compiled->constraint);
  return std::nullopt;
}

// Calls that the line asks for take the place of a form that all lines have.
std::optional<RequestError> make_call_form(const ModelContext& model, InputRequest* input) {
  const auto* chat = std::get_if<ChatMessages>(&input->prompt);
  if (chat == nullptr || chat->tool_choice == ToolChoice::kAuto) return std::nullopt;
  const auto is_special = [&](const std::string& text) {
    const auto token = model.tokenizer->token_to_id(text);
    return token && model.tokenizer->is_special(*token);
  };
  auto form = forced_call_form(*chat, model.formats.calls, is_special);
  if (!form.ok()) return RequestError{"unsupported_form", "tool_choice: " + form.status().message(), "tool_choice"};
  input->params.form = std::make_shared<const AnswerForm>(std::move(*form));
  return std::nullopt;
}

ThinkingRules thinking_rules(const ModelContext& model, bool has_form, bool has_calls) {
  const ReasoningFormat format = model.formats.reasoning;
  const ReasoningTags tags = reasoning_tags(format);
  const auto tokens = [&](const std::string& text) {
    return text.empty() ? std::vector<TokenId>() : model.tokenizer->encode(text, /*add_special_tokens=*/false);
  };
  const bool is_harmony = format == ReasoningFormat::kHarmony;
  const bool is_think = format == ReasoningFormat::kQwen3 || format == ReasoningFormat::kDeepSeekR1;
  const std::string next = "<|start|>assistant", final_message = next + "<|channel|>final<|message|>";
  ThinkingRules rules;
  rules.begin = tags.begin;
  rules.end = tags.end;
  rules.opening = tokens(rules.begin);
  rules.closing = tokens(rules.end + (is_harmony && !has_form ? final_message : ""));
  rules.heading = tokens(is_harmony ? (has_calls ? next : final_message) : is_think ? "\n\n" : "");
  rules.must_open = rules.may_return = is_harmony;
  return rules;
}

// The token that ends reasoning ends the whole answer, so that nothing can stand behind it.
bool ends_with_reasoning(const ModelContext& model) {
  const std::string end(reasoning_tags(model.formats.reasoning).end);
  const auto token = end.empty() ? std::nullopt : model.tokenizer->token_to_id(end);
  return token && std::count(model.eos_token_ids.begin(), model.eos_token_ids.end(), *token) > 0;
}

// The form of an answer that OpenAI's clients take apart begins behind its reasoning.
std::optional<RequestError> add_thinking(const InputRequest& input, PromptReasoning prompt, bool has_calls,
                                         const ModelContext& model, Request* request) {
  const std::optional<int32_t> budget = input.params.stop.thinking_budget;
  const bool has_form = request->constraint != nullptr;
  const bool may_think = model.formats.reasoning != ReasoningFormat::kNone;
  if (budget && !may_think)
    return RequestError{"unsupported_field",
                        "thinking_token_budget: the model's chat template does not tell how it marks reasoning; name a "
                        "format by --reasoning-parser",
                        "thinking_token_budget"};
  if (!may_think || (has_form ? !is_split(input) || prompt == PromptReasoning::kClosed : !budget)) return std::nullopt;
  if (has_form && ends_with_reasoning(model)) {
    const std::string field = has_calls ? "tool_choice" : "response_format";
    return RequestError{"unsupported_form", field + ": the token that ends the model's reasoning is its end of sequence, so "
                        "that no form could follow", field};
  }
  ThinkingRules rules = thinking_rules(model, has_form, has_calls);
  rules.starts_inside = prompt == PromptReasoning::kOpen;
  rules.budget = budget;
  request->constraint = with_thinking(std::move(request->constraint), std::move(rules), model.constraints->vocabulary());
  return std::nullopt;
}

std::optional<RequestError> add_token_rules(TokenRules rules, const ModelContext& model, Request* request) {
  if (!rules.bad_words.empty() && model.tokenizer == nullptr)
    return RequestError{"no_tokenizer", "the model directory has no tokenizer, which bad_words need", "bad_words"};
  std::vector<std::vector<TokenId>> bad;
  if (!rules.bad_words.empty()) bad = bad_sequences(rules.bad_words, *model.tokenizer);
  request->constraint =
      with_token_rules(std::move(request->constraint), std::move(rules.allowed), std::move(bad), model.vocab_size);
  return std::nullopt;
}

}  // namespace

std::optional<RequestError> set_constraint(InputRequest* input, PromptReasoning prompt, const ModelContext& model,
                                           Request* request) {
  if (auto error = make_call_form(model, input)) return error;
  const auto form = std::exchange(input->params.form, nullptr);
  if (form != nullptr)
    if (auto error = set_form(*form, model, request)) return error;
  const bool has_calls = form != nullptr && form->kind == AnswerForm::Kind::kCalls;
  if (std::holds_alternative<ChatMessages>(input->prompt))
    if (auto error = add_thinking(*input, prompt, has_calls, model, request)) return error;
  if (TokenRules rules = std::exchange(input->params.token_rules, {}); rules.any())
    return add_token_rules(std::move(rules), model, request);
  return std::nullopt;
}

}  // namespace llmb
