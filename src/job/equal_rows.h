// Rows that ask for the same answer: it is computed once, and each gets a record of its own.
//
// Equal are lines of the same form with the same prompt and settings, where nothing is drawn at random or each names the
// same seed. They are compared before they are tokenised, by SHA-256 over all that an answer depends on, so that no line
// need be kept, and none can be made to be taken for another.
#pragma once

#include <cstddef>
#include <cstdint>
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
// wait and those that they may wait for take at most max_bytes. Beyond that rows are computed, equal or not.
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
  // An earlier row that has no answer yet asks for the same; the answer to this one comes with its. The prompt of both.
  // nullopt: there is none, the engine is to answer this row.
  std::optional<Prompt> wait_for_equal(const Key& key, int64_t ordinal, const InputRequest& input);
  // The engine is to answer the row; later ones may wait for it.
  void compute(const Key& key, int64_t ordinal, const Prompt& prompt);
  // The answers to the rows that waited for this one.
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
  };
  using Computed = std::unordered_map<Sha256Digest, First, DigestHash>;

  static size_t bytes_of(const Waiting& row);
  bool has_room(size_t bytes) const { return num_bytes_ + bytes <= max_bytes_; }
  Waiting waiting_of(int64_t ordinal, const InputRequest& input);
  FinishedItem answer_to(const Waiting& row, const FinishedItem& like) const;

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  Computed computed_;
  std::unordered_map<int64_t, const Sha256Digest*> digests_;  // keys of computed_, by ordinal
  std::unordered_map<int64_t, std::vector<Waiting>> waiting_;  // by the ordinal that they wait for
  std::vector<std::string> sources_;
  size_t num_bytes_ = 0;
  int64_t num_found_ = 0;
};

}  // namespace llmb
