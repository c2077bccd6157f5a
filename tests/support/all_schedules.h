// How much of the largest products of cases a test runs.
#pragma once

#include <cstdlib>

namespace llmb::test {

// LLMB_ALL_SCHEDULES=1 asks for each case under each schedule, as tools/test_long.sh does; otherwise such a test takes some
// of the pairs, always the same ones.
inline bool runs_all_schedules() { return std::getenv("LLMB_ALL_SCHEDULES") != nullptr; }

}  // namespace llmb::test
