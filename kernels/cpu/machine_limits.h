// What this machine can do, measured in about 0.1 s each: the limits that kernels and steps are compared with.
#pragma once

#include "base/thread_pool.h"

namespace llmb::cpu {

double measure_peak_flops(ThreadPool& pool);  // fp32 multiply-adds in registers, 2 flops each; flop/s of all threads
// As many multiply-adds of int8 numbers into 32 bits, two operations each, in the form that linear uses on this
// machine.
double measure_peak_int8_ops(ThreadPool& pool);
// As many of bf16 numbers into fp32: by AMX or AVX-512-BF16 where has_fast_bf16(), else measure_peak_flops.
double measure_peak_bf16_flops(ThreadPool& pool);
double measure_read_bandwidth(ThreadPool& pool);  // bytes/s of all threads reading memory far larger than a cache

// The instruction set that run-time dispatch chose: "AVX3" (AVX-512), "AVX2", "NEON", …
const char* simd_target_name();

}  // namespace llmb::cpu
