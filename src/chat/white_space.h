// White space of answers.
#pragma once

#include <string_view>

namespace llmb {

// That may stand around the parts of an answer.
inline constexpr std::string_view kWhiteSpace = " \t\r\n";

}  // namespace llmb
