// Sequences laid out in a paged pool, as attention kernels take them: on the host and on the device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "kernels/cuda/paged_attention.h"
#include "kernels/cuda/paged_attention_shared.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"
#include "tests/support/kv_bytes.h"

namespace llmb::cuda {

template <class T>
constexpr DType kDTypeOf = std::is_same_v<T, float>    ? DType::kF32
                           : std::is_same_v<T, __half> ? DType::kF16
                                                       : DType::kBF16;

struct AttentionCase {
  AttentionShape shape;  // dtype is filled in
  float scale = 0;       // 0: 1 / sqrt(head_dim)
  float softcap = 0;
  bool has_alibi = false, has_sinks = false;
  int32_t num_ctas = 5;
  int32_t schedule_window = -1;  // -1: shape.window
  int32_t schedule_later = -1;   // -1: shape.later
  // > 0: items begin there at the earliest, and the list is of a shape without a chunk: a layer that has no keys before it.
  int32_t first_position = 0;
  // Prefixes that a launch of its own computes, and the queries that share them.
  std::vector<SharedPositions> shared_prefixes;
  std::vector<int32_t> shared_seqs;
  int32_t shared_window = 0;  // that the list of that launch is made for, 0 or the widest of a model's layers
  bool takes_states = true;   // false: as layers whose windows gain nothing, with the same lists and no such launch

  float score_scale() const { return scale > 0 ? scale : 1 / std::sqrt(static_cast<float>(shape.head_dim)); }
  float slope(int32_t head) const { return has_alibi ? 0.02f * static_cast<float>(head + 1) : 0; }
  float sink(int32_t head) const { return 0.5f * static_cast<float>(head % 5) - 1; }
  int64_t q_size() const { return int64_t{shape.num_heads} * shape.head_dim; }
  int64_t kv_size() const { return int64_t{shape.num_kv_heads} * shape.head_dim; }
  int64_t stride() const { return q_size() + 2 * kv_size(); }
  int64_t out_size() const { return int64_t{shape.num_heads} * shape.value_dim(); }
  int64_t block_stride() const { return shape.block_stride > 0 ? shape.block_stride : shape.dense_stride(); }
};

inline AttentionCase make_case(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t block_size = 16) {
  AttentionCase c;
  c.shape.num_heads = num_heads;
  c.shape.num_kv_heads = num_kv_heads;
  c.shape.head_dim = head_dim;
  c.shape.block_size = block_size;
  return c;
}

// A sequence's q, k and v for every position, fixed by its seed whatever batch it appears in; values that T holds.
struct SequenceData {
  std::vector<float> q, k, v;  // [length, q_size], [length, kv_size] twice
};

template <class T>
std::vector<float> random_values(int64_t n, uint32_t seed, float scale) {
  std::vector<float> values = test::random_normal(n, seed, scale);
  for (float& x : values) x = to_float(from_float<T>(x));
  return values;
}

inline DType dtype_of(KvCode code) { return code == KvCode::kInt8 ? DType::kI8 : DType::kF8; }

// Makes of each vector of `dim` a power of two times numbers of the code, of which one is the largest: bytes hold it
// exactly.
inline void round_to_code(KvCode code, int32_t dim, std::vector<float>* values) {
  const float largest = code == KvCode::kInt8 ? 127 : 448, unit = code == KvCode::kInt8 ? 0x1p-6f : 0x1p-8f;
  for (size_t begin = 0; begin < values->size(); begin += static_cast<size_t>(dim)) {
    const std::span x = std::span(*values).subspan(begin, static_cast<size_t>(dim));
    const float scale = begin % 3 == 0 ? 2 * unit : unit;
    for (float& v : x) v = std::clamp(v, -largest * scale, largest * scale);
    x[begin % x.size()] = largest * scale;
    const std::vector<float> stored = test::as_stored(dtype_of(code), x);
    std::copy(stored.begin(), stored.end(), x.begin());
  }
}

template <class T>
SequenceData make_sequence(const AttentionCase& c, int32_t length, uint32_t seed) {
  SequenceData data = {random_values<T>(length * c.q_size(), seed, 1.5f), random_values<T>(length * c.kv_size(), seed + 1000, 1.5f),
                       random_values<T>(length * c.kv_size(), seed + 2000, 1)};
  const KvCode code = c.shape.kv_code;
  if (code == KvCode::kNone) return data;
  round_to_code(code, c.shape.head_dim, &data.k);
  round_to_code(code, c.shape.head_dim, &data.v);
  return data;
}

// The last query_len positions of the first context_len of a sequence are new in the step. The schedule counts with
// `ahead` more. Its first blocks are those of an earlier query, whose data begin alike.
struct Query {
  const SequenceData* data;
  int32_t context_len, query_len;
  int32_t ahead = 0;
  int32_t shares_with = -1, num_shared_blocks = 0;
};

// A step's inputs on the host: pools in which blocks are shuffled and everything not written is NaN.
template <class T>
struct AttentionInputs {
  std::vector<int32_t> query_start = {0}, context_len, block_start = {0};
  std::vector<BlockId> ids;
  std::vector<T> qkv, k, v;

