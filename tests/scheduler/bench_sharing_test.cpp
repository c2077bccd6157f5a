// The figures that tools/bench_sharing prints for the files as they are.
#include <doctest/doctest.h>

#include "tools/sharing_workload.h"

namespace llmb::test {

TEST_CASE("rows in groups save what their files hold, with a pool of 32 k tokens") {
  for (const Requests& requests :
       {SharingWorkload::documents(), SharingWorkload::few_shot(), SharingWorkload::tree()}) {
    CHECK(requests.size() == 3000);
    const SharingResult result = run_sharing_workload(requests, 32 << 10);
    CHECK(result.share_saved() >= 0.999);
    CHECK(result.prompt_tokens.num_asked - result.prompt_tokens.num_saved == result.prompt_tokens.num_computed);
  }
}

TEST_CASE("planned, shuffled rows save as much with a pool of 32 k tokens") {
  for (const Requests& requests :
       {SharingWorkload::documents(), SharingWorkload::few_shot(), SharingWorkload::tree()}) {
    for (const Schedule schedule : {Schedule::kAuto, Schedule::kPrefix}) {
      const Requests order = planned(SharingWorkload::shuffled(requests), schedule, SharingWorkload::kNumSlots);
      CHECK(run_sharing_workload(order, 32 << 10).share_saved() >= 0.999);
    }
  }
}

TEST_CASE("shuffled rows save it where the pool holds all, and no more than that") {
  for (const Requests& requests :
       {SharingWorkload::documents(), SharingWorkload::few_shot(), SharingWorkload::tree()}) {
    const SharingResult result = run_sharing_workload(SharingWorkload::shuffled(requests), 512 << 10);
    CHECK(result.share_saved() >= 0.999);
    CHECK(result.share_saved() <= 1);
  }
}

}  // namespace llmb::test
