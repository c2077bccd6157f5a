// LLMB_CHECK: programmer errors. Throws, never reachable by user input.
#pragma once

#include <stdexcept>
#include <string>

namespace llmb {

class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  throw CheckFailure(std::string(file) + ":" + std::to_string(line) + ": check failed: " + condition +
                     (detail.empty() ? "" : " (" + detail + ")"));
}

}  // namespace llmb

#define LLMB_CHECK(condition) ((condition) ? void(0) : ::llmb::check_failed(__FILE__, __LINE__, #condition, ""))
#define LLMB_CHECK_MSG(condition, detail) \
  ((condition) ? void(0) : ::llmb::check_failed(__FILE__, __LINE__, #condition, (detail)))
