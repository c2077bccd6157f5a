// Shared by the tests of hostile input: a good line to stand beside bad ones.
#pragma once

#include <string>
#include <string_view>

namespace llmb::test {

inline const std::string kGood = R"({"prompt":"Once upon a time","max_tokens":3})";

inline std::string repeat(std::string_view text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

// As a word of a shell command.
inline std::string quoted(const std::string& text) { return "'" + text + "'"; }

}  // namespace llmb::test
