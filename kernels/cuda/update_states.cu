// With few rows bound by reading the states, 4 bytes an element of a matrix and step; with many by 4 multiply-adds for
// each element and token. A block has 32 columns of a value head's matrix of one sequence, in registers: a lane has a
// column, and each of 8 warps every eighth row. It goes through the sequence's chunks: products of the matrix with the
// keys and queries of eight tokens at a time, or of one where a step has a row a sequence, then what tokens of the chunk
// do to each other, column by column, then, where the sequence goes on behind the chunk, the matrix behind it. The
// matrix is read once a step, and written where the step passes the end of a chunk.
//
// Keys belong to several blocks. A second kernel leaves them in the slot, when all have read those that were there.
#include "kernels/cuda/update_states.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kChunk = kStateChunk;
constexpr int kGroup = 8;  // tokens that are multiplied with the matrix together, kTokens of a kernel: as many, or 1
// Between a channel's numbers and the next one's: lanes with neighbouring channels write to other banks.
constexpr int kStride = kChunk + 4;
static_assert(kGroup == kWarps && kChunk % kGroup == 0);

template <class T>
struct Update {
  int32_t key_dim, value_dim, heads_per_key, num_value_heads, num_chunks;
  int64_t conv_channels, keys_size, values_size, gates_size, row_size;
  // In floats: of a slot before the layer's matrices and before its first chunk; of a chunk, and in it of the parts.
  int64_t matrices, chunks, chunk_size, updates, decays;
  float query_factor;
  const T* qkv;
  const float* gates;
  StateWeights weights;
  const StateEntry* entries;
  T* out;

  __device__ float* chunk(const StateEntry& entry, int32_t position) const {
    return entry.slot + chunks + position / kChunk % num_chunks * chunk_size;
  }
  // [kChunk, key_dim]
  __device__ float* keys_in(float* chunk, int32_t key_head) const {
    return chunk + int64_t{key_head} * kChunk * key_dim;
  }
  __device__ float* updates_in(float* chunk, int32_t head) const {  // [kChunk, row_size]
    return chunk + updates + head * kChunk * row_size;
  }
  __device__ float* decays_in(float* chunk, int32_t head) const { return chunk + decays + head * kChunk; }
  __device__ int64_t row_of(const StateEntry& entry, int32_t position) const {
    return int64_t{entry.first_row} + position - entry.first_position;
  }
};

// 1 / the length of a vector, the same in each lane of the warp that asks.
template <class T>
__device__ float inverse_length(const T* x, int32_t size) {
  float squares = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x % kWarp); i < size; i += kWarp) {
    const float value = to_float(x[i]);
    squares = fmaf(value, value, squares);
  }
  return 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
}

__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// ln(1 + e^(input + dt_bias)) of a token and head.
template <class T, bool kDelta>
__device__ float step_size(const Update<T>& u, int64_t row, int32_t head) {
  const float input = u.gates[row * u.gates_size + (kDelta ? u.num_value_heads + head : head)];
  return softplus(input + u.weights.dt_bias[head]);
}

template <class T, bool kDelta>
__device__ float log_decay(const Update<T>& u, int64_t row, int32_t head) {
  return -expf(u.weights.log_a[head]) * step_size<T, kDelta>(u, row, head);
}

// A chunk's tokens, by their places in it.
template <int kRows, int kTokens>
struct alignas(16) Chunk {
  float keys[kRows * kWarps][kStride], queries[kRows * kWarps][kStride];
  float values[kChunk][kWarp], updates[kChunk][kWarp];        // of the block's columns
  float by_key[kChunk][kWarp], by_query[kChunk][kWarp];       // products with the matrix
  float key_weights[kChunk][kChunk];                          // [token][one before it]  e^(G - Gᵢ) (kᵢ · k)
  float query_weights[kChunk][kChunk];                        // [token][up to it]       e^(G - Gᵢ) (kᵢ · q)
  float log_decay[kChunk], sum[kChunk], decay[kChunk], rate[kChunk];  // of tokens; sum: G; decay: e^G
  float part_by_key[kWarps][kTokens][kWarp], part_by_query[kWarps][kTokens][kWarp];
  float part_tokens[kWarps][kTokens][kWarp];  // kᵢ · k, then kᵢ · q
};

