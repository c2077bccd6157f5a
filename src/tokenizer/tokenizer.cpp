#include "tokenizer/tokenizer.h"

namespace llmb {

struct Tokenizer::State {
  std::map<std::string, std::string> special_tokens;
};

Tokenizer::Tokenizer(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& model_dir) {
  return unsupported(model_dir + ": no tokenizer is built");
}
std::vector<TokenId> Tokenizer::encode(std::string_view, bool) const { return {}; }
std::string Tokenizer::decode(std::span<const TokenId>, bool) const { return {}; }
std::optional<TokenId> Tokenizer::token_to_id(std::string_view) const { return std::nullopt; }
std::string Tokenizer::token_text(TokenId) const { return {}; }
std::string Tokenizer::token_bytes(TokenId) const { return {}; }
std::string Tokenizer::token_piece(TokenId) const { return {}; }
bool Tokenizer::is_special(TokenId) const { return false; }
int32_t Tokenizer::vocab_size() const { return 0; }
std::optional<TokenId> Tokenizer::bos_token_id() const { return std::nullopt; }
std::optional<TokenId> Tokenizer::eos_token_id() const { return std::nullopt; }
std::string Tokenizer::bos_token() const { return {}; }
std::string Tokenizer::eos_token() const { return {}; }
const std::map<std::string, std::string>& Tokenizer::special_tokens() const { return state_->special_tokens; }

}  // namespace llmb
