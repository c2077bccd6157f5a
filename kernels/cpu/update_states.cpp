// With few rows bound by reading the states: one matrix of a head for each of its tokens. With many, by 4 multiply-adds
// for each element of a matrix and token. One task is a key head of one sequence, with its value heads.
#include "kernels/cpu/update_states.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/chunk_token.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update_states.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

static_assert(kStateChunk == kLogicalLanes);

// 16 floats of a matrix's rows at a time, as many times as registers hold.
constexpr int kBlocks = kParts == 1 ? 4 : 2;

// out = x / length(x) * factor, as x * (1 / sqrt(sum of squares + 1e-6)) * factor
HWY_INLINE void normalise(const float* x, int64_t n, float factor, float* out) {
  const auto mul_add = [](V a, V b, V c) HWY_ATTR { return hn::MulAdd(a, b, c); };
  const int64_t full = n - n % kLogicalLanes, rest = n - full;
  V16 squares = set16(0);
  for (int64_t i = 0; i < full; i += kLogicalLanes) squares = map16(load16(x + i), load16(x + i), squares, mul_add);
  if (rest > 0) squares = map16(load16_partial(x + full, rest), load16_partial(x + full, rest), squares, mul_add);
  const float scale = 1.0f / std::sqrt(sum16(squares) + 1e-6f);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * factor;
}

// Columns [first, first + 16 kNum) of the matrix.
template <int kNum, bool kDelta>
HWY_INLINE void update_columns(const ChunkToken& t, const float* matrix, const float* v, int64_t first, float* updates,
                               float* out) {
  const auto mul_add = [](V a, V b, V c) HWY_ATTR { return hn::MulAdd(a, b, c); };
  V16 by_key[kNum], by_query[kNum];
  LLMB_UNROLL for (int i = 0; i < kNum; ++i) by_key[i] = by_query[i] = set16(0);
  const float* row = matrix + first;
  for (int64_t d = 0; d < t.key_dim; ++d, row += t.row_size) {
    const V16 k = set16(t.k[d]), q = set16(t.q[d]);
    LLMB_UNROLL for (int i = 0; i < kNum; ++i) {
      const V16 s = load16(row + i * kLogicalLanes);
      if constexpr (kDelta) by_key[i] = map16(s, k, by_key[i], mul_add);
      by_query[i] = map16(s, q, by_query[i], mul_add);
    }
  }
  const V decay = hn::Set(D(), t.decay), rate = hn::Set(D(), t.rate), own = hn::Set(D(), t.own);
  LLMB_UNROLL for (int i = 0; i < kNum; ++i) {
    const int64_t at = first + i * kLogicalLanes;
    V16 seen = map16(by_key[i], [decay](V x) HWY_ATTR { return hn::Mul(x, decay); });
    V16 given = map16(by_query[i], [decay](V x) HWY_ATTR { return hn::Mul(x, decay); });
    for (int32_t j = 0; j < t.index; ++j) {
      const V16 u = load16(updates + j * t.row_size + at);
      if constexpr (kDelta) seen = map16(u, set16(t.by_key[j]), seen, mul_add);
      given = map16(u, set16(t.by_query[j]), given, mul_add);
    }
    const V16 u = map16(load16(v + at), seen, [rate](V a, V b) HWY_ATTR { return hn::Mul(rate, hn::Sub(a, b)); });
    store16(u, updates + t.index * t.row_size + at);
    store16(map16(u, given, [own](V a, V b) HWY_ATTR { return hn::MulAdd(a, own, b); }), out + at);
  }
}

template <bool kDelta>
HWY_INLINE void update_matrix(const ChunkToken& t, const float* matrix, const float* v, float* updates, float* out) {
  int64_t first = 0;
  for (; first + kBlocks * kLogicalLanes <= t.row_size; first += kBlocks * kLogicalLanes)
    update_columns<kBlocks, kDelta>(t, matrix, v, first, updates, out);
  for (; first < t.row_size; first += kLogicalLanes) update_columns<1, kDelta>(t, matrix, v, first, updates, out);
}

// `v` and `out` are as long as a row of the matrix.
void update_head(const ChunkToken& t, const float* matrix, const float* v, float* updates, float* out) {
  if (t.is_delta) update_matrix<true>(t, matrix, v, updates, out);
  else update_matrix<false>(t, matrix, v, updates, out);
}