// Where a block is.
struct Block {
  int32_t head, key_head, warp, lane, column;
  bool is_column;  // of the matrix; else padding
};

// Tokens [0, num_stored) of the chunk come from the slot, [num_stored, end) from the step's rows.
template <class T, bool kDelta, int kRows, int kTokens>
__device__ void load_chunk(const Update<T>& u, const StateEntry& entry, const Block& b, int32_t border,
                           int32_t num_stored, int32_t end, Chunk<kRows, kTokens>& s) {
  constexpr int kDim = kRows * kWarps;
  float* const stored = u.chunk(entry, border);
  const float* const keys = u.keys_in(stored, b.key_head);
  const float* const updates = u.updates_in(stored, b.head);
  for (int32_t t = b.warp; t < num_stored; t += kWarps) {
    for (int32_t d = b.lane; d < kDim; d += kWarp)
      s.keys[d][t] = d < u.key_dim ? keys[int64_t{t} * u.key_dim + d] : 0.0f;
    s.updates[t][b.lane] = b.is_column ? updates[t * u.row_size + b.column] : 0.0f;
  }
  for (int32_t t = num_stored + b.warp; t < end; t += kWarps) {
    const T* const row = u.qkv + u.row_of(entry, border + t) * u.conv_channels;
    const T* const q = row + int64_t{b.key_head} * u.key_dim;
    const T* const k = q + u.keys_size;
    const float key_scale = kDelta ? inverse_length(k, u.key_dim) : 1.0f;
    const float query_scale = kDelta ? inverse_length(q, u.key_dim) * u.query_factor : 1.0f;
    for (int32_t d = b.lane; d < kDim; d += kWarp) {
      s.keys[d][t] = d < u.key_dim ? to_float(k[d]) * key_scale : 0.0f;
      s.queries[d][t] = d < u.key_dim ? to_float(q[d]) * query_scale : 0.0f;
    }
    const T* const v = row + 2 * u.keys_size + int64_t{b.head} * u.value_dim;
    s.values[t][b.lane] = b.is_column ? to_float(v[b.column]) : 0.0f;
  }
  const auto t = static_cast<int32_t>(threadIdx.x);
  if (t < num_stored) s.sum[t] = u.decays_in(stored, b.head)[t];
  if (t >= num_stored && t < end) {
    const int64_t row = u.row_of(entry, border + t);
    s.log_decay[t] = log_decay<T, kDelta>(u, row, b.head);
    s.rate[t] = kDelta ? 1.0f / (1.0f + expf(-u.gates[row * u.gates_size + b.head]))
                       : step_size<T, kDelta>(u, row, b.head);
  }
  __syncthreads();
  if (t >= end) return;
  // Each thread makes its own token's, so that none waits for another's.
  float sum = t < num_stored ? s.sum[t] : num_stored > 0 ? s.sum[num_stored - 1] : 0.0f;
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    if (i >= num_stored && i <= t) sum += s.log_decay[i];
  if (t >= num_stored) s.sum[t] = sum;
  s.decay[t] = expf(sum);
}

