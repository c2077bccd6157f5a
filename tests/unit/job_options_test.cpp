// Where guesses are on by default: where they change no byte.
#include "job/job_options.h"

#include <doctest/doctest.h>

namespace llmb::test {

TEST_CASE("guesses are on by default on the CPU, and on a GPU with --deterministic only") {
  LoadOptions load;
  CHECK(guesses_by_default(DeviceKind::kCpu, load));
  CHECK(!guesses_by_default(DeviceKind::kCuda, load));
  CHECK(!guesses_by_default(DeviceKind::kLedger, load));
  load.cuda.deterministic = true;
  CHECK(guesses_by_default(DeviceKind::kCpu, load));
  CHECK(guesses_by_default(DeviceKind::kCuda, load));
  CHECK(!guesses_by_default(DeviceKind::kLedger, load));
}

}  // namespace llmb::test
