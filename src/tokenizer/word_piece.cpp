// WordPiece (Wu et al., "Google's Neural Machine Translation System", 2016, as BERT uses it): the longest entry that
// begins the word, then the longest that continues it, and so on; a word that cannot be covered is unknown. And
// WordLevel: a word is an entry or unknown.
#include "base/log.h"
#include "text/unicode.h"
#include "tokenizer/model.h"
#include "tokenizer/token_trie.h"

namespace llmb {

namespace {

class WordPiece final : public Model {
 public:
  WordPiece(const Vocab& vocab, std::string_view prefix, TokenId unk, size_t max_chars)
      : unk_(unk), max_chars_(max_chars) {
    for (TokenId id = 0; id < vocab.size(); ++id) {
      if (vocab.contains(id) && !vocab.text(id).empty()) trie_.add(vocab.text(id), id);
    }
    for (const char c : prefix) {
      if (inner_root_ != TokenTrie::kNone) inner_root_ = trie_.step(inner_root_, static_cast<uint8_t>(c));
    }
  }

  void tokenize(std::string_view word, ModelScratch&, std::vector<TokenId>* out) const override {
    size_t num_chars = 0;
    for (size_t i = 0; i < word.size(); i += utf8_length(word[i])) ++num_chars;
    const size_t before = out->size();
    if (num_chars <= max_chars_ && cover(word, out)) return;
    out->resize(before);
    out->push_back(unk_);
  }

 private:
  bool cover(std::string_view word, std::vector<TokenId>* out) const {
    for (size_t begin = 0; begin < word.size();) {
      uint32_t node = begin == 0 ? TokenTrie::kRoot : inner_root_;
      size_t best_end = begin;
      TokenId best = -1;
      for (size_t end = begin; end < word.size() && node != TokenTrie::kNone;) {
        node = trie_.step(node, static_cast<uint8_t>(word[end]));
        ++end;
        if (node == TokenTrie::kNone || trie_.id(node) < 0) continue;
        best = trie_.id(node);
        best_end = end;
      }
      if (best < 0) return false;
      out->push_back(best);
      begin = best_end;
    }
    return true;
  }

  TokenTrie trie_;
  uint32_t inner_root_ = TokenTrie::kRoot;  // behind the continuing prefix
  TokenId unk_;
  size_t max_chars_;
};

class WordLevel final : public Model {
 public:
  WordLevel(const Vocab& vocab, TokenId unk) : vocab_(vocab), unk_(unk) {}
  void tokenize(std::string_view word, ModelScratch&, std::vector<TokenId>* out) const override {
    out->push_back(vocab_.find(word).value_or(unk_));
  }

 private:
  const Vocab& vocab_;
  TokenId unk_;
};

Result<TokenId> find_unk(const TokenizerFile& file, const Vocab& vocab, const char* default_value) {
  LLMB_ASSIGN_OR_RETURN(const auto name, json_string(file.model, "unk_token", default_value));
  const auto id = vocab.find(name);
  if (!id) return data_loss("unk_token \"" + escape_control(name) + "\" is not in the vocabulary");
  return *id;
}

}  // namespace

Result<std::unique_ptr<Model>> make_word_piece(const TokenizerFile& file, const Vocab& vocab) {
  const auto unk = find_unk(file, vocab, "[UNK]");
  const auto prefix = json_string(file.model, "continuing_subword_prefix", "##");
  const auto max_chars = json_int(file.model, "max_input_chars_per_word", 100);
  if (!unk.ok()) return unk.status().with_context("model WordPiece");
  if (!prefix.ok()) return prefix.status().with_context("model WordPiece");
  if (!max_chars.ok()) return max_chars.status().with_context("model WordPiece");
  if (*max_chars < 0 || *max_chars > 4096) {
    return unsupported("model WordPiece: max_input_chars_per_word is not in 0 to 4096");
  }
  return std::unique_ptr<Model>(std::make_unique<WordPiece>(vocab, *prefix, *unk, static_cast<size_t>(*max_chars)));
}

Result<std::unique_ptr<Model>> make_word_level(const TokenizerFile& file, const Vocab& vocab) {
  const auto unk = find_unk(file, vocab, "<unk>");
  if (!unk.ok()) return unk.status().with_context("model WordLevel");
  return std::unique_ptr<Model>(std::make_unique<WordLevel>(vocab, *unk));
}

}  // namespace llmb
