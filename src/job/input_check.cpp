#include "job/input_check.h"

#include <algorithm>
#include <utility>

namespace llmb {

std::unique_ptr<LineReader> open_inputs(const JobOptions& options, std::shared_ptr<const LineFilter> filter) {
  auto reader =
      std::make_unique<LineReader>(options.inputs, kDefaultMaxLineBytes, real_file_ops(), options.data.format);
  reader->keep_only(std::move(filter));
  return reader;
}

bool are_files(const std::vector<std::string>& inputs, const LineReader& reader) {
  return reader.total_bytes() && std::count(inputs.begin(), inputs.end(), "-") == 0;
}

Result<InputCheck> check_inputs_against(LineReader& reader, const CompletedLines& completed,
                                        const std::set<int64_t>& may_have_grown, const KeepGoing& keep_going) {
  CompletedLineMatcher matcher(completed, may_have_grown);
  InputCheck check;
  while (keep_going()) {
    LLMB_ASSIGN_OR_RETURN(const auto line, reader.next());
    if (!line.has_value()) {
      LLMB_RETURN_IF_ERROR(matcher.check_end());
      check.grown = matcher.grown();
      check.tally = reader.tally();
      return check;
    }
    LLMB_ASSIGN_OR_RETURN(const bool done, matcher.is_done(line->line));
    if (!done && !check.first_new) check.first_new = line->line.index;
    ++check.num_lines;
  }
  return cancelled("interrupted");
}

std::optional<int64_t> count_lines(const JobOptions& options, std::shared_ptr<const LineFilter> filter) {
  constexpr int64_t kMaxBytes = 256 << 20;
  const auto reader = open_inputs(options, std::move(filter));
  if (!are_files(options.inputs, *reader) || *reader->total_bytes() > kMaxBytes) return std::nullopt;
  int64_t num_lines = 0;
  while (true) {
    const auto line = reader->next();
    if (!line.ok()) return std::nullopt;
    if (!line->has_value()) return num_lines;
    ++num_lines;
  }
}

}  // namespace llmb