// sums[i] = kᵢ · x for the tokens of the chunk; keys: [key_dim, 16]
void chunk_products(const float* keys, const float* x, int64_t key_dim, float* sums) {
  V16 sum = set16(0);
  for (int64_t d = 0; d < key_dim; ++d)
    sum = map16(load16(keys + d * kLogicalLanes), set16(x[d]), sum, [](V a, V b, V c) HWY_ATTR {
      return hn::MulAdd(a, b, c);
    });
  store16(sum, sums);
}

// out[i] = e^(last - decays[i])
void decays_since(const float* decays, float last, float* out) {
  const V to = hn::Set(D(), last);
  store16(map16(load16(decays), [to](V x) HWY_ATTR { return exp_v(hn::Sub(to, x)); }), out);
}

// The chunk is complete: matrix = e^G * matrix + sum over its tokens of e^(G - Gᵢ) kᵢ uᵢᵀ
void close_chunk(const float* keys, const float* decays, const float* updates, int64_t key_dim, int64_t row_size,
                 float* matrix) {
  float weights[kStateChunk], decay[kStateChunk];
  decays_since(decays, decays[kStateChunk - 1], weights);
  const float zero[kStateChunk] = {};
  decays_since(zero, decays[kStateChunk - 1], decay);
  const V by = hn::Set(D(), decay[0]);
  for (int64_t d = 0; d < key_dim; ++d) {
    float factors[kStateChunk];
    for (int32_t i = 0; i < kStateChunk; ++i) factors[i] = keys[d * kStateChunk + i] * weights[i];
    float* const row = matrix + d * row_size;
    for (int64_t at = 0; at < row_size; at += kLogicalLanes) {
      V16 sum = map16(load16(row + at), [by](V x) HWY_ATTR { return hn::Mul(x, by); });
      LLMB_UNROLL for (int i = 0; i < kStateChunk; ++i)
        sum = map16(load16(updates + i * row_size + at), set16(factors[i]), sum, [](V a, V b, V c) HWY_ATTR {
          return hn::MulAdd(a, b, c);
        });
      store16(sum, row + at);
    }
  }
}

void normalise_row(const float* x, int64_t n, float factor, float* out) { normalise(x, n, factor, out); }

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

#include "base/check.h"

namespace llmb::cpu {

HWY_EXPORT(update_head);
HWY_EXPORT(chunk_products);
HWY_EXPORT(decays_since);
HWY_EXPORT(close_chunk);
HWY_EXPORT(normalise_row);

namespace {

// Rounded from double: equal wherever the library's functions are good to more than float.
float rate_of(float logit) { return static_cast<float>(1 / (1 + std::exp(-static_cast<double>(logit)))); }

double softplus(float input, float dt_bias) {
  const double x = static_cast<double>(input) + static_cast<double>(dt_bias);
  return x > 20 ? x : std::log1p(std::exp(x));
}

// One key head of one sequence, in one step.
class HeadTask {
 public:
  HeadTask(const StateLayout& layout, int64_t key_head, float* state)
      : c_(layout.config),
        row_size_(layout.row_size()),
        heads_per_key_(c_.num_value_heads / c_.num_key_heads),
        key_head_(key_head),
        matrices_(state),
        keys_(state + layout.matrices_size() + key_head * c_.key_dim * kStateChunk),
        updates_(state + layout.matrices_size() + layout.keys_size()),
        decays_(updates_ + layout.updates_size()),
        v_(static_cast<size_t>(row_size_)),
        out_(static_cast<size_t>(row_size_)) {}

  void add_token(int64_t position, const float* qkv, const float* gates, const StateWeights& weights, float* out) {
    const auto index = static_cast<int32_t>(position % kStateChunk);
    if (index == 0) begin_chunk(position);
    float q[kMaxStateKeyDim], k[kMaxStateKeyDim], by_key[kStateChunk], by_query[kStateChunk];
    const int64_t key_size = c_.keys_size(), at = key_head_ * c_.key_dim;
    const bool is_delta = c_.kind == StateKind::kGatedDelta;
    if (is_delta) {
      HWY_DYNAMIC_DISPATCH(normalise_row)
      (qkv + at, c_.key_dim, 1 / std::sqrt(static_cast<float>(c_.key_dim)), q);
      HWY_DYNAMIC_DISPATCH(normalise_row)(qkv + key_size + at, c_.key_dim, 1, k);
    } else {
      std::copy_n(qkv + at, c_.key_dim, q);
      std::copy_n(qkv + key_size + at, c_.key_dim, k);
    }
    for (int64_t d = 0; d < c_.key_dim; ++d) keys_[d * kStateChunk + index] = k[d];
    if (is_delta) HWY_DYNAMIC_DISPATCH(chunk_products)(keys_, k, c_.key_dim, by_key);
    HWY_DYNAMIC_DISPATCH(chunk_products)(keys_, q, c_.key_dim, by_query);
    for (int64_t h = key_head_ * heads_per_key_; h < (key_head_ + 1) * heads_per_key_; ++h) {
      add_to_head(h, index, q, k, is_delta ? by_key : nullptr, by_query, qkv + 2 * key_size + h * c_.value_dim, gates,
                  weights, out + h * c_.value_dim);
    }
  }

