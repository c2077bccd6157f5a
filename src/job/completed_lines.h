// Which input lines an output already answers, and whether the input still holds those very lines.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/status.h"
#include "core/request.h"

namespace llmb {

// A set of (index, hash) in about 4.3 bytes a line where indices are dense: 32 bits of the hash and one of presence.
// Not thread-safe while lines are added.
class CompletedLines {
 public:
  enum class Match { kNew, kDone, kEdited };

  // False: the index is there already. REQUIRES: index >= 0.
  bool add(int64_t index, uint64_t content_hash);
  // REQUIRES: contains(index).
  void remove(int64_t index);

  // kEdited: the index is there with another hash (an edit goes unnoticed once in 2^32).
  Match match(int64_t index, uint64_t content_hash) const;
  bool contains(int64_t index) const;

  int64_t size() const { return size_; }
  int64_t last_index() const { return last_index_; }  // that was ever added; -1: none

 private:
  static constexpr int64_t kChunkLines = 1024;
  struct Chunk {
    std::array<uint32_t, kChunkLines> hash;
    std::array<uint64_t, kChunkLines / 64> present{};
    bool has(int64_t slot) const { return (present[slot / 64] >> (slot % 64)) & 1; }
  };
  std::unordered_map<int64_t, std::unique_ptr<Chunk>> chunks_;
  int64_t size_ = 0;
  int64_t last_index_ = -1;
};

// Walks the input in order beside the lines that are done. Every error is kConflict and names file and line: an
// answered line was edited, something was inserted or removed before it, or it is gone.
class CompletedLineMatcher {
 public:
  // `completed` outlives the matcher. may_have_grown: lines that were answered before they were written to their end,
  // so that they may have changed.
  explicit CompletedLineMatcher(const CompletedLines& completed, std::set<int64_t> may_have_grown = {})
      : completed_(completed), may_have_grown_(std::move(may_have_grown)) {}

  // Whether the line is answered already; false also for one of may_have_grown() that has. Lines come in increasing
  // index order; blank ones are never seen.
  Result<bool> is_done(const LineRef& line);

  // Those of may_have_grown that have, so far.
  const std::set<int64_t>& grown() const { return grown_; }

  // After the last line: no answered line is missing.
  Status check_end() const;

 private:
  const CompletedLines& completed_;
  const std::set<int64_t> may_have_grown_;
  std::set<int64_t> grown_;
  int64_t next_index_ = 0;  // everything below has been looked at
  LineRef last_line_;
};

}  // namespace llmb
