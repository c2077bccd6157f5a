// The unigram language model: Kudo, "Subword Regularization", ACL 2018. The most probable segmentation of a piece is
// found by dynamic programming over its bytes (Viterbi); scores are sums of log-probabilities in double, left to right.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "text/unicode.h"
#include "tokenizer/model.h"
#include "tokenizer/token_trie.h"

namespace llmb {

namespace {

constexpr double kUnknownPenalty = 10.0;  // below the lowest score, as in sentencepiece
constexpr uint32_t kNoBegin = UINT32_MAX;
constexpr size_t kMaxUnigramTokenBytes = 1024;  // bounds the work per byte of text

class Unigram final : public Model {
 public:
  Unigram(const Vocab& vocab, std::vector<double> scores, TokenId unk, bool byte_fallback)
      : vocab_(vocab), scores_(std::move(scores)), unk_(unk), byte_fallback_(byte_fallback) {
    byte_tokens_ = byte_token_ids(vocab);
    double min_score = std::numeric_limits<double>::infinity();
    for (TokenId id = 0; id < vocab.size(); ++id) {
      trie_.add(vocab.text(id), id);
      min_score = std::min(min_score, scores_[id]);
    }
    unk_score_ = min_score - kUnknownPenalty;
  }

  void tokenize(std::string_view piece, ModelScratch& scratch, std::vector<TokenId>* out) const override {
    const bool cacheable = piece.size() <= PieceCache::kMaxKeyBytes;
    const uint64_t hash = cacheable ? hash_bytes(piece) : 0;
    if (cacheable && scratch.cache.find(piece, hash, out)) return;
    const size_t before = out->size();
    search(piece, scratch);
    read_path(piece, scratch, out);
    if (cacheable) scratch.cache.insert(piece, hash, out->data() + before, out->size() - before);
  }

 private:
  // Fills best_*: for each end of a segment, the best score so far and the segment that ends there.
  void search(std::string_view piece, ModelScratch& scratch) const {
    LLMB_CHECK(piece.size() < kNoBegin);
    scratch.best_scores.assign(piece.size() + 1, 0.0);
    scratch.best_begins.assign(piece.size() + 1, kNoBegin);
    scratch.best_ids.assign(piece.size() + 1, unk_);
    for (size_t begin = 0; begin < piece.size();) {
      const double so_far = scratch.best_scores[begin];
      const size_t char_end = begin + utf8_length(piece[begin]);
      const auto offer = [&](size_t end, double score, TokenId id) {
        if (scratch.best_begins[end] != kNoBegin && !(score > scratch.best_scores[end])) return;
        scratch.best_scores[end] = score;
        scratch.best_begins[end] = static_cast<uint32_t>(begin);
        scratch.best_ids[end] = id;
      };
      bool has_char = false;
      uint32_t node = TokenTrie::kRoot;
      for (size_t end = begin; end < piece.size();) {
        node = trie_.step(node, static_cast<uint8_t>(piece[end]));
        if (node == TokenTrie::kNone) break;
        ++end;
        const TokenId id = trie_.id(node);
        if (id < 0) continue;
        offer(end, scores_[id] + so_far, id);
        has_char |= end == char_end;
      }
      if (!has_char) offer(char_end, unk_score_ + so_far, unk_);
      begin = char_end;
    }
  }

  void read_path(std::string_view piece, ModelScratch& scratch, std::vector<TokenId>* out) const {
    const size_t before = out->size();
    for (size_t end = piece.size(); end > 0;) {
      size_t begin = scratch.best_begins[end];
      TokenId id = scratch.best_ids[end];
      const bool known = id != unk_;
      while (!known && begin > 0 && scratch.best_ids[begin] == unk_) begin = scratch.best_begins[begin];
      if (!known) push_unknown(piece.substr(begin, end - begin), out);
      else out->push_back(id);
      end = begin;
    }
    std::reverse(out->begin() + static_cast<ptrdiff_t>(before), out->end());
  }

  // A run of unknown characters, as one; the ids go in backwards. The run may be an entry when joined.
  void push_unknown(std::string_view run, std::vector<TokenId>* out) const {
    if (const auto id = vocab_.find(run)) {
      out->push_back(*id);
      return;
    }
    bool all_bytes = byte_fallback_;
    for (const char b : run) all_bytes = all_bytes && byte_tokens_[static_cast<uint8_t>(b)] >= 0;
    if (all_bytes) {
      for (size_t i = run.size(); i-- > 0;) out->push_back(byte_tokens_[static_cast<uint8_t>(run[i])]);
    } else if (unk_ >= 0) {
      out->push_back(unk_);
    }
  }

  const Vocab& vocab_;
  std::vector<double> scores_;  // [vocab.size()]
  TokenTrie trie_;
  std::vector<TokenId> byte_tokens_;
  TokenId unk_;
  bool byte_fallback_;
  double unk_score_ = 0;
};

}  // namespace

Result<std::unique_ptr<Model>> make_unigram(TokenizerFile* file, const Vocab& vocab) {
  const auto unk = json_int(file->model, "unk_id", -1);
  const auto byte_fallback = json_bool(file->model, "byte_fallback", false);
  if (!unk.ok()) return unk.status().with_context("model Unigram");
  if (!byte_fallback.ok()) return byte_fallback.status().with_context("model Unigram");
  if (*unk >= vocab.size()) return data_loss("model Unigram: unk_id is not in the vocabulary");
  if (file->scores.size() != static_cast<size_t>(vocab.size()))
    return data_loss("model Unigram: the vocabulary has no scores");
  size_t longest = 0;
  for (TokenId id = 0; id < vocab.size(); ++id) longest = std::max(longest, vocab.text(id).size());
  if (longest > kMaxUnigramTokenBytes) return unsupported("model Unigram: an entry is longer than 1024 bytes");
  return std::unique_ptr<Model>(std::make_unique<Unigram>(
      vocab, std::move(file->scores), static_cast<TokenId>(std::max<int64_t>(*unk, -1)), *byte_fallback));
}

}  // namespace llmb
