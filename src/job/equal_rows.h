// Rows that ask for the same answer: it is computed once, and each gets a record of its own.
//
// Equal are requests of the same form with the same tokens and settings, where nothing is drawn at random or each names
// the same seed. Requests are compared by 128 bits of hash over all that an answer depends on, so that none need be kept.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/completion.h"
#include "core/request.h"
#include "engine/completion_sink.h"

namespace llmb {

// Thread-safe. Invariants: a row waits for one that was given to the engine before it and has no answer yet; those that
// wait take at most max_bytes.
class EqualRows {
 public:
  explicit EqualRows(size_t max_bytes) : max_bytes_(max_bytes) {}

  // True: an earlier row that has no answer yet asks for the same; the answer to this one comes with its. False: the
  // engine is to answer it.
  bool wait_for_equal(int64_t ordinal, const std::shared_ptr<const Request>& request);
  // The answers to the rows that waited for this one.
  std::vector<FinishedItem> answers_like(const FinishedItem& item);

  int64_t num_found() const;

 private:
  // The part of a record that belongs to its line and differs among equal rows.
  struct Waiting {
    int64_t ordinal;
    LineRef line;
    std::string id_json, model_name, input_json;
    int32_t num_truncated_tokens;
  };
  using Digest = std::array<uint64_t, 2>;
  struct DigestHash {
    size_t operator()(const Digest& digest) const { return digest[0]; }
  };
  struct Computed {
    int64_t ordinal;
    std::shared_ptr<const TokenConstraint> constraint;  // its address is in the digest
    std::vector<Waiting> waiting;
  };
  static Digest digest_of(const Request& request);
  static size_t bytes_of(const Waiting& row);

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<Digest, Computed, DigestHash> computed_;
  std::unordered_map<int64_t, Digest> digests_;  // of these, by ordinal
  size_t num_bytes_ = 0;
  int64_t num_found_ = 0;
};

}  // namespace llmb
