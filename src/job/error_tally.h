// Why lines failed: the kinds of error in order of appearance, each with its first line.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "core/completion.h"

namespace llmb {

// Error records with the same code, and the first of them.
struct ErrorCount {
  std::string code;
  int64_t count = 0;
  std::string first_place, first_message;  // "in.jsonl:7"
};

// Thread-safe.
class ErrorTally {
 public:
  static constexpr size_t kMaxCodes = 16;

  // `on_new_kind` (may be empty) is called for the first error of each kind, at once, by the thread that counts it, one
  // call at a time.
  explicit ErrorTally(std::function<void(const ErrorCount&)> on_new_kind) : on_new_kind_(std::move(on_new_kind)) {}

  void count(const LineRef& line, const RequestError& error);
  std::vector<ErrorCount> errors() const;  // of the first kMaxCodes kinds
  // The code that all errors so far have; "" where there is none.
  std::string only_code() const;

 private:
  const std::function<void(const ErrorCount&)> on_new_kind_;
  mutable std::mutex mutex_;
  std::vector<ErrorCount> errors_;
  bool has_more_codes_ = false;
};

}  // namespace llmb
