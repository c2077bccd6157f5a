#include "engine/request_preparer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "chat/forced_calls.h"
#include "chat/reasoning.h"
#include "engine/answer_constraint.h"
#include "engine/given_answers.h"
#include "engine/prompt_pairs.h"

namespace llmb {

namespace {

using Tokens = std::variant<std::vector<TokenId>, RequestError>;

// A text that cannot fit is not encoded to see by how much, unless it is to be cut.
Tokens encode(const std::string& text, bool add_special_tokens, bool may_be_cut, const ModelContext& model,
              const std::string& param) {
  if (!may_be_cut) {
    const PromptBound bound = prompt_bound(model);
    const size_t at_least = bound.num_tokens_at_least(text);
    if (!bound.fits(at_least, text.size())) return text_too_long(bound, at_least, text.size(), param);
  }
  return model.tokenizer->encode(text, add_special_tokens);
}

Tokens tokenize_text(const std::string& text, bool may_be_cut, const ModelContext& model, const std::string& field) {
  if (!model.tokenizer)
    return RequestError{"no_tokenizer", "the model directory has no tokenizer; use prompt_token_ids or --tokenizer",
                        field};
  return encode(text, /*add_special_tokens=*/true, may_be_cut, model, field);
}

Tokens tokenize_messages(const ChatMessages& chat, bool may_be_cut, const ModelContext& model,
                         PromptReasoning* reasoning, PromptText* rendered) {
  if (!model.tokenizer)
    return RequestError{"no_tokenizer", "the model directory has no tokenizer; use prompt_token_ids or --tokenizer",
                        "messages"};
  if (!model.chat_template)
    return RequestError{"no_chat_template", "the model has no chat template; use prompt, or give --chat-template",
                        "messages"};
  ChatMessages with_effort;
  if (!chat.reasoning_effort.empty()) {
    with_effort = chat;
    if (!model.chat_template->set_effort(&with_effort))
      return RequestError{"unsupported_field", "reasoning_effort: the model's chat template has no variable for it",
                          "reasoning_effort"};
  }
  Result<std::string> text =
      model.chat_template->render(chat.reasoning_effort.empty() ? chat : with_effort, TextParts::kJoined);
  if (!text.ok()) return RequestError{"template_error", text.status().message(), "messages"};
  if (opens_reasoning(*text, model.formats.reasoning)) *reasoning = PromptReasoning::kOpen;
  else if (closes_reasoning(*text, model.formats.reasoning)) *reasoning = PromptReasoning::kClosed;
  // The template writes the special tokens itself.
  Tokens tokens = encode(*text, /*add_special_tokens=*/false, may_be_cut, model, "messages");
  *rendered = {std::move(*text), /*adds_special_tokens=*/false};
  return tokens;
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

// Takes token ids out of the prompt. Sets how it ends, and the text of messages.
Tokens tokenize(PromptInput* prompt, bool may_be_cut, const ModelContext& model, const std::string& field,
                PromptReasoning* reasoning, PromptText* rendered) {
  if (const auto* text = std::get_if<std::string>(prompt)) return tokenize_text(*text, may_be_cut, model, field);
  if (const auto* chat = std::get_if<ChatMessages>(prompt))
    return tokenize_messages(*chat, may_be_cut, model, reasoning, rendered);
  return std::move(std::get<std::vector<TokenId>>(*prompt));
}

// Tokens that stay of a prompt that may be cut. What is over the model's limit makes room for the answer, too.
size_t kept_tokens(size_t size, const GenerationParams& params, const ModelContext& model) {
  const int64_t kept = std::min<int64_t>(size, params.prompt.max_prompt_tokens.value_or(INT32_MAX));
  const int64_t max_model_len = model.max_model_len;
  if (model.is_indivisible) return std::min(kept, max_model_len);
  if (kept < max_model_len) return kept;
  if (params.task != Task::kGenerate && params.score.options.empty()) return std::max<int64_t>(max_model_len - 1, 0);
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

// A prompt of tokens is shown as its text.
std::string echo_of(const PromptInput& prompt, const std::vector<TokenId>& tokens, const ModelContext& model) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  return model.tokenizer == nullptr ? std::string() : model.tokenizer->decode(tokens, /*skip_special_tokens=*/false);
}

AnswerSplit split_of(const InputRequest& input, bool opens_reasoning, const ModelContext& model) {
  AnswerSplit split;
  if (input.form != ApiForm::kOpenAiChat && input.form != ApiForm::kOpenAiResponses) return split;
  const auto& chat = std::get<ChatMessages>(input.prompt);
  split.formats = model.formats;
  if (chat.tools_json.empty()) split.formats.calls = ToolCallFormat::kNone;
  else split.tool_names = tool_names(chat.tools_json);
  split.starts_in_reasoning = opens_reasoning;
  return split;
}

// Sets the request's adapter.
std::optional<RequestError> find_adapter(const InputRequest& input, const ModelContext& model, Request* request) {
  if (!input.adapter || input.adapter->empty()) return std::nullopt;
  const std::string& name = *input.adapter;
  const bool is_model = input.form != ApiForm::kNative && name == input.model_name;
  const std::optional<int32_t> id = model.adapters ? model.adapters->find(name) : std::nullopt;
  if (!id && is_model)
    return RequestError{"unknown_model",
                        "model \"" + name + "\" is neither the model (--served-model-name) nor an adapter", "model"};
  if (!id)
    return RequestError{"unknown_adapter",
                        "adapter \"" + name +
                            "\" is not known; name its folder with --adapter NAME=DIR, or the folder "
                            "that holds it with --adapter-dir",
                        "adapter"};
  if (const Status status = model.adapters->prepare(*id); !status.ok())
    return RequestError{"invalid_adapter", "adapter \"" + name + "\": " + status.message(),
                        is_model ? "model" : "adapter"};
  request->adapter = *id;
  return std::nullopt;
}

// The prompt alone counts. One token is drawn behind it, or a vector taken, and not shown.
void ask_for_no_answer(ApiForm form, GenerationParams* params) {
  params->sampling = SamplingParams();
  params->sampling.temperature = 0;
  params->stop = StopParams();
  params->stop.max_tokens = 1;
  params->stop.ignore_eos = true;
  params->form = nullptr;
  params->token_rules = {};
  if (params->task != Task::kScore || !params->score.options.empty()) return;
  params->score.hides_details = form == ApiForm::kNative && !params->score.prompt_logprobs;
  if (!params->score.prompt_logprobs) params->score.prompt_logprobs = 0;
}

// Only the prompt's text is left in it. first: null, or the text that it is paired with.
std::optional<RequestError> prepare_prompt(PromptInput* prompt, const std::string* first, const GenerationParams& params,
                                           const ModelContext& model, const std::string& field,
                                           PreparedPrompt* prepared) {
  if (first != nullptr) return prepare_pair(*first, *prompt, params, model, field, prepared);
  Tokens encoded =
      tokenize(prompt, params.prompt.truncate.has_value(), model, field, &prepared->reasoning, &prepared->text);
  if (auto* error = std::get_if<RequestError>(&encoded)) return std::move(*error);
  std::vector<TokenId>& tokens = prepared->tokens = std::move(std::get<std::vector<TokenId>>(encoded));
  const size_t full_size = tokens.size();
  if (const auto side = params.prompt.truncate)
    if (const size_t kept = kept_tokens(full_size, params, model); kept > 0 && kept < full_size)
      truncate(*side, kept, std::get_if<std::string>(prompt), model.tokenizer.get(), &tokens);
  prepared->num_cut = static_cast<int32_t>(full_size - tokens.size());
  return check_tokens(tokens, model, field);
}

// The text that prompt `index` of the line is paired with; null: none.
const std::string* first_text(const InputRequest& input, size_t index) {
  if (input.first_texts.empty()) return nullptr;
  return &input.first_texts[input.first_texts.size() == 1 ? 0 : index];
}

// The field of the line that holds a prompt, for messages.
std::string name_of_prompt(const InputRequest& input, size_t index) {
  const std::string place = "[" + std::to_string(index) + "]";
  if (input.params.classify.pairs == TextPairs::kRerank) return "documents" + place;
  if (input.params.classify.pairs == TextPairs::kScore) return input.more_prompts.empty() ? "text_2" : "text_2" + place;
  if (input.params.embed.is_list) return "input" + place;
  return input.form == ApiForm::kOpenAiEmbedding || input.form == ApiForm::kClassify ? "input" : field_of(input.prompt);
}

// A part for each of the line's prompts; the request has the first one's tokens already.
std::optional<RequestError> add_parts(InputRequest& input, const ModelContext& model, Request* request) {
  const auto add = [&](std::vector<TokenId> tokens, int32_t second_text, std::string echo_text) {
    auto part = std::make_shared<Request>();
    part->prompt_tokens = std::move(tokens);
    part->second_text = second_text;
    part->echo_text = std::move(echo_text);
    part->params = request->params;
    part->eos_token_ids = request->eos_token_ids;
    part->rng = request->rng;
    part->adapter = request->adapter;
    part->is_indivisible = request->is_indivisible;
    request->parts.push_back(std::move(part));
  };
  add(request->prompt_tokens, request->second_text, request->echo_text);
  for (PromptInput& prompt : input.more_prompts) {
    PreparedPrompt prepared;
    const size_t index = request->parts.size();
    const std::string name = name_of_prompt(input, index);
    if (auto error = prepare_prompt(&prompt, first_text(input, index), request->params, model, name, &prepared)) {
      error->message = name + ": " + error->message;
      return error;
    }
    request->num_truncated_tokens += prepared.num_cut;
    std::string echo = request->params.output.echo ? echo_of(prompt, prepared.tokens, model) : std::string();
    add(std::move(prepared.tokens), prepared.second_text, std::move(echo));
  }
  request->params.sampling.num_choices = request->params.sampling.n = static_cast<int32_t>(request->parts.size());
  return std::nullopt;
}

}  // namespace

std::variant<std::shared_ptr<Request>, RequestError> prepare_request(InputRequest input, const ModelContext& model,
                                                                     uint64_t run_seed) {
  PreparedPrompt prepared;
  const std::string name = name_of_prompt(input, 0);
  if (auto error = prepare_prompt(&input.prompt, first_text(input, 0), input.params, model, name, &prepared)) {
    if (!input.more_prompts.empty()) error->message = name + ": " + error->message;
    return std::move(*error);
  }
  auto& [prompt_tokens, second_text, num_cut, reasoning, prompt_text] = prepared;

  auto request = std::make_shared<Request>();
  if (auto error = find_adapter(input, model, request.get())) return std::move(*error);
  std::string echo_text = input.params.output.echo ? echo_of(input.prompt, prompt_tokens, model) : std::string();
  const bool is_scored = !input.params.score.options.empty();
  if (input.params.task != Task::kGenerate) ask_for_no_answer(input.form, &input.params);
  else if (!is_scored)
    if (auto error = set_constraint(&input, reasoning, model, request.get())) return std::move(*error);
  request->split = split_of(input, reasoning == PromptReasoning::kOpen, model);
  request->line = std::move(input.line);
  request->form = input.form;
  request->id_json = std::move(input.id_json);
  request->input_json = std::move(input.input_json);
  request->echo_text = std::move(echo_text);
  request->settings_json = std::move(input.settings_json);
  request->model_name = std::move(input.model_name);
  request->params = std::move(input.params);
  request->eos_token_ids = model.eos_token_ids;
  request->is_indivisible = model.is_indivisible;
  const auto room = std::max(1, static_cast<int32_t>(model.max_model_len - prompt_tokens.size()));
  StopParams& stop = request->params.stop;
  const int32_t unset = input.form == ApiForm::kNative ? std::max(kDefaultMaxTokens, stop.min_tokens) : room;
  stop.max_tokens = std::min(stop.max_tokens.value_or(unset), room);
  request->params.sampling.count_choices();
  request->num_truncated_tokens = num_cut;
  if (num_cut > 0 && request->params.output.echo && request->params.sampling.num_logprobs)
    return RequestError{"unsupported_field", "echo: beside logprobs the prompt must be whole, and tokens of it were cut",
                        "echo"};
  request->prompt_tokens = std::move(prompt_tokens);
  request->second_text = second_text;
  if (is_scored) {
    if (auto* text = std::get_if<std::string>(&input.prompt)) prompt_text = {std::move(*text), true};
    const bool is_whole = request->num_truncated_tokens == 0 && !prompt_text.text.empty();
    if (auto error = set_options(is_whole ? &prompt_text : nullptr, model, request.get())) return std::move(*error);
  }
  // A seed of the line makes its result independent of its place in the file.
  const auto& seed = request->params.sampling.seed;
  request->rng = seed ? PhiloxKey{*seed, 0} : PhiloxKey{run_seed, static_cast<uint64_t>(request->line.index)};
  if (!input.more_prompts.empty())
    if (auto error = add_parts(input, model, request.get())) return std::move(*error);
  return request;
}

}  // namespace llmb
