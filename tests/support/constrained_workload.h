// Workloads in which rows have constraints.
#pragma once

#include <cstdint>
#include <memory>

#include "tests/support/test_rng.h"
#include "tests/support/toy_constraint.h"
#include "tests/support/workload.h"

namespace llmb::test {

// Gives about this share of the requests a constraint, many of which have tokens without a choice. Returns how many got one.
inline int32_t constrain(double share, Workload* workload) {
  TestRng rng(workload->seed ^ 0x636f6e73);
  int32_t count = 0;
  for (auto& shared : workload->requests) {
    if (!rng.chance(share)) continue;
    auto request = std::make_shared<Request>(*shared);
    request->params.stop.ignore_eos = false;
    const auto one_in = static_cast<uint32_t>(rng.between(1, 6));
    const int64_t num_forced = rng.chance(0.5) ? 0 : rng.log_between(1, 40);
    request->constraint = std::make_shared<ToyConstraint>(workload->seed, workload->model.vocab_size, one_in,
                                                          workload->model.eos_token_ids, num_forced);
    shared = request;
    ++count;
  }
  return count;
}

}  // namespace llmb::test
