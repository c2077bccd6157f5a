#include "speculation/drafter_looks.h"

namespace llmb {

void DrafterLooks::judge(size_t drafter, const Guess& guess, std::span<const Verdict> verdicts) {
  Seen& seen = seen_[drafter];
  int32_t last = -1;
  for (int32_t i = 0; i < guess.size(); ++i) {
    if (guess.parent(i) != last) continue;  // on another path
    last = i;
    if (verdicts[i] == Verdict::kUnknown) continue;
    if (seen.num_judged >= kMemory) seen.num_right /= 2, seen.num_judged /= 2;
    seen.num_right += verdicts[i] == Verdict::kRight ? 1 : 0;
    seen.num_judged += 1;
  }
}

}  // namespace llmb
