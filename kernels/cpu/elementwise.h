// add: residual += factor * delta. scale: x = factor * x. softcap: x = cap * tanh(x / cap) (Gemma 2). clamp: x is
// brought into [-limit, limit]. Each element depends on its own inputs alone; NaN stays NaN.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace llmb::cpu {

void add(float* residual,     // [size]  in and out
         const float* delta,  // [size]
         float factor, int64_t size, ThreadPool& pool);

void scale(float* x,  // [size]  in and out
           float factor, int64_t size, ThreadPool& pool);

void softcap(float* x,  // [size]  in and out
             float cap, int64_t size, ThreadPool& pool);

void clamp(float* x,  // [size]  in and out
           float limit, int64_t size, ThreadPool& pool);

}  // namespace llmb::cpu
