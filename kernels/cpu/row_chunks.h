// Loops over rows in chunks large enough to be worth a thread's wake-up; small calls stay on the calling thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"
#include "core/types.h"
#include "kernels/cpu/tuning.h"

namespace llmb::cpu {

// Calls body(row, thread) for each row in [0, rows), rows of a chunk in order on one thread.
template <typename Body>
void for_each_row(ThreadPool& pool, int64_t rows, int64_t floats_per_row, const Body& body) {
  const int64_t chunk = std::max<int64_t>(1, kSpanFloats / std::max<int64_t>(1, floats_per_row));
  pool.parallel_for(ceil_div(rows, chunk), [&](int64_t task, int thread) {
    for (int64_t row = task * chunk; row < std::min(rows, (task + 1) * chunk); ++row) body(row, thread);
  });
}

}  // namespace llmb::cpu
