#include "job/input_check.h"

#include <algorithm>

namespace llmb {

bool are_files(const std::vector<std::string>& inputs, const LineReader& reader) {
  return reader.total_bytes() && std::count(inputs.begin(), inputs.end(), "-") == 0;
}

Result<InputCheck> check_inputs_against(const std::vector<std::string>& inputs, std::optional<InputFormat> format,
                                        const CompletedLines& completed, const std::set<int64_t>& may_have_grown,
                                        const KeepGoing& keep_going) {
  LineReader reader(inputs, kDefaultMaxLineBytes, real_file_ops(), format);
  CompletedLineMatcher matcher(completed, may_have_grown);
  InputCheck check;
  while (keep_going()) {
    LLMB_ASSIGN_OR_RETURN(const auto line, reader.next());
    if (!line.has_value()) {
      LLMB_RETURN_IF_ERROR(matcher.check_end());
      check.grown = matcher.grown();
      return check;
    }
    LLMB_ASSIGN_OR_RETURN(const bool done, matcher.is_done(line->line));
    if (!done && !check.first_new) check.first_new = line->line.index;
    ++check.num_lines;
  }
  return cancelled("interrupted");
}

std::optional<int64_t> count_lines(const std::vector<std::string>& inputs, std::optional<InputFormat> format) {
  constexpr int64_t kMaxBytes = 256 << 20;
  LineReader reader(inputs, kDefaultMaxLineBytes, real_file_ops(), format);
  if (!are_files(inputs, reader) || *reader.total_bytes() > kMaxBytes) return std::nullopt;
  int64_t num_lines = 0;
  while (true) {
    const auto line = reader.next();
    if (!line.ok()) return std::nullopt;
    if (!line->has_value()) return num_lines;
    ++num_lines;
  }
}

}  // namespace llmb