// Products of tokens [first, first + kTokens) with the matrix and with the chunk's keys. The sums of a token have the same
// order with any kTokens.
template <bool kDelta, int kRows, int kTokens>
__device__ void multiply(const float (&matrix)[kRows], const Block& b, int32_t first, int32_t num_stored, int32_t end,
                         Chunk<kRows, kTokens>& s) {
  float by_key[kTokens] = {}, by_query[kTokens] = {}, by_token[kTokens] = {};
  const bool is_key = b.lane < kChunk;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int d = i * kWarps + b.warp;
    alignas(16) float keys[kTokens], queries[kTokens];
    if constexpr (kTokens == 1) {
      keys[0] = s.keys[d][first];
      queries[0] = s.queries[d][first];
    } else {
#pragma unroll
      for (int t = 0; t < kTokens; t += 4) {
        *reinterpret_cast<float4*>(keys + t) = *reinterpret_cast<const float4*>(&s.keys[d][first + t]);
        *reinterpret_cast<float4*>(queries + t) = *reinterpret_cast<const float4*>(&s.queries[d][first + t]);
      }
    }
    const float other = s.keys[d][b.lane % kChunk];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (kDelta) by_key[t] = fmaf(matrix[i], keys[t], by_key[t]);
      by_query[t] = fmaf(matrix[i], queries[t], by_query[t]);
      by_token[t] = fmaf(other, is_key ? keys[t] : queries[t], by_token[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    s.part_by_key[b.warp][t][b.lane] = by_key[t];
    s.part_by_query[b.warp][t][b.lane] = by_query[t];
    s.part_tokens[b.warp][t][b.lane] = by_token[t];
  }
  __syncthreads();
  const int32_t t = b.warp, j = first + t, i = b.lane % kChunk;
  const auto sum = [&](const float (&parts)[kWarps][kTokens][kWarp]) {
    float of[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) of[w] = parts[w][t][b.lane];
#pragma unroll
    for (int step = 1; step < kWarps; step *= 2) {
#pragma unroll
      for (int w = 0; w < kWarps; w += 2 * step) of[w] += of[w + step];
    }
    return of[0];
  };
  if (t < kTokens && j >= num_stored && j < end) {
    if (kDelta) s.by_key[j][b.lane] = sum(s.part_by_key);
    s.by_query[j][b.lane] = sum(s.part_by_query);
    const float weight = i < j ? expf(s.sum[j] - s.sum[i]) * sum(s.part_tokens) : 0.0f;
    if (is_key) s.key_weights[j][i] = weight;
    else s.query_weights[j][i] = i == j ? sum(s.part_tokens) : weight;
  }
  __syncthreads();
}

// The updates of tokens [num_stored, end), each from those before it.
template <bool kDelta, int kRows, int kTokens>
__device__ void update(const Block& b, int32_t num_stored, int32_t end, Chunk<kRows, kTokens>& s) {
  if (!kDelta) {
    for (int32_t t = num_stored + b.warp; t < end; t += kWarps) s.updates[t][b.lane] = s.rate[t] * s.values[t][b.lane];
  } else if (b.warp == 0) {
    float updates[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      updates[j] = 0;
      if (j < num_stored) updates[j] = s.updates[j][b.lane];
      if (j < num_stored || j >= end) continue;
      float seen = s.decay[j] * s.by_key[j][b.lane];
#pragma unroll
      for (int i = 0; i < j; ++i) seen = fmaf(updates[i], s.key_weights[j][i], seen);
      updates[j] = s.rate[j] * (s.values[j][b.lane] - seen);
      s.updates[j][b.lane] = updates[j];
    }
  }
  __syncthreads();
}

template <class T, int kRows, int kTokens>
__device__ void give(const Update<T>& u, const StateEntry& entry, const Block& b, int32_t border, int32_t num_stored,
                     int32_t end, const Chunk<kRows, kTokens>& s) {
  if (!b.is_column) return;
  const bool is_kept = border >= entry.next_border;
  float* const kept = u.updates_in(u.chunk(entry, border), b.head) + b.column;
  float updates[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) updates[i] = s.updates[i][b.lane];
  for (int32_t j = num_stored + b.warp; j < end; j += kWarps) {
    float given = s.decay[j] * s.by_query[j][b.lane];
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      if (i <= j) given = fmaf(updates[i], s.query_weights[j][i], given);
    if (u.weights.skip != nullptr) given = fmaf(u.weights.skip[b.head], s.values[j][b.lane], given);
    u.out[u.row_of(entry, border + j) * u.values_size + int64_t{b.head} * u.value_dim + b.column] = from_float<T>(given);
    if (is_kept) kept[j * u.row_size] = s.updates[j][b.lane];
  }
}

// The chunk is complete: matrix = e^G * matrix + sum over its tokens of e^(G - Gᵢ) kᵢ uᵢᵀ
template <int kRows, int kTokens>
__device__ void close_chunk(const Block& b, const Chunk<kRows, kTokens>& s, float (&matrix)[kRows]) {
  float updates[kChunk];
#pragma unroll
  for (int t = 0; t < kChunk; ++t) updates[t] = expf(s.sum[kChunk - 1] - s.sum[t]) * s.updates[t][b.lane];
  const float decay = expf(s.sum[kChunk - 1]);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float sum = matrix[i] * decay;
#pragma unroll
    for (int t = 0; t < kChunk; t += 4) {
      const float4 k = *reinterpret_cast<const float4*>(&s.keys[i * kWarps + b.warp][t]);
      sum = fmaf(k.x, updates[t], sum);
      sum = fmaf(k.y, updates[t + 1], sum);
      sum = fmaf(k.z, updates[t + 2], sum);
      sum = fmaf(k.w, updates[t + 3], sum);
    }
    matrix[i] = sum;
  }
}

