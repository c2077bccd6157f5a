#include "job/error_tally.h"

#include <algorithm>

namespace llmb {

void ErrorTally::count(const LineRef& line, const RequestError& error) {
  constexpr size_t kMaxMessageBytes = 400;
  std::lock_guard lock(mutex_);
  const auto known = std::find_if(errors_.begin(), errors_.end(), [&](const auto& e) { return e.code == error.code; });
  if (known != errors_.end()) {
    ++known->count;
    return;
  }
  if (errors_.size() == kMaxCodes) {
    has_more_codes_ = true;
    return;
  }
  errors_.push_back({error.code, 1, line.source + ":" + std::to_string(line.line_number),
                     error.message.substr(0, kMaxMessageBytes)});
  if (on_new_kind_) on_new_kind_(errors_.back());
}

std::vector<ErrorCount> ErrorTally::errors() const {
  std::lock_guard lock(mutex_);
  return errors_;
}

std::string ErrorTally::only_code() const {
  std::lock_guard lock(mutex_);
  return errors_.size() == 1 && !has_more_codes_ ? errors_[0].code : "";
}

}  // namespace llmb