  AttentionInputs(const AttentionCase& c, std::span<const Query> queries, uint32_t seed) {
    const int32_t block_size = c.shape.block_size;
    for (const Query& q : queries) {
      query_start.push_back(query_start.back() + q.query_len);
      context_len.push_back(q.context_len);
      block_start.push_back(block_start.back() + static_cast<int32_t>(ceil_div(q.context_len + q.ahead, block_size)));
    }
    const int32_t num_blocks = block_start.back() + 3;
    for (int32_t i = 0; i < num_blocks; ++i) ids.push_back(i);
    std::mt19937 rng(seed);
    std::shuffle(ids.begin(), ids.end(), rng);
    for (size_t i = 0; i < queries.size(); ++i)
      for (int32_t block = 0; block < queries[i].num_shared_blocks; ++block)
        ids[block_start[i] + block] = ids[block_start[queries[i].shares_with] + block];
    const T nan = from_float<T>(std::nanf(""));
    qkv.assign(static_cast<size_t>(query_start.back() * c.stride()), nan);
    k.assign(static_cast<size_t>(num_blocks * c.block_stride()), nan);
    v = k;
    for (size_t i = 0; i < queries.size(); ++i) write(c, queries[i], i);
  }

 private:
  // Positions that no new token sees are left NaN.
  void write(const AttentionCase& c, const Query& query, size_t seq) {
    const SequenceData* const data = query.data;
    const int32_t context = query.context_len, query_len = query.query_len;
    const int32_t dim = c.shape.head_dim, block_size = c.shape.block_size;
    const int32_t first_new = context - query_len;
    const int32_t first = c.shape.chunk > 0    ? first_new / c.shape.chunk * c.shape.chunk
                          : c.shape.window > 0 ? std::max(0, first_new - c.shape.window + 1)
                                               : 0;
    for (int32_t p = first; p < context; ++p) {
      const int64_t block = ids[block_start[seq] + p / block_size];
      for (int32_t h = 0; h < c.shape.num_kv_heads; ++h) {
        const int64_t to = block * c.block_stride() + (int64_t{h} * block_size + p % block_size) * dim;
        for (int32_t i = 0; i < dim; ++i) {
          k[to + i] = from_float<T>(data->k[p * c.kv_size() + h * dim + i]);
          v[to + i] = from_float<T>(data->v[p * c.kv_size() + h * dim + i]);
        }
      }
    }
    for (int32_t t = 0; t < query_len; ++t)
      for (int64_t i = 0; i < c.q_size(); ++i)
        qkv[(query_start[seq] + t) * c.stride() + i] =
            from_float<T>(data->q[(context - query_len + t) * c.q_size() + i]);
  }
};

// A pool of keys or values as bytes, whose bits are those of int8_t: what was not written has NaN for its scale.
struct ScaledPool {
  template <class T>
  ScaledPool(const AttentionCase& c, const std::vector<T>& pool) {
    const auto dim = static_cast<size_t>(c.shape.head_dim);
    std::vector<float> x(dim);
    for (size_t row = 0; row < pool.size(); row += dim) {
      for (size_t i = 0; i < dim; ++i) x[i] = to_float(pool[row + i]);
      const bool is_written = std::isfinite(x[0]);
      const test::ByteRow rounded = test::round_to_bytes(dtype_of(c.shape.kv_code), x);
      scales.push_back(is_written ? rounded.scale : std::nanf(""));
      for (const uint8_t byte : rounded.bytes) values.push_back(is_written ? static_cast<int8_t>(byte) : int8_t{-128});
    }
  }
  std::vector<int8_t> values;
  std::vector<float> scales;
};

// The pools on the device, as the case wants them.
template <class T>
struct KvOnDevice {
  KvOnDevice(const AttentionCase& c, const AttentionInputs<T>& in)
      : code(c.shape.kv_code),
        k_scaled(c, code != KvCode::kNone ? in.k : std::vector<T>()),
        v_scaled(c, code != KvCode::kNone ? in.v : std::vector<T>()),
        k(in.k),
        v(in.v),
        k_bytes(k_scaled.values),
        v_bytes(v_scaled.values),
        k_scales(k_scaled.scales),
        v_scales(v_scaled.scales) {}
  void attend(const T* qkv, int64_t stride, T* out, const BlockId* ids, const AttentionWork& work,
              const AttentionParams& params) {
    const T* const values = params.shape.latent_dim > 0 ? k.data() : v.data();
    if (code == KvCode::kNone)
      return paged_attention<T>(qkv, stride, out, k.data(), values, ids, work, params, nullptr);
    const Int8Kv kv{k_bytes.data(), v_bytes.data(), k_scales.data(), v_scales.data()};
    if (code == KvCode::kInt8) return paged_attention<T>(qkv, stride, out, kv, ids, work, params, nullptr);
    const Fp8Kv fp8{reinterpret_cast<E4m3*>(kv.k), reinterpret_cast<E4m3*>(kv.v), kv.k_scales, kv.v_scales};
    paged_attention<T>(qkv, stride, out, fp8, ids, work, params, nullptr);
  }
  bool are_unchanged(const AttentionInputs<T>& in) const {
    return k.holds(in.k) && v.holds(in.v) && k_bytes.holds(k_scaled.values) && v_bytes.holds(v_scaled.values) &&
           k_scales.holds(k_scaled.scales) && v_scales.holds(v_scaled.scales);
  }

  KvCode code;
  ScaledPool k_scaled, v_scaled;
  test::DeviceArray<T> k, v;
  test::DeviceArray<int8_t> k_bytes, v_bytes;
  test::DeviceArray<float> k_scales, v_scales;
};

}  // namespace llmb::cuda
