// The rows of a run: those of its shard that no other output holds.
#pragma once

#include <optional>

#include "io/line_filter.h"
#include "job/done_rows.h"
#include "job/shard.h"

namespace llmb {

class RowFilter final : public LineFilter {
 public:
  // `done` and `own` outlive the filter. `own`: rows that this output holds already, which are always taken, so that
  // they are compared with the input; may be null.
  RowFilter(const std::optional<Shard>& shard, const DoneRows& done, const CompletedLines* own)
      : shard_(shard), done_(done), own_(own) {}

  // kConflict: another output answers a line that stood there before.
  Result<bool> takes(const LineRef& line) const override;

 private:
  const std::optional<Shard> shard_;
  const DoneRows& done_;
  const CompletedLines* const own_;
};

}  // namespace llmb
