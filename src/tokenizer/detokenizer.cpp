#include "tokenizer/detokenizer.h"

#include <utility>
#include <vector>

#include "tokenizer/tokenizer_state.h"

namespace llmb {

struct Detokenizer::State final : DecoderStep {
  const Tokenizer::State& tokenizer;
  const bool skip_special_tokens;
  std::vector<std::unique_ptr<DecoderStep>> chain;
  std::string text;

  State(const Tokenizer::State& t, bool skip) : tokenizer(t), skip_special_tokens(skip) { restart(); }
  void restart() { chain = tokenizer.decoder.make_chain(this); }
  void push(std::string_view fragment, bool) override { text += fragment; }
};

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : state_(std::make_unique<State>(*tokenizer.state_, skip_special_tokens)) {}
Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string Detokenizer::push(TokenId id) {
  const auto piece = state_->tokenizer.piece(id);
  if (!piece || (state_->skip_special_tokens && state_->tokenizer.is_special(id))) return {};
  state_->chain.front()->push(*piece, true);
  return std::exchange(state_->text, {});
}

std::string Detokenizer::finish() {
  state_->chain.front()->finish();
  state_->restart();
  return std::exchange(state_->text, {});
}

}  // namespace llmb
