#include "job/row_filter.h"

#include <string>

#include "io/byte_source.h"

namespace llmb {

Result<bool> RowFilter::takes(const LineRef& line) const {
  if (own_ != nullptr && own_->contains(line.index)) return true;
  if (shard_ && shard_of_row(line.index, shard_->count) != shard_->index) return false;
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
