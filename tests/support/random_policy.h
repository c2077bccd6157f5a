// Policies for tests: pure functions that rank sequences in every way that a policy may.
#pragma once

#include <cstdint>

#include "scheduler/rank.h"

namespace llmb::test {

// Fixed ranks at random, few values, so that many are equal.
Policy random_priorities(uint64_t seed, int32_t num_levels);
// Newcomers first.
Policy last_come_first_served(int32_t num_levels);
// A sequence falls a level each time it has got `quantum` tokens more.
Policy levels_by_output(int32_t quantum, int32_t num_levels);
// Random priorities; who has waited for `patience_ms` goes before all others.
Policy with_patience(uint64_t seed, double patience_ms, int32_t num_levels);
// Ranks that change at random with every token and every `period_ms`.
Policy restless(uint64_t seed, double period_ms, int32_t num_levels);

// One of these, or first come, first served.
Policy random_policy(uint64_t seed);

}  // namespace llmb::test
