#include "engine/given_answers.h"

#include <algorithm>
#include <span>
#include <utility>

namespace llmb {

namespace {

class GivenTokens : public TokenConstraint {
 public:
  GivenTokens(std::vector<TokenId> tokens, int32_t vocab_size)
      : tokens_(std::move(tokens)), mask_words_(static_cast<size_t>(vocab_size + 31) / 32) {}

  std::unique_ptr<ConstraintState> start() const override { return std::make_unique<State>(*this, 0); }
  size_t num_bytes() const override { return sizeof *this + tokens_.size() * sizeof(TokenId); }

 private:
  class State : public ConstraintState {
   public:
    State(const GivenTokens& given, size_t next) : given_(given), next_(next) {}

    std::span<const uint32_t> allowed() override {
      mask_.assign(given_.mask_words_, 0);
      if (next_ < given_.tokens_.size()) mask_[given_.tokens_[next_] / 32] |= 1u << given_.tokens_[next_] % 32;
      return mask_;
    }
    void advance(TokenId) override { ++next_; }
    std::unique_ptr<ConstraintState> clone() const override { return std::make_unique<State>(given_, next_); }

   private:
    const GivenTokens& given_;
    size_t next_;
    std::vector<uint32_t> mask_;
  };

  const std::vector<TokenId> tokens_;
  const size_t mask_words_;
};

std::vector<TokenId> tokens_of(const std::string& option, const PromptText* prompt, const Tokenizer& tokenizer,
                               const std::vector<TokenId>& prompt_tokens) {
  if (prompt != nullptr) {
    std::vector<TokenId> both = tokenizer.encode(prompt->text + option, prompt->adds_special_tokens);
    if (both.size() > prompt_tokens.size() && std::equal(prompt_tokens.begin(), prompt_tokens.end(), both.begin()))
      return {both.begin() + static_cast<std::ptrdiff_t>(prompt_tokens.size()), both.end()};
  }
  return tokenizer.encode(option, /*add_special_tokens=*/false);
}

}  // namespace

std::shared_ptr<const TokenConstraint> given_tokens(std::vector<TokenId> tokens, int32_t vocab_size) {
  return std::make_shared<GivenTokens>(std::move(tokens), vocab_size);
}

std::optional<RequestError> set_options(const PromptText* text, const ModelContext& model, Request* request) {
  const std::vector<std::string>& options = request->params.score.options;
  if (!model.tokenizer)
    return RequestError{"no_tokenizer", "the model directory has no tokenizer, which options need", "options"};
  const auto room = static_cast<int64_t>(model.max_model_len) - static_cast<int64_t>(request->prompt_tokens.size());
  size_t longest = 0;
  for (const std::string& option : options) {
    std::vector<TokenId> tokens = tokens_of(option, text, *model.tokenizer, request->prompt_tokens);
    const std::string name = "options[" + std::to_string(request->options.size()) + "]";
    if (tokens.empty()) return RequestError{"empty_option", name + " has no tokens", "options"};
    if (static_cast<int64_t>(tokens.size()) > room)
      return RequestError{"prompt_too_long", "prompt and " + name + " have " +
                          std::to_string(request->prompt_tokens.size() + tokens.size()) + " tokens; the limit is " +
                          std::to_string(model.max_model_len) + " (--max-model-len)", "options"};
    longest = std::max(longest, tokens.size());
    request->options.push_back({tokens, given_tokens(tokens, model.vocab_size)});
  }
  SamplingParams sampling;
  sampling.temperature = 0;
  sampling.num_logprobs = std::max(1, request->params.score.num_logprobs.value_or(0));  // 1: is it the likeliest?
  sampling.n = sampling.num_choices = static_cast<int32_t>(options.size());
  StopParams stop;
  stop.max_tokens = static_cast<int32_t>(longest);
  stop.ignore_eos = true;
  request->params.sampling = std::move(sampling);
  request->params.stop = std::move(stop);
  return std::nullopt;
}

}  // namespace llmb