// kRows: of a warp; kRows * kWarps >= key_dim. With one token at a time four blocks fit a multiprocessor.
template <class T, bool kDelta, int kRows, int kTokens>
__global__ void __launch_bounds__(kThreads, kTokens == 1 && kRows <= 16 ? 4 : 2) update_states_kernel(Update<T> u) {
  ptx::follow_previous_grid();
  Chunk<kRows, kTokens>& s = *dynamic_shared<Chunk<kRows, kTokens>>();
  const StateEntry entry = u.entries[blockIdx.z];
  if (entry.num_rows == 0) return;
  Block b;
  b.head = static_cast<int32_t>(blockIdx.y);
  b.key_head = b.head / u.heads_per_key;
  b.warp = static_cast<int32_t>(threadIdx.x / kWarp);
  b.lane = static_cast<int32_t>(threadIdx.x % kWarp);
  b.column = static_cast<int32_t>(blockIdx.x) * kWarp + b.lane;
  b.is_column = b.column < u.value_dim;
  float* const stored = entry.slot + u.matrices + int64_t{b.head} * u.key_dim * u.row_size + b.column;
  const auto is_element = [&](int d) { return d < u.key_dim && b.is_column; };
  float matrix[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int d = i * kWarps + b.warp;
    matrix[i] = entry.border > 0 && is_element(d) ? stored[d * u.row_size] : 0.0f;
  }
  const int32_t end_position = entry.first_position + entry.num_rows;
  for (int32_t border = entry.border;; border += kChunk) {
    const int32_t num_stored = max(0, min(kChunk, entry.first_position - border));
    const int32_t end = min(kChunk, end_position - border);
    load_chunk<T, kDelta>(u, entry, b, border, num_stored, end, s);
    __syncthreads();
    for (int32_t first = num_stored / kTokens * kTokens; first < end; first += kTokens)
      multiply<kDelta>(matrix, b, first, num_stored, end, s);
    update<kDelta>(b, num_stored, end, s);
    give(u, entry, b, border, num_stored, end, s);
    if (end_position <= border + kChunk) return;
    close_chunk(b, s, matrix);
    __syncthreads();
    if (border + kChunk != entry.next_border) continue;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int d = i * kWarps + b.warp;
      if (is_element(d)) stored[d * u.row_size] = matrix[i];
    }
  }
}

// Keys and decays of the chunks that are not in the matrices, as update_states_kernel computes them. A block is a key
// head of one sequence.
template <class T, bool kDelta>
__global__ void __launch_bounds__(kThreads) keep_chunks_kernel(Update<T> u) {
  ptx::follow_previous_grid();
  const StateEntry entry = u.entries[blockIdx.y];
  if (entry.num_rows == 0) return;
  const auto key_head = static_cast<int32_t>(blockIdx.x);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarp), lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const int32_t begin = max(entry.first_position, entry.next_border), end = entry.first_position + entry.num_rows;
  for (int32_t position = begin + warp; position < end; position += kWarps) {
    const T* const k = u.qkv + u.row_of(entry, position) * u.conv_channels + u.keys_size + int64_t{key_head} * u.key_dim;
    const float scale = kDelta ? inverse_length(k, u.key_dim) : 1.0f;
    float* const to = u.keys_in(u.chunk(entry, position), key_head) + int64_t{position % kChunk} * u.key_dim;
    for (int32_t d = lane; d < u.key_dim; d += kWarp) to[d] = to_float(k[d]) * scale;
  }
  for (auto i = static_cast<int32_t>(threadIdx.x); i < u.heads_per_key; i += kThreads) {
    const int32_t head = key_head * u.heads_per_key + i;
    for (int32_t position = begin; position < end; ++position) {
      float* const decays = u.decays_in(u.chunk(entry, position), head);
      const int32_t t = position % kChunk;
      decays[t] = (t > 0 ? decays[t - 1] : 0.0f) + log_decay<T, kDelta>(u, u.row_of(entry, position), head);
    }
  }
}

