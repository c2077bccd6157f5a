#include "job/completed_lines.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "io/byte_source.h"

namespace llmb {

namespace {

constexpr const char* kAdvice =
    "; the output holds the answer to what stood there before: undo the change, choose another output, or start over "
    "with `restart`";

std::string place_of(const LineRef& line) { return input_name(line.source) + ":" + std::to_string(line.line_number); }

}  // namespace

bool CompletedLines::add(int64_t index, uint64_t content_hash) {
  LLMB_CHECK(index >= 0);
  std::unique_ptr<Chunk>& chunk = chunks_[index / kChunkLines];
  if (!chunk) chunk = std::make_unique<Chunk>();
  const int64_t slot = index % kChunkLines;
  if (chunk->has(slot)) return false;
  chunk->present[slot / 64] |= uint64_t{1} << (slot % 64);
  chunk->hash[slot] = static_cast<uint32_t>(content_hash);
  ++size_;
  last_index_ = std::max(last_index_, index);
  return true;
}

void CompletedLines::remove(int64_t index) {
  LLMB_CHECK(contains(index));
  const int64_t slot = index % kChunkLines;
  chunks_.at(index / kChunkLines)->present[slot / 64] &= ~(uint64_t{1} << (slot % 64));
  --size_;
}

CompletedLines::Match CompletedLines::match(int64_t index, uint64_t content_hash) const {
  const auto chunk = chunks_.find(index / kChunkLines);
  const int64_t slot = index % kChunkLines;
  if (chunk == chunks_.end() || !chunk->second->has(slot)) return Match::kNew;
  return chunk->second->hash[slot] == static_cast<uint32_t>(content_hash) ? Match::kDone : Match::kEdited;
}

bool CompletedLines::contains(int64_t index) const { return match(index, 0) != Match::kNew; }

Result<bool> CompletedLineMatcher::is_done(const LineRef& line) {
  // Lines that the reader did not show are blank now.
  const int64_t last = std::min(line.index - 1, completed_.last_index());
  for (; next_index_ <= last; ++next_index_)
    if (completed_.contains(next_index_))
      return conflict(place_of(line) + ": an answered line before this one (index " + std::to_string(next_index_) +
                      ") is blank now" + kAdvice);
  next_index_ = line.index + 1;
  last_line_ = line;
  switch (completed_.match(line.index, line.content_hash)) {
    case CompletedLines::Match::kNew:
      return false;
    case CompletedLines::Match::kDone:
      return true;
    case CompletedLines::Match::kEdited:
      if (!may_have_grown_.contains(line.index)) break;
      grown_.insert(line.index);
      return false;
  }
  return conflict(place_of(line) + ": this line was edited, or lines were inserted or removed before it" + kAdvice);
}

Status CompletedLineMatcher::check_end() const {
  for (int64_t index = next_index_; index <= completed_.last_index(); ++index)
    if (completed_.contains(index))
      return conflict((next_index_ == 0 ? "the input is empty" : place_of(last_line_) + ": the input ends here") +
                      ", but the output answers a later line (index " + std::to_string(index) + ")" + kAdvice);
  return {};
}

}  // namespace llmb
