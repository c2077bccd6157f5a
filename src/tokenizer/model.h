// The part of a tokenizer that turns one piece of text into ids.
// Immutable and thread-safe once built; a ModelScratch belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "core/types.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/vocab.h"

namespace llmb {

// Ids of short pieces that were tokenised before. Fixed size; a new piece replaces the one in its slot.
class PieceCache {
 public:
  static constexpr size_t kMaxKeyBytes = 30;
  static constexpr size_t kMaxIds = 7;

  bool find(std::string_view piece, uint64_t hash, std::vector<TokenId>* out) const;
  void insert(std::string_view piece, uint64_t hash, const TokenId* ids, size_t num_ids);

 private:
  static constexpr size_t kNumSlots = size_t{1} << 15;
  struct Slot {  // one cache line
    uint32_t check = 0;
    uint8_t key_size = 0;  // 0: free
    uint8_t num_ids = 0;
    char key[kMaxKeyBytes];
    TokenId ids[kMaxIds];
  };
  static_assert(sizeof(Slot) == 64);
  std::vector<Slot> slots_;
};

// Positions ordered by rank, then by position.
class RankQueue {
 public:
  void push(uint32_t rank, uint32_t position);
  bool pop(uint32_t* rank, uint32_t* position);  // false: empty

 private:
  struct List {
    std::vector<uint32_t> positions;
    size_t done = 0;  // those before it have been popped
    bool is_sorted = true;
  };
  std::vector<List> lists_;
  std::vector<uint32_t> free_lists_;
  std::unordered_map<uint32_t, uint32_t> list_of_rank_;
  std::vector<uint64_t> ranks_;                      // a min-heap of rank << 32 | list
  uint32_t last_rank_ = UINT32_MAX, last_list_ = 0;  // of the latest push
};

struct ModelScratch {
  PieceCache cache;
  std::vector<TokenId> symbols;
  std::vector<uint32_t> ranks;  // of each symbol and its right neighbour
  std::vector<uint32_t> previous, next;
  RankQueue queue;
  std::vector<double> best_scores;  // unigram, by end position
  std::vector<uint32_t> best_begins;
  std::vector<TokenId> best_ids;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual void tokenize(std::string_view piece, ModelScratch& scratch, std::vector<TokenId>* out) const = 0;

  // True where every byte has a token under GPT-2's mapping, so that the model can take pieces as their own bytes.
  virtual bool can_take_bytes() const { return false; }
  virtual void take_bytes() {}
};

// `file` gives the settings and, for BPE, the merges, which are freed; `vocab` must outlive the model.
Result<std::unique_ptr<Model>> make_model(TokenizerFile* file, const Vocab& vocab);
Result<std::unique_ptr<Model>> make_bpe(TokenizerFile* file, const Vocab& vocab);
Result<std::unique_ptr<Model>> make_unigram(TokenizerFile* file, const Vocab& vocab);
Result<std::unique_ptr<Model>> make_word_piece(const TokenizerFile& file, const Vocab& vocab);
Result<std::unique_ptr<Model>> make_word_level(const TokenizerFile& file, const Vocab& vocab);

// The ids of <0x00> … <0xFF>, -1 where one is missing.
std::vector<TokenId> byte_token_ids(const Vocab& vocab);

}  // namespace llmb
