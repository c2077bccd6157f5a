// sample (sample.h) where each rank has the logits of a part of the vocabulary. No rank gets another's logits: ranks
// exchange a few numbers for each row, and k candidates for top-k and top logprobs.
//
// 1. All ranks get the same results, which depend on the logits, the rows and the parts alone: sums are those of the
//    parts, added in the order of ranks.
// 2. Where no rounding of these sums decides, the results are those of sample().
// 3. Every rank makes the same number of calls of the collectives for the same rows.
#pragma once

#include <cstdint>

#include "base/collectives.h"
#include "base/thread_pool.h"
#include "core/resolve_step.h"
#include "kernels/cpu/sample.h"

namespace llmb::cpu {

// Tokens [begin, begin + count) of a vocabulary of `vocab`. Parts follow each other in the order of ranks. REQUIRES:
// begin % 32 == 0, count >= 1
struct VocabPart {
  int64_t begin, count, vocab;
};

// `in` is of the whole vocabulary, and equal on all ranks.
void sample_parts(float* logits,  // [rows, part.count]  clobbered
                  const VocabPart& part, const SampleInput& in,
                  SampledRows* out,  // appended to
                  Collectives& ranks, ThreadPool& pool);

}  // namespace llmb::cpu
