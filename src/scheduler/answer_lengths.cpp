#include "scheduler/answer_lengths.h"

#include <algorithm>

#include "base/check.h"

namespace llmb {

AnswerLengths::AnswerLengths(int32_t max_tokens) : sums_(static_cast<size_t>(max_tokens) + 2) {}

void AnswerLengths::add(int32_t num_tokens) {
  LLMB_CHECK(num_tokens >= 0);
  ++count_;
  for (size_t i = static_cast<size_t>(num_tokens) + 1; i < sums_.size(); i += i & -i) ++sums_[i];
}

double AnswerLengths::share_going_on(int32_t num_given, int32_t num_more) const {
  const int64_t num_longer = count_ - num_up_to(num_given);
  if (num_longer == 0) return 1;
  return static_cast<double>(count_ - num_up_to(num_given + num_more)) / static_cast<double>(num_longer);
}

int64_t AnswerLengths::num_up_to(int32_t num_tokens) const {
  int64_t sum = 0;
  for (size_t i = std::min(static_cast<size_t>(num_tokens) + 2, sums_.size()) - 1; i > 0; i &= i - 1) sum += sums_[i];
  return sum;
}

}  // namespace llmb
