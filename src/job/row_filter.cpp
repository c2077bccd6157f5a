#include "job/row_filter.h"

#include <string>

#include "io/byte_source.h"

namespace llmb {

bool RowFilter::is_of_shard(int64_t index) const {
  if (!of_shard_) return shard_of_row(index, shard_->count) == shard_->index;
  return static_cast<size_t>(index) < of_shard_->size() && (*of_shard_)[static_cast<size_t>(index)];
}

Result<bool> RowFilter::takes(const LineRef& line) const {
  if (own_ != nullptr && own_->contains(line.index)) return true;
  if (shard_ && !is_of_shard(line.index)) return false;
  switch (done_.lines.match(line.index, line.content_hash)) {
    case CompletedLines::Match::kNew:
      return true;
    case CompletedLines::Match::kDone:
      return false;
    case CompletedLines::Match::kEdited:
      break;
  }
  return conflict(input_name(line.source) + ":" + std::to_string(line.line_number) +
                  ": an output of `done` answers another line at this place: the input was edited, or is another one");
}

}  // namespace llmb
