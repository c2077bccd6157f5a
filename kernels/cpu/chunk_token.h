// The arguments of update_states.cpp's loops, which are compiled for each SIMD target. Private to it.
#pragma once

#include <cstdint>

namespace llmb::cpu {

// The tokens of a chunk so far in one head, and the one that is computed.
struct ChunkToken {
  bool is_delta;  // else u = b v
  int64_t key_dim, row_size;
  const float* q;         // [key_dim]
  const float* k;         // [key_dim]
  int32_t index;          // in its chunk
  float decay;            // e^G
  float rate;             // b
  float own;              // k · q
  const float* by_key;    // [16]  e^(G - Gᵢ) (kᵢ · k)
  const float* by_query;  // [16]  e^(G - Gᵢ) (kᵢ · q)
};

}  // namespace llmb::cpu
