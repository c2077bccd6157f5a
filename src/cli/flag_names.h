// Messages of a job name its options (job_options.h); a command line names its flags.
#pragma once

#include <string>
#include <string_view>

namespace llmb {

// With "--max-errors" in place of "`max_errors`". Other words between backticks stay.
std::string with_flag_names(std::string_view message);

}  // namespace llmb