 private:
  void add_to_head(int64_t h, int32_t index, const float* q, const float* k, const float* by_key, const float* by_query,
                   const float* v, const float* gates, const StateWeights& weights, float* out) {
    float* const decays = decays_ + h * kStateChunk;
    const double step = softplus(gates[by_key != nullptr ? c_.num_value_heads + h : h], weights.dt_bias[h]);
    const auto log_decay = static_cast<float>(-std::exp(static_cast<double>(weights.log_a[h])) * step);
    decays[index] = (index > 0 ? decays[index - 1] : 0) + log_decay;
    float since[kStateChunk], head_by_key[kStateChunk], head_by_query[kStateChunk];
    HWY_DYNAMIC_DISPATCH(decays_since)(decays, decays[index], since);
    for (int32_t i = 0; i < index; ++i) {
      if (by_key != nullptr) head_by_key[i] = since[i] * by_key[i];
      head_by_query[i] = since[i] * by_query[i];
    }
    const float rate = by_key != nullptr ? rate_of(gates[h]) : static_cast<float>(step);
    const ChunkToken token = {by_key != nullptr, c_.key_dim, row_size_, q, k, index, decay_of(decays[index]), rate,
                              by_query[index], head_by_key, head_by_query};
    std::copy_n(v, c_.value_dim, v_.begin());
    HWY_DYNAMIC_DISPATCH(update_head)
    (token, matrix(h), v_.data(), updates_ + h * kStateChunk * row_size_, out_.data());
    for (int64_t i = 0; i < c_.value_dim; ++i)
      out[i] = weights.skip == nullptr ? out_[i] : out_[i] + weights.skip[h] * v[i];
  }

  float* matrix(int64_t head) { return matrices_ + head * c_.key_dim * row_size_; }

  static float decay_of(float log_decay) {
    const float zero[kStateChunk] = {};
    float decay[kStateChunk];
    HWY_DYNAMIC_DISPATCH(decays_since)(zero, log_decay, decay);
    return decay[0];
  }

  void begin_chunk(int64_t position) {
    for (int64_t h = key_head_ * heads_per_key_; h < (key_head_ + 1) * heads_per_key_; ++h) {
      if (position == 0) {
        std::fill_n(matrix(h), c_.key_dim * row_size_, 0.0f);
        continue;
      }
      HWY_DYNAMIC_DISPATCH(close_chunk)
      (keys_, decays_ + h * kStateChunk, updates_ + h * kStateChunk * row_size_, c_.key_dim, row_size_, matrix(h));
    }
  }

  const StateConfig& c_;
  const int64_t row_size_, heads_per_key_, key_head_;
  float* const matrices_;
  float* const keys_;
  float* const updates_;
  float* const decays_;
  std::vector<float> v_, out_;  // [row_size]  zeros behind value_dim
};

}  // namespace

void update_states(const StateLayout& layout, const float* qkv, const float* gates, const StateWeights& weights,
                   const StateEntries& entries, float* out, ThreadPool& pool) {
  const StateConfig& c = layout.config;
  LLMB_CHECK(c.key_dim <= kMaxStateKeyDim);
  pool.parallel_for(int64_t{entries.count} * c.num_key_heads, [&](int64_t task, int) {
    const int64_t e = task / c.num_key_heads;
    HeadTask head(layout, task % c.num_key_heads, entries.states[e]);
    for (int64_t row = entries.query_start[e]; row < entries.query_start[e + 1]; ++row)
      head.add_token(entries.first_position[e] + row - entries.query_start[e], qkv + row * c.conv_channels(),
                     gates + row * c.gates_size(), weights, out + row * c.values_size());
  });
}

}  // namespace llmb::cpu
#endif
