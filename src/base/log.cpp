#include "base/log.h"

#include <unistd.h>

#include <cstdio>

namespace llmb {

std::string escape_control(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1 = c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (c == '\r') out += "\\r";
    else if (c < 0x20 || c == 0x7F || c1) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\x%02x", c1 ? static_cast<unsigned char>(text[++i]) : c);
      out += buffer;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out;
}

void log(LogLevel level, std::string_view message) {
  std::string line = "llm-batch: ";
  if (level == LogLevel::kError) line += "error: ";
  if (level == LogLevel::kWarning) line += "warning: ";
  line += escape_control(message);
  line += '\n';
  // One write: lines of several threads and processes do not mix. A closed stderr must not end a job.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace llmb
