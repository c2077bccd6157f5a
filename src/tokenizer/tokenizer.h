// Text to token ids and back, exactly as Hugging Face `tokenizers` does it for the same files.
// Immutable after load(); every const method is thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/types.h"

namespace llmb {

// Two texts as one list of ids.
struct TokenPair {
  std::vector<TokenId> tokens;
  int32_t second_text = INT32_MAX;  // where token types change from 0 to 1; INT32_MAX: nowhere
  int32_t num_cut = 0;              // tokens of the texts that were left out
};

// Invariants:
//  1. Every id that encode() returns is in [0, vocab_size()).
//  2. decode(), token_text() and the special token strings are valid UTF-8, whatever the ids and the files.
//  3. A component that is not built is refused at load, by its name.
class Tokenizer {
 public:
  // Reads a model directory: tokenizer.json, else vocab.json with merges.txt, tokenizer.model or *.tiktoken; and beside
  // it tokenizer_config.json and special_tokens_map.json. Or a GGUF file.
  static Result<std::unique_ptr<Tokenizer>> load(const std::string& model_dir);
  ~Tokenizer();

  // `text` is valid UTF-8. Added tokens inside the text are recognised. `add_special_tokens` adds what the
  // post-processor adds to one sequence (usually the beginning-of-sequence token).
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const;

  // As the post-processor joins two texts. Of more than max_tokens tokens the longer text's are left out first: the last
  // ones, or with cuts_left the first ones. nullopt: the post-processor joins none.
  std::optional<TokenPair> encode_pair(std::string_view first, std::string_view second, int64_t max_tokens,
                                       bool cuts_left) const;

  // No encoding of `text` has fewer tokens: tells, without encoding it, of a text that cannot fit. 0 where nothing is
  // known of the tokenizer.
  size_t num_tokens_at_least(std::string_view text) const;

  // Unknown ids are skipped. Incomplete bytes become U+FFFD. No clean-up of spaces.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  std::optional<TokenId> token_to_id(std::string_view token) const;
  std::string token_text(
      TokenId id) const;  // what the token reads as by itself, leading space kept; "" for an unknown id
  // The bytes it contributes: half a character is possible. is_first: to the beginning of a text.
  std::string token_bytes(TokenId id, bool is_first = false) const;
  std::string token_piece(TokenId id) const;  // the entry as the vocabulary spells it; "" for an unknown id
  bool is_special(TokenId id) const;
  int32_t vocab_size() const;  // highest id + 1
  std::string kind() const;    // for people: "BPE (byte-level)", "Unigram", …

  std::optional<TokenId> bos_token_id() const;
  std::optional<TokenId> eos_token_id() const;
  std::string bos_token() const;  // "" where the model has none
  std::string eos_token() const;
  // bos_token, eos_token, unk_token, pad_token, … of tokenizer_config.json, for chat templates.
  const std::map<std::string, std::string>& special_tokens() const;

  struct State;  // tokenizer_state.h

 private:
  friend class Detokenizer;
  explicit Tokenizer(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

}  // namespace llmb
