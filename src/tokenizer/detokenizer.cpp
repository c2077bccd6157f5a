#include "tokenizer/detokenizer.h"

namespace llmb {

struct Detokenizer::State {};

Detokenizer::Detokenizer(const Tokenizer&, bool) : state_(std::make_unique<State>()) {}
Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;
std::string Detokenizer::push(TokenId) { return {}; }
std::string Detokenizer::finish() { return {}; }

}  // namespace llmb
