// What this machine can do, measured in about 0.1 s each: the limits that kernels and steps are compared with.
#pragma once

#include "base/thread_pool.h"

namespace llmb::cpu {

double measure_peak_flops(ThreadPool& pool);  // fp32 multiply-adds in registers, 2 flops each; flop/s of all threads
// As many multiply-adds of int8 numbers into 32 bits, two operations each, in the form that linear uses on this machine.
double measure_peak_int8_ops(ThreadPool& pool);
double measure_read_bandwidth(ThreadPool& pool);  // bytes/s of all threads reading memory far larger than a cache

// The instruction set that run-time dispatch chose: "AVX3" (AVX-512), "AVX2", "NEON", …
const char* simd_target_name();

}  // namespace llmb::cpu
