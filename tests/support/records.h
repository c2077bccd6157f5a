// Result records as text.
#pragma once

#include <string>

namespace llmb::test {

// An OpenAI record says when its job began, which two jobs do not share: 0 in its place.
inline std::string without_created(std::string record) {
  for (const char* object : {"chat.completion", "text_completion"}) {
    const std::string before = std::string("\"object\":\"") + object + "\",\"created\":";
    const size_t at = record.find(before);
    if (at == std::string::npos) continue;
    const size_t digits = at + before.size();
    record.erase(digits, record.find_first_not_of("0123456789", digits) - digits);
    record.insert(digits, 1, '0');
  }
  return record;
}

}  // namespace llmb::test
