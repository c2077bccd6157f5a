// How long answers have turned out to be, and so how likely one that goes on is to end soon: what admission predicts by.
#pragma once

#include <cstdint>
#include <vector>

namespace llmb {

// Not thread-safe.
class AnswerLengths {
 public:
  explicit AnswerLengths(int32_t max_tokens);  // of an answer

  // An answer has ended with so many tokens, [0, max_tokens].
  void add(int32_t num_tokens);
  // The share of answers with more than num_given + num_more tokens among those with more than num_given; 1: there is none.
  double share_going_on(int32_t num_given, int32_t num_more) const;

 private:
  int64_t num_up_to(int32_t num_tokens) const;

  std::vector<int32_t> sums_;  // of counts by length: a binary indexed tree (Fenwick 1994)
  int64_t count_ = 0;
};

}  // namespace llmb
