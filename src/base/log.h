// Log lines for people, on stderr. Results never go through here.
#pragma once

#include <string>
#include <string_view>

namespace llmb {

enum class LogLevel { kError, kWarning, kInfo };

// Writes "llm-batch: warning: message\n" (stderr_writer.h). Control characters in `message` are escaped, so that text
// from input files cannot drive a terminal. Thread-safe.
void log(LogLevel level, std::string_view message);
inline void log_error(std::string_view m) { log(LogLevel::kError, m); }
inline void log_warning(std::string_view m) { log(LogLevel::kWarning, m); }
inline void log_info(std::string_view m) { log(LogLevel::kInfo, m); }

// Text with control characters (and DEL, and C1) and bytes that are not UTF-8 written as \n, \t, \x1b …; the rest kept.
std::string escape_control(std::string_view text);

}  // namespace llmb
