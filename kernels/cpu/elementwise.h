// add: residual += factor * delta; add_columns: the same of rows. sum: of several arrays, in their order. scale: x =
// factor * x. softcap: x = cap * tanh(x / cap) (Gemma 2). clamp: x is brought into [-limit, limit]. add_gated: x +=
// e(gate) * y, e the logistic function. grow_queries: q grows with its position (core/model_config.h). Each element
// depends on its own inputs alone; NaN stays NaN.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "core/activation.h"
#include "core/model_config.h"

namespace llmb::cpu {

void add(float* residual,     // [size]  in and out
         const float* delta,  // [size]
         float factor, int64_t size, ThreadPool& pool);

void add_columns(float* x,        // [rows, width]  in and out
                 const float* y,  // [rows, stride]  the first width columns are read
                 int64_t stride, float factor, int64_t rows, int64_t width, ThreadPool& pool);

void sum(std::span<const void* const> parts,  // each [size] floats
         int64_t size,
         float* out,  // [size]  none of the parts
         ThreadPool& pool);

void scale(float* x,  // [size]  in and out
           float factor, int64_t size, ThreadPool& pool);

void softcap(float* x,  // [size]  in and out
             float cap, int64_t size, ThreadPool& pool);

void clamp(float* x,  // [size]  in and out
           float limit, int64_t size, ThreadPool& pool);

void add_gated(float* x,           // [rows, width]  in and out
               const float* y,     // [rows, width]
               const float* gate,  // [rows]  or nullptr: x += y
               int64_t rows, int64_t width, ThreadPool& pool);

void multiply_by_gate(GateKind kind,
                      float* x,           // [size]  in and out
                      const float* gate,  // [size]
                      int64_t size, ThreadPool& pool);

void grow_queries(float* qkv,                // [rows, stride]  the first q_size columns grow
                  const int32_t* positions,  // [rows]
                  const QueryGrowth& growth, int64_t rows, int64_t q_size, int64_t stride, ThreadPool& pool);

}  // namespace llmb::cpu
