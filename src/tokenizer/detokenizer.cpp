#include "tokenizer/detokenizer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "text/unicode.h"
#include "tokenizer/tokenizer_state.h"

namespace llmb {

namespace {

bool has_whole_character(std::string_view text) {
  while (text.starts_with(kReplacementUtf8)) text.remove_prefix(kReplacementUtf8.size());
  return !text.empty();
}

// Bytes of the characters with which both begin.
size_t shared_beginning(std::string_view a, std::string_view b) {
  const auto [end, unused] = std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()), b.begin());
  auto size = static_cast<size_t>(end - a.begin());
  const auto is_inside = [&](std::string_view s) {
    return size < s.size() && (static_cast<unsigned char>(s[size]) & 0xC0) == 0x80;
  };
  while (size > 0 && (is_inside(a) || is_inside(b))) --size;
  return size;
}

}  // namespace

struct Detokenizer::State final : DecoderStep {
  const Tokenizer::State& tokenizer;
  const bool skip_special_tokens;
  std::vector<std::unique_ptr<DecoderStep>> chain;
  std::string text;
  std::string context_text;  // the context's, as far as the chain still holds it
  bool at_start = true;
  bool continues_character = false;

  State(const Tokenizer::State& t, bool skip) : tokenizer(t), skip_special_tokens(skip) { restart(); }

  void restart() {
    chain = tokenizer.decoder.make_chain(this);
    context_text.clear();
    at_start = true;
  }

  void push(std::string_view fragment, bool) override { text += fragment; }

  void add(TokenId id) {
    const auto piece = tokenizer.piece(id);
    if (!piece || (skip_special_tokens && tokenizer.is_special(id))) return;
    chain.front()->push(*piece, true);
    at_start = false;
  }

  void add_all(std::span<const TokenId> ids) {
    for (const TokenId id : ids) add(id);
  }

  void follow(std::span<const TokenId> context) {
    if (context.empty()) return;
    const std::span<const TokenId> end = context.last(add_end_of(context));
    State whole(tokenizer, skip_special_tokens);
    whole.add_all(end);
    whole.chain.front()->finish();
    context_text = whole.text.substr(text.size());
    text.clear();
  }

  // Brings the chain into the state that it has after `context`, its text into `text`. A chain that has let a character
  // go has forgotten all before it, so a few tokens from the end are enough as soon as one is in their text. U+FFFD may
  // stand for a character that was cut in front of them. Returns how many tokens were added.
  size_t add_end_of(std::span<const TokenId> context) {
    constexpr size_t kFew = 8;
    for (size_t count = std::min(kFew, context.size());; count = std::min(4 * count, context.size())) {
      restart();
      text.clear();
      add_all(context.last(count));
      if (count == context.size() || has_whole_character(text)) return count;
    }
  }

  // The bytes that have left the chain, without the context's.
  std::string take() {
    std::string out = std::exchange(text, {});
    if (context_text.empty()) return out;
    const size_t shared = shared_beginning(context_text, out);
    context_text.erase(0, shared);
    out.erase(0, shared);
    if (out.empty()) return out;
    continues_character = context_text.starts_with(kReplacementUtf8);
    context_text.clear();
    return out;
  }
};

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens, std::span<const TokenId> context)
    : state_(std::make_unique<State>(*tokenizer.state_, skip_special_tokens)) {
  state_->follow(context);
}
Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string Detokenizer::push(TokenId id) {
  state_->add(id);
  return state_->take();
}

std::string Detokenizer::finish() {
  state_->chain.front()->finish();
  std::string rest = state_->take();
  state_->restart();
  return rest;
}

bool Detokenizer::at_start() const { return state_->at_start; }
bool Detokenizer::continues_character() const { return state_->continues_character; }

}  // namespace llmb
