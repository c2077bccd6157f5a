// Rows that ask for the same answer: it is computed once, and each gets a record of its own.
//
// Equal are lines of the same form with the same prompt and settings, where nothing is drawn at random or each names the
// same seed. They are compared before they are tokenised, by SHA-256 over all that an answer depends on, so that no line
// need be kept, and none can be made to be taken for another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/sha256.h"
#include "core/completion.h"
#include "core/request.h"
#include "engine/completion_sink.h"

namespace llmb {

// Thread-safe. Invariants: a row waits for one that was given to the engine before it and has no answer yet; those that
// wait, those that they may wait for, and answers kept for rows to come take at most max_bytes. Where that is full, the
// oldest answers are forgotten; beyond that rows are computed, equal or not.
class EqualRows {
 public:
  explicit EqualRows(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Equal for rows that ask for the same answer; nullopt: there is no such row. From any thread.
  using Key = std::optional<Sha256Digest>;
  static Key key_of(const InputRequest& input);

  struct Prompt {
    int32_t num_tokens = 0;
    int32_t num_truncated_tokens = 0;  // that are not among these
  };
  struct Equal {
    Prompt prompt;                       // of both
    std::optional<FinishedItem> answer;  // to the later row; nullopt: it comes with that to the earlier one
  };
  // An earlier row that asks for the same; nullopt: there is none, the engine is to answer this row.
  std::optional<Equal> find_equal(const Key& key, int64_t ordinal, const InputRequest& input);
  // The engine is to answer the row; later ones may wait for it.
  void compute(const Key& key, int64_t ordinal, const Prompt& prompt);
  // The answers to the rows that waited for this one. Keeps its own.
  std::vector<FinishedItem> answers_like(const FinishedItem& item);

  int64_t num_found() const;

 private:
  // The part of a record that belongs to its line and differs among equal rows. Small, as there may be very many.
  struct Waiting {
    int64_t ordinal, index, line_number, byte_offset;
    uint64_t content_hash;
    int32_t source;  // in sources_
    uint32_t id_size, model_size;  // of the texts
    std::string texts;             // id_json, model_name, input_json
  };
  struct DigestHash {
    size_t operator()(const Sha256Digest& digest) const noexcept { return digest[0]; }
  };
  struct First {
    int64_t ordinal;  // of the row that is computed
    Prompt prompt;
    std::string answer;  // packed; "": it is not there yet
  };
  using Computed = std::unordered_map<Sha256Digest, First, DigestHash>;

  static size_t bytes_of(const Waiting& row);
  bool make_room(size_t bytes);
  void keep_answer(Computed::iterator first, const Completion& completion);
  Waiting waiting_of(int64_t ordinal, const InputRequest& input);
  FinishedItem answer_to(const Waiting& row, const FinishedItem& like) const;

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  Computed computed_;
  std::unordered_map<int64_t, const Sha256Digest*> digests_;  // keys of those of computed_ without an answer, by ordinal
  std::deque<const Sha256Digest*> answered_;                  // keys of the others, in order of their answers
  std::unordered_map<int64_t, std::vector<Waiting>> waiting_;  // by the ordinal that they wait for
  std::vector<std::string> sources_;
  size_t num_bytes_ = 0;
  int64_t num_found_ = 0;
};

}  // namespace llmb
