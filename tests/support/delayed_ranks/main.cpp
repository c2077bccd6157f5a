// The program, except that its ranks wait at random before each call in which they meet: tests/CMakeLists.txt links it
// so that make_rank_context is the function here. LLMB_DELAY_SEED: when they wait.
#include <cstdlib>
#include <memory>
#include <utility>

#include "backend/ranks/rank_context.h"
#include "tests/support/delayed_calls.h"

namespace llmb {

#define LLMB_MADE_CONTEXT "_ZN4llmb17make_rank_contextESt10shared_ptrINS_11SharedRanksEERKNS_8RankPartE"

std::shared_ptr<RankContext> make_as_it_is(std::shared_ptr<SharedRanks> ranks,
                                           const RankPart& part) asm("__real_" LLMB_MADE_CONTEXT);
std::shared_ptr<RankContext> make_delayed(std::shared_ptr<SharedRanks> ranks,
                                          const RankPart& part) asm("__wrap_" LLMB_MADE_CONTEXT);

std::shared_ptr<RankContext> make_delayed(std::shared_ptr<SharedRanks> ranks, const RankPart& part) {
  std::shared_ptr<RankContext> context = make_as_it_is(std::move(ranks), part);
  const char* const seed = std::getenv("LLMB_DELAY_SEED");
  test::delay_calls(context.get(), seed != nullptr ? std::strtoull(seed, nullptr, 10) : 0);
  return context;
}

}  // namespace llmb
