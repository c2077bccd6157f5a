// This machine's speed, measured in about 0.2 s each: the limits that kernels and steps are compared with.
#pragma once

#include <cstdint>
#include <string>

#include "base/thread_pool.h"

namespace llmb::cpu {

// Others on a machine only ever slow a round down. A kernel's best round is compared with the best one here; what takes
// long, as a step or a run does, with what was sustained.
struct Rate {
  double best;       // of rounds of a few milliseconds
  double sustained;  // over all of them
};

Rate measure_peak_flops(ThreadPool& pool);  // fp32 multiply-adds in registers, 2 flops each; flop/s of all threads
// As many multiply-adds of int8 numbers into 32 bits, two operations each, in the form that linear uses on this
// machine.
Rate measure_peak_int8_ops(ThreadPool& pool);
// As many of bf16 numbers into fp32: by AMX, AVX-512-BF16 or BFMMLA where has_fast_bf16(), else measure_peak_flops.
Rate measure_peak_bf16_flops(ThreadPool& pool);
// Bytes/s of all threads reading memory of four times the last-level caches, 320 MiB at least and 2 GiB at most; of
// max_bytes where that is less, which then may come from a cache. Takes as much memory, and a second where it is large.
Rate measure_read_bandwidth(ThreadPool& pool, int64_t max_bytes = INT64_MAX);

// The instruction set that run-time dispatch chose: "AVX3" (AVX-512), "AVX2", "NEON", … (cpu_target.h)
std::string simd_target_name();

}  // namespace llmb::cpu