template <class T, bool kDelta>
void run(const Update<T>& u, int32_t num_key_heads, int32_t num_entries, int32_t num_tokens, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(u.value_dim, kWarp)), static_cast<unsigned>(u.num_value_heads),
                  static_cast<unsigned>(num_entries));
  const auto launch = [&](auto rows, auto tokens) {
    launch_ahead({grid, dim3(kThreads), sizeof(Chunk<rows(), tokens()>), stream},
                 update_states_kernel<T, kDelta, rows(), tokens()>, u);
  };
  const auto with_rows = [&](auto rows) {
    if (num_tokens <= num_entries) launch(rows, std::integral_constant<int, 1>());
    else launch(rows, std::integral_constant<int, kGroup>());
  };
  if (u.key_dim <= 8 * kWarps) with_rows(std::integral_constant<int, 8>());
  else if (u.key_dim <= 16 * kWarps) with_rows(std::integral_constant<int, 16>());
  else with_rows(std::integral_constant<int, 32>());
  launch_ahead({dim3(static_cast<unsigned>(num_key_heads), static_cast<unsigned>(num_entries)), dim3(kThreads), 0,
                stream},
               keep_chunks_kernel<T, kDelta>, u);
}

}  // namespace

template <class T>
void update_states(const StateLayout& layout, int32_t state_layer, const T* qkv, const float* gates,
                   const StateWeights& weights, const StateEntry* entries, int32_t num_entries, int32_t num_tokens,
                   T* out, cudaStream_t stream) {
  const StateConfig& c = layout.config;
  LLMB_CHECK(c.key_dim <= kMaxStateKeyDim && num_entries <= 65535);
  if (num_entries == 0) return;
  Update<T> u;
  u.key_dim = c.key_dim, u.value_dim = c.value_dim;
  u.heads_per_key = c.num_value_heads / c.num_key_heads, u.num_value_heads = c.num_value_heads;
  u.num_chunks = layout.num_chunks();
  u.conv_channels = c.conv_channels(), u.keys_size = c.keys_size(), u.values_size = c.values_size();
  u.gates_size = c.gates_size(), u.row_size = layout.row_size();
  u.matrices = kStateHeader + state_layer * layout.layer_size();
  u.chunks = u.matrices + layout.matrices_size();
  u.chunk_size = layout.chunk_size();
  u.updates = layout.keys_size(), u.decays = layout.keys_size() + layout.updates_size();
  u.query_factor = 1 / std::sqrt(static_cast<float>(c.key_dim));
  u.qkv = qkv, u.gates = gates, u.weights = weights, u.entries = entries, u.out = out;
  if (c.kind == StateKind::kGatedDelta) run<T, true>(u, c.num_key_heads, num_entries, num_tokens, stream);
  else run<T, false>(u, c.num_key_heads, num_entries, num_tokens, stream);
}

template void update_states(const StateLayout&, int32_t, const float*, const float*, const StateWeights&,
                            const StateEntry*, int32_t, int32_t, float*, cudaStream_t);
template void update_states(const StateLayout&, int32_t, const __nv_bfloat16*, const float*, const StateWeights&,
                            const StateEntry*, int32_t, int32_t, __nv_bfloat16*, cudaStream_t);
template void update_states(const StateLayout&, int32_t, const __half*, const float*, const StateWeights&,
                            const StateEntry*, int32_t, int32_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
