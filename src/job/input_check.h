// A look at the inputs before the run: what of them is done, and how many lines they have.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/line_reader.h"
#include "job/completed_lines.h"
#include "job/job_options.h"

namespace llmb {

// Inputs that can be read twice.
bool are_files(const std::vector<std::string>& inputs, const LineReader& reader);

struct InputCheck {
  int64_t num_lines = 0;
  std::optional<int64_t> first_new;  // index of the first line that is not done
  std::set<int64_t> grown;           // of may_have_grown
};

// Reads all inputs beside the lines that are done. kConflict as CompletedLineMatcher; kCancelled: keep_going said no.
Result<InputCheck> check_inputs_against(const std::vector<std::string>& inputs, std::optional<InputFormat> format,
                                        const CompletedLines& completed, const std::set<int64_t>& may_have_grown, const KeepGoing& keep_going);

// Lines in all inputs, where they can be counted quickly.
std::optional<int64_t> count_lines(const std::vector<std::string>& inputs, std::optional<InputFormat> format);

}  // namespace llmb
