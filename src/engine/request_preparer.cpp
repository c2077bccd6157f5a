#include "engine/request_preparer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/token_rules.h"

namespace llmb {

namespace {

using Tokens = std::variant<std::vector<TokenId>, RequestError>;

// A text that cannot fit is not encoded to see by how much, unless it is to be cut.
Tokens encode(const std::string& text, bool add_special_tokens, bool may_be_cut, const ModelContext& model,
              const char* param) {
  if (!may_be_cut) {
    const PromptBound bound = prompt_bound(model);
    const size_t at_least = bound.num_tokens_at_least(text);
    if (!bound.fits(at_least, text.size())) return text_too_long(bound, at_least, text.size(), param);
  }
  return model.tokenizer->encode(text, add_special_tokens);
}

Tokens tokenize_text(const std::string& text, bool may_be_cut, const ModelContext& model) {
  if (!model.tokenizer)
    return RequestError{"no_tokenizer", "the model directory has no tokenizer; use prompt_token_ids or --tokenizer",
                        "prompt"};
  return encode(text, /*add_special_tokens=*/true, may_be_cut, model, "prompt");
}

Tokens tokenize_messages(const ChatMessages& chat, bool may_be_cut, const ModelContext& model) {
  if (!model.tokenizer)
    return RequestError{"no_tokenizer", "the model directory has no tokenizer; use prompt_token_ids or --tokenizer",
                        "messages"};
  if (!model.chat_template)
    return RequestError{"no_chat_template", "the model has no chat template; use prompt, or give --chat-template",
                        "messages"};
  Result<std::string> text = model.chat_template->render(chat, TextParts::kJoined);
  if (!text.ok()) return RequestError{"template_error", text.status().message(), "messages"};
  // The template writes the special tokens itself.
  return encode(*text, /*add_special_tokens=*/false, may_be_cut, model, "messages");
}

// How many tokens before and after the text's own the tokenizer added.
std::pair<size_t, size_t> special_borders(const std::string& text, const std::vector<TokenId>& tokens,
                                          const Tokenizer& tokenizer) {
  const std::vector<TokenId> plain = tokenizer.encode(text, /*add_special_tokens=*/false);
  for (size_t before = 0; before + plain.size() <= tokens.size(); ++before)
    if (std::equal(plain.begin(), plain.end(), tokens.begin() + before))
      return {before, tokens.size() - plain.size() - before};
  return {0, 0};
}

// The field of the input line that held the prompt.
const char* field_of(const PromptInput& prompt) {
  if (std::holds_alternative<std::string>(prompt)) return "prompt";
  return std::holds_alternative<ChatMessages>(prompt) ? "messages" : "prompt_token_ids";
}

// Takes token ids out of the prompt.
Tokens tokenize(PromptInput* prompt, bool may_be_cut, const ModelContext& model) {
  if (const auto* text = std::get_if<std::string>(prompt)) return tokenize_text(*text, may_be_cut, model);
  if (const auto* chat = std::get_if<ChatMessages>(prompt)) return tokenize_messages(*chat, may_be_cut, model);
  return std::move(std::get<std::vector<TokenId>>(*prompt));
}

// Tokens that stay of a prompt that may be cut. What is over the model's limit makes room for the answer, too.
size_t kept_tokens(size_t size, const GenerationParams& params, int64_t max_model_len) {
  int64_t kept = std::min<int64_t>(size, params.prompt.max_prompt_tokens.value_or(INT32_MAX));
  if (kept < max_model_len) return kept;
  const int32_t wanted = params.stop.max_tokens.value_or(std::max(kDefaultMaxTokens, params.stop.min_tokens));
  return std::max<int64_t>(max_model_len - std::clamp<int64_t>(wanted, 1, std::max<int64_t>(max_model_len / 2, 1)), 0);
}

// Takes tokens out of the text's part. `text` is null where the tokens came without one.
void truncate(TruncateSide side, size_t kept, const std::string* text, const Tokenizer* tokenizer,
              std::vector<TokenId>* tokens) {
  auto [before, after] =
      text != nullptr ? special_borders(*text, *tokens, *tokenizer) : std::pair<size_t, size_t>{0, 0};
  if (before + after >= kept) before = after = 0;
  const auto count = static_cast<std::ptrdiff_t>(tokens->size() - kept);
  const auto first = side == TruncateSide::kLeft ? tokens->begin() + before : tokens->end() - after - count;
  tokens->erase(first, first + count);
}

std::optional<RequestError> check_tokens(const std::vector<TokenId>& tokens, const ModelContext& model,
                                         const char* param) {
  if (tokens.empty()) return RequestError{"empty_prompt", "the prompt has no tokens", param};
  const auto size = static_cast<int64_t>(tokens.size());
  if (size >= model.max_model_len) return prompt_too_long(std::to_string(size), model.max_model_len, param);
  for (const TokenId token : tokens)
    if (token < 0 || token >= model.vocab_size)
      return RequestError{"invalid_value",
                          "token id " + std::to_string(token) + " is outside the model's vocabulary [0, " +
                              std::to_string(model.vocab_size - 1) + "]",
                          param};
  return std::nullopt;
}

RequestError refused_form(const Status& status, const AnswerForm& form) {
  const char* const code = status.code() == StatusCode::kUnsupported         ? "unsupported_form"
                           : status.code() == StatusCode::kResourceExhausted ? "form_too_large"
                                                                             : "invalid_form";
  return {code, form.field + ": " + status.message(), form.field};
}

std::optional<RequestError> set_constraint(const AnswerForm& form, const ModelContext& model, Request* request) {
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

PromptBound prompt_bound(const ModelContext& model) {
  // Hardly a text has so many for each of its tokens, white space and words of unknown characters apart.
  constexpr size_t kMaxBytesPerToken = 64;
  PromptBound bound;
  bound.max_model_len = model.max_model_len;
  if (!model.tokenizer) return bound;
  bound.num_tokens_at_least = [tokenizer = model.tokenizer](std::string_view text) {
    return tokenizer->num_tokens_at_least(text);
  };
  if (model.tokenizer->num_tokens_at_least("x") == 0)
    bound.max_text_bytes = kMaxBytesPerToken * static_cast<size_t>(std::max(model.max_model_len, 1));
  return bound;
}

std::variant<std::shared_ptr<Request>, RequestError> prepare_request(InputRequest input, const ModelContext& model,
                                                                     uint64_t run_seed) {
  const char* const param = field_of(input.prompt);
  Tokens tokens = tokenize(&input.prompt, input.params.prompt.truncate.has_value(), model);
  if (auto* error = std::get_if<RequestError>(&tokens)) return std::move(*error);
  auto& prompt_tokens = std::get<std::vector<TokenId>>(tokens);
  const size_t full_size = prompt_tokens.size();
  if (const auto side = input.params.prompt.truncate)
    if (const size_t kept = kept_tokens(full_size, input.params, model.max_model_len); kept > 0 && kept < full_size)
      truncate(*side, kept, std::get_if<std::string>(&input.prompt), model.tokenizer.get(), &prompt_tokens);
  if (auto error = check_tokens(prompt_tokens, model, param)) return std::move(*error);

  auto request = std::make_shared<Request>();
  if (const auto form = std::exchange(input.params.form, nullptr))
    if (auto error = set_constraint(*form, model, request.get())) return std::move(*error);
  if (TokenRules rules = std::exchange(input.params.token_rules, {}); rules.any())
    if (auto error = add_token_rules(std::move(rules), model, request.get())) return std::move(*error);
  request->line = std::move(input.line);
  request->form = input.form;
  request->id_json = std::move(input.id_json);
  request->input_json = std::move(input.input_json);
  request->model_name = std::move(input.model_name);
  request->params = std::move(input.params);
  request->eos_token_ids = model.eos_token_ids;
  const auto room = static_cast<int32_t>(model.max_model_len - prompt_tokens.size());
  StopParams& stop = request->params.stop;
  const int32_t unset = input.form == ApiForm::kNative ? std::max(kDefaultMaxTokens, stop.min_tokens) : room;
  stop.max_tokens = std::min(stop.max_tokens.value_or(unset), room);
  request->params.sampling.count_choices();
  request->num_truncated_tokens = static_cast<int32_t>(full_size - prompt_tokens.size());
  request->prompt_tokens = std::move(prompt_tokens);
  // A seed of the line makes its result independent of its place in the file.
  const auto& seed = request->params.sampling.seed;
  request->rng = seed ? PhiloxKey{*seed, 0} : PhiloxKey{run_seed, static_cast<uint64_t>(request->line.index)};
  return request;
}

}  // namespace llmb
