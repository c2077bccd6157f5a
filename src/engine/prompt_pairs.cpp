#include "engine/prompt_pairs.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "chat/judge_prompt.h"

namespace llmb {

namespace {

PromptBound length_bound(const ModelContext& model) {
  PromptBound bound;
  bound.max_model_len = model.max_model_len;
  bound.num_reserved = model.is_indivisible ? 0 : 1;
  return bound;
}

size_t most_tokens(const GenerationParams& params, const PromptBound& bound) {
  return static_cast<size_t>(
      std::min<int64_t>(params.prompt.max_prompt_tokens.value_or(INT32_MAX), bound.max_model_len - bound.num_reserved));
}

// Leaves out the document's last tokens, or its first ones, and where these are too few some that stand before them.
// The words behind the document stay.
void cut_document(const JudgePrompt::Text& text, bool cuts_left, size_t most, const Tokenizer& tokenizer,
                  std::vector<TokenId>* tokens) {
  const auto count = [&](size_t begin, size_t size) {
    return tokenizer.encode(std::string_view(text.text).substr(begin, size), /*add_special_tokens=*/false).size();
  };
  const size_t excess = tokens->size() - most;
  size_t begin = most - std::min(most, count(text.document_end, std::string::npos));
  if (cuts_left) begin = std::min(begin, count(0, text.document_begin));
  const auto first = tokens->begin() + static_cast<std::ptrdiff_t>(begin);
  tokens->erase(first, first + static_cast<std::ptrdiff_t>(excess));
}

// A pair that is judged is one prompt.
std::optional<RequestError> prepare_judged(const std::string& query, const std::string& document,
                                           const GenerationParams& params, const ModelContext& model,
                                           const std::string& field, PreparedPrompt* prepared) {
  const Result<JudgePrompt::Text> text = model.judge->text_of(params.classify.instruction, query, document);
  if (!text.ok()) return RequestError{"template_error", text.status().message(), std::nullopt};
  const PromptBound bound = prompt_bound(model);
  const size_t at_least = bound.num_tokens_at_least(text->text);
  if (!params.prompt.truncate && !bound.fits(at_least, text->text.size()))
    return text_too_long(bound, at_least, text->text.size(), field);
  std::vector<TokenId>& tokens = prepared->tokens = model.tokenizer->encode(text->text, /*add_special_tokens=*/false);
  const size_t full_size = tokens.size(), most = most_tokens(params, bound);
  if (params.prompt.truncate && full_size > most)
    cut_document(*text, params.prompt.truncate == TruncateSide::kLeft, most, *model.tokenizer, &tokens);
  prepared->num_cut = static_cast<int32_t>(full_size - tokens.size());
  return check_tokens(tokens, model, field);
}

}  // namespace

PromptBound prompt_bound(const ModelContext& model) {
  // Hardly a text has so many for each of its tokens, white space and words of unknown characters apart.
  constexpr size_t kMaxBytesPerToken = 64;
  PromptBound bound = length_bound(model);
  if (!model.tokenizer) return bound;
  bound.num_tokens_at_least = [tokenizer = model.tokenizer](std::string_view text) {
    return tokenizer->num_tokens_at_least(text);
  };
  if (model.tokenizer->num_tokens_at_least("x") == 0)
    bound.max_text_bytes = kMaxBytesPerToken * static_cast<size_t>(std::max(model.max_model_len, 1));
  return bound;
}

std::optional<RequestError> check_tokens(const std::vector<TokenId>& tokens, const ModelContext& model,
                                         const std::string& field) {
  if (tokens.empty()) return RequestError{"empty_prompt", "the prompt has no tokens", field};
  if (const PromptBound bound = length_bound(model); !bound.fits(tokens.size(), 0))
    return prompt_too_long(bound, std::to_string(tokens.size()), field);
  for (const TokenId token : tokens)
    if (token < 0 || token >= model.vocab_size)
      return RequestError{"invalid_value",
                          "token id " + std::to_string(token) + " is outside the model's vocabulary [0, " +
                              std::to_string(model.vocab_size - 1) + "]",
                          field};
  return std::nullopt;
}

std::optional<RequestError> prepare_pair(const std::string& first, const PromptInput& prompt,
                                         const GenerationParams& params, const ModelContext& model,
                                         const std::string& field, PreparedPrompt* prepared) {
  if (!model.tokenizer)
    return RequestError{"no_tokenizer", "the model directory has no tokenizer; use --tokenizer", std::nullopt};
  const std::string& second = std::get<std::string>(prompt);
  if (model.judge) return prepare_judged(first, second, params, model, field, prepared);
  const PromptBound bound = prompt_bound(model);
  const size_t at_least = bound.num_tokens_at_least(first) + bound.num_tokens_at_least(second);
  const size_t num_bytes = first.size() + second.size();
  if (!params.prompt.truncate && !bound.fits(at_least, num_bytes))
    return text_too_long(bound, at_least, num_bytes, field);
  const bool cuts = params.prompt.truncate.has_value(), cuts_left = params.prompt.truncate == TruncateSide::kLeft;
  const auto most = static_cast<int64_t>(most_tokens(params, bound));
  std::optional<TokenPair> pair = model.tokenizer->encode_pair(first, second, cuts ? most : INT64_MAX, cuts_left);
  if (!pair) return RequestError{"unsupported_field", "the model's tokenizer does not say how two texts are joined",
                                 std::nullopt};
  prepared->tokens = std::move(pair->tokens);
  prepared->second_text = pair->second_text;
  prepared->num_cut = pair->num_cut;
  return check_tokens(prepared->tokens, model, field);
}

}  // namespace llmb
