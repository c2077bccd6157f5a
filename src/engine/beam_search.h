// Beam search over the continuations of one prompt, by the rules of GenerationMixin._beam_search in Hugging Face
// transformers 5.23, for a batch of one prompt:
//  - A continuation's log-probability is the sum of its tokens', in order, in float.
//  - Each step looks at the continuations of all beams by one token. The `width` best that do not end are the next
//    beams. Of the `width` best, ending ones included, those that end are answers, and so is each of them with the last
//    token allowed.
//  - An answer's score is its log-probability / its number of tokens ^ length_penalty; the `width` best are kept.
//  - The search ends with the last token allowed, or where no beam is left, or, once there are `width` answers, with
//    early_stopping kTrue at once and otherwise where the best beam's log-probability / n ^ length_penalty does not
//    exceed the worst answer's score. n is the number of its tokens; with kNever and length_penalty > 0 the most
//    allowed.
// Ties: among equal continuations the one of the earlier beam goes first, within a beam the one that its list names
// first; among equal answers the one found first.
#pragma once

#include <cstdint>
#include <vector>

#include "core/request.h"
#include "core/types.h"

namespace llmb {

// A token that may come next.
struct BeamCandidate {
  TokenId token = 0;
  float logprob = 0;
  bool is_ending = false;
};

struct Beam {
  std::vector<TokenId> tokens;
  float logprob = 0;
  int32_t parent = 0;  // of the beams before the last step
};

struct BeamAnswer {
  std::vector<TokenId> tokens;
  float score = 0;
  bool is_ended = false;  // by its last token; else by the last token allowed
};

// Pure. Not thread-safe.
class BeamSearch {
 public:
  // REQUIRES: max_tokens >= 1
  BeamSearch(const BeamParams& params, int32_t max_tokens);

  // A step: the candidates of each beam, best first. Of each beam the `width` best that do not end and all better ones
  // suffice. False: the search is over.
  bool advance(const std::vector<std::vector<BeamCandidate>>& candidates);

  int32_t num_steps() const { return num_steps_; }
  const std::vector<Beam>& beams() const { return beams_; }            // best first; at the start one without tokens
  const std::vector<BeamAnswer>& answers() const { return answers_; }  // best first

 private:
  struct Continuation {
    int32_t beam = 0;
    const BeamCandidate* candidate = nullptr;
    float logprob = 0;
  };
  float length_divisor(int32_t num_tokens) const;
  std::vector<TokenId> tokens_of(const Continuation& continuation) const;
  void add_answers(const std::vector<Continuation>& best, bool is_last);
  bool may_improve() const;

  const BeamParams params_;
  const int32_t max_tokens_;
  int32_t num_steps_ = 0;
  std::vector<Beam> beams_;
  std::vector<BeamAnswer> answers_;
};

}  // namespace llmb
