#include "base/log.h"

#include <cstdio>

#include "base/stderr_writer.h"
#include "base/utf8.h"

namespace llmb {

std::string escape_control(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const auto append_hex = [&out](unsigned char c) {
    char buffer[8];
    std::snprintf(buffer, sizeof buffer, "\\x%02x", c);
    out += buffer;
  };
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const size_t size = utf8_length(text.data() + i, text.data() + text.size());
    const bool c1 = c == 0xC2 && size == 2 && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (c == '\r') out += "\\r";
    else if (c1) append_hex(static_cast<unsigned char>(text[i + 1]));
    else if (size == 0 || c < 0x20 || c == 0x7F) append_hex(c);
    else out += text.substr(i, size);
    i += size == 0 ? 1 : size;
  }
  return out;
}

void log(LogLevel level, std::string_view message) {
  std::string line = "llm-batch: ";
  if (level == LogLevel::kError) line += "error: ";
  if (level == LogLevel::kWarning) line += "warning: ";
  line += escape_control(message);
  line += '\n';
  write_stderr(line);  // in one piece: lines of several threads and processes do not mix
}

}  // namespace llmb
