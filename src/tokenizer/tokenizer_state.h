// The parts of a loaded tokenizer, for the files that implement it. Others include tokenizer.h.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/added_vocabulary.h"
#include "tokenizer/decoder.h"
#include "tokenizer/model.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/token_bound.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/vocab.h"

namespace llmb {

// Buffers for encoding one text; belong to one thread at a time.
struct EncodeScratch {
  PreTokenizerScratch pre_tokenizer;
  ModelScratch model;
  std::vector<TextSegment> segments, normalized_segments;
  std::string text;
};

// Keeps scratches between calls. Thread-safe; holds as many as were ever in use at once.
class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<EncodeScratch>();
    auto scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<EncodeScratch> scratch) noexcept {
    try {
      std::lock_guard lock(mutex_);
      free_.push_back(std::move(scratch));
    } catch (const std::bad_alloc&) {  // no place to keep it: it is freed
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_;
};

struct Tokenizer::State {
  Vocab vocab;
  AddedVocabulary added;
  std::unique_ptr<Normalizer> normalizer;  // nullptr: none
  PreTokenizer pre_tokenizer;
  std::unique_ptr<Model> model;  // refers to vocab
  PostProcessor post_processor;
  Decoder decoder;
  TokenBound bound;
  std::map<std::string, std::string> special_tokens;
  std::optional<TokenId> bos_id, eos_id;
  TokenId vocab_size = 0;
  std::string kind;
  mutable ScratchPool scratches;

  // The entry as decoding sees it, or nullopt for an unknown id.
  std::optional<std::string_view> piece(TokenId id) const {
    if (const AddedToken* token = added.find(id)) return token->content;
    return vocab.contains(id) ? std::optional(vocab.text(id)) : std::nullopt;
  }
  bool is_special(TokenId id) const {
    const AddedToken* token = added.find(id);
    return token != nullptr && token->special;
  }
};

// tokenizer_config.json and what goes with it; all optional.
struct TokenizerConfig {
  nlohmann::json values = nlohmann::json::object();
  std::vector<AddedToken> added_tokens;              // added_tokens_decoder, by id
  std::map<std::string, AddedToken> special_tokens;  // by name: bos_token, …
  std::optional<bool> add_bos_token, add_eos_token;
};

Result<TokenizerConfig> read_tokenizer_config(const std::string& model_dir);

// The files of a model directory, whichever format they have.
Result<TokenizerFile> read_tokenizer_files(const std::string& model_dir, TokenizerConfig* config);

Status build_tokenizer(TokenizerFile file, const TokenizerConfig& config, Tokenizer::State* state);

}  // namespace llmb
