// The rows of a run: those of its shard that no other output holds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "io/line_filter.h"
#include "job/done_rows.h"
#include "job/shard.h"

namespace llmb {

class RowFilter final : public LineFilter {
 public:
  // `done` and `own` outlive the filter. `own`: rows that this output holds already, which are always taken, so that
  // they are compared with the input; may be null.
  // of_shard: by line index whether the shard has the row; null: it is divided by rows.
  RowFilter(const std::optional<Shard>& shard, std::shared_ptr<const std::vector<bool>> of_shard, const DoneRows& done,
            const CompletedLines* own)
      : shard_(shard), of_shard_(std::move(of_shard)), done_(done), own_(own) {}

  // kConflict: another output answers a line that stood there before.
  Result<bool> takes(const LineRef& line) const override;

 private:
  bool is_of_shard(int64_t index) const;

  const std::optional<Shard> shard_;
  const std::shared_ptr<const std::vector<bool>> of_shard_;
  const DoneRows& done_;
  const CompletedLines* const own_;
};

}  // namespace llmb
