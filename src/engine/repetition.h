// Finds out that an answer loops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/types.h"

namespace llmb {

// A loop of `tokens` tokens: the last so many are one block, of a quarter of them or fewer, that repeats. Depends on the
// answer's tokens alone. Memory and time for a token: a quarter of `tokens`. Not thread-safe.
class RepetitionWatch {
 public:
  explicit RepetitionWatch(int32_t tokens);  // >= kMinRepetitionTokens

  // The answer's next token; true: with it there is a loop.
  bool add(TokenId token);

 private:
  const int32_t tokens_;
  std::vector<TokenId> last_;      // a ring
  std::vector<int32_t> run_;       // [period - 1]  how many tokens up to the last equal those a period before
  int64_t num_tokens_ = 0;
};

inline constexpr int32_t kMinRepetitionTokens = 8, kMaxRepetitionTokens = 4096;

}  // namespace llmb
