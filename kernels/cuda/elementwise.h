// add: residual += factor * delta; out = residual. add_columns: x += factor * y, of rows of y. scale: x = factor * x.
// add_scaled: residual = factor * (residual + delta). softcap: x = cap * tanh(x / cap) (Gemma 2). clamp: x is brought
// into [-limit, limit]. add_gated: x += e(gate) * y, e the logistic function. multiply_by_gate: x = x * f(gate).
// grow_queries: q grows with its position (core/model_config.h). Elementwise in fp32, rounded once; NaN stays NaN.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/activation.h"
#include "core/model_config.h"

namespace llmb::cuda {

// T, everywhere: float, __nv_bfloat16 or __half. Throws CudaError.
template <class T>
void add(float* residual,  // [size]  in and out
         const T* delta,   // [size]  or nullptr: nothing is added
         float factor, int64_t size,
         T* out,  // [size]  or nullptr: not wanted
         cudaStream_t stream);

template <class T>
void add_columns(float* x,    // [rows, width]  in and out
                 const T* y,  // [rows, stride]  the first width columns are read
                 int64_t stride, float factor, int64_t rows, int64_t width, cudaStream_t stream);

void scale(float* x,  // [size]  in and out
           float factor, int64_t size, cudaStream_t stream);

template <class T>
void add_scaled(float* residual,      // [size]  in and out
                const T* delta,       // [size]
                const float* factor,  // [1]  on the device
                int64_t size, cudaStream_t stream);

void softcap(float* x,  // [size]  in and out
             float cap, int64_t size, cudaStream_t stream);

template <class T>
void clamp(T* x,  // [size]  in and out
           float limit, int64_t size, cudaStream_t stream);

template <class T>
void add_gated(T* x,               // [rows, width]  in and out
               const T* y,         // [rows, width]
               const float* gate,  // [rows]  or nullptr: x += y
               int64_t rows, int64_t width, cudaStream_t stream);

template <class T>
void multiply_by_gate(GateKind kind,
                      T* x,           // [size]  in and out
                      const T* gate,  // [size]
                      int64_t size, cudaStream_t stream);

template <class T>
void grow_queries(T* qkv,                    // [rows, stride]  the first q_size columns grow
                  const int32_t* positions,  // [rows]
                  const QueryGrowth& growth, int64_t rows, int64_t q_size, int64_t stride, cudaStream_t stream);

}  // namespace llmb::cuda
