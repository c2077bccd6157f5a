#include "engine/repetition.h"

namespace llmb {

RepetitionWatch::RepetitionWatch(int32_t tokens)
    : tokens_(tokens), last_(static_cast<size_t>(tokens / 4)), run_(static_cast<size_t>(tokens / 4)) {}

bool RepetitionWatch::add(TokenId token) {
  const auto longest = static_cast<int64_t>(run_.size());
  bool loops = false;
  for (int64_t period = 1; period <= longest && period <= num_tokens_; ++period) {
    int32_t& run = run_[period - 1];
    run = last_[(num_tokens_ - period) % longest] == token ? run + 1 : 0;
    loops = loops || run + period >= tokens_;
  }
  last_[num_tokens_++ % longest] = token;
  return loops;
}

}  // namespace llmb
