// A look at the inputs before the run: what of them is done, and how many lines they have.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/input_tally.h"
#include "io/line_filter.h"
#include "io/line_reader.h"
#include "job/completed_lines.h"
#include "job/job_options.h"

namespace llmb {

// The inputs of a job; `filter` may be null: all lines.
std::unique_ptr<LineReader> open_inputs(const JobOptions& options, std::shared_ptr<const LineFilter> filter);

// Inputs that can be read twice.
bool are_files(const std::vector<std::string>& inputs, const LineReader& reader);

struct InputCheck {
  int64_t num_lines = 0;
  std::optional<int64_t> first_new;  // index of the first line that is not done
  std::set<int64_t> grown;           // of may_have_grown
  InputTally tally;                  // over all lines
};

// Reads all inputs beside the lines that are done. kConflict as CompletedLineMatcher; kCancelled: keep_going said no.
Result<InputCheck> check_inputs_against(LineReader& reader, const CompletedLines& completed,
                                        const std::set<int64_t>& may_have_grown, const KeepGoing& keep_going);

// Lines in all inputs, where they can be counted quickly.
std::optional<int64_t> count_lines(const JobOptions& options, std::shared_ptr<const LineFilter> filter);

}  // namespace llmb
