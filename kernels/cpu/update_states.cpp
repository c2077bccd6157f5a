// With few rows bound by reading the states: one matrix of a head for each of its tokens. With many, by 4 multiply-adds
// for each element of a matrix and token. One task is a key head of one sequence, with its value heads; where these are
// few tasks for the threads, with some of its value heads.
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

// The chunk is complete: out = e^G * matrix + sum over its tokens of e^(G - Gᵢ) kᵢ uᵢᵀ
void close_chunk(const float* keys, const float* decays, const float* updates, int64_t key_dim, int64_t row_size,
                 const float* matrix, float* out) {
  float weights[kStateChunk], decay[kStateChunk];
  decays_since(decays, decays[kStateChunk - 1], weights);
  const float zero[kStateChunk] = {};
  decays_since(zero, decays[kStateChunk - 1], decay);
  const V by = hn::Set(D(), decay[0]);
  for (int64_t d = 0; d < key_dim; ++d) {
    float factors[kStateChunk];
    for (int32_t i = 0; i < kStateChunk; ++i) factors[i] = keys[d * kStateChunk + i] * weights[i];
    const float* const row = matrix + d * row_size;
    for (int64_t at = 0; at < row_size; at += kLogicalLanes) {
      V16 sum = map16(load16(row + at), [by](V x) HWY_ATTR { return hn::Mul(x, by); });
      LLMB_UNROLL for (int i = 0; i < kStateChunk; ++i)
        sum = map16(load16(updates + i * row_size + at), set16(factors[i]), sum, [](V a, V b, V c) HWY_ATTR {
          return hn::MulAdd(a, b, c);
        });
      store16(sum, out + d * row_size + at);
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

// A step's rows of one sequence.
struct Rows {
  const StateLayout& layout;
  const float* qkv;
  const float* gates;
  float* out;
  float* state;
  int32_t first_position, count, num_drafts, border;

  int32_t end() const { return first_position + count; }
  float* keys(int64_t position, int64_t key_head) const {
    return state + layout.chunk_offset(position) + key_head * layout.config.key_dim * kStateChunk;
  }
  float* updates(int64_t position, int64_t head) const {
    return state + layout.chunk_offset(position) + layout.keys_size() + head * kStateChunk * layout.row_size();
  }
  float* decays(int64_t position, int64_t head) const {
    return state + layout.chunk_offset(position) + layout.keys_size() + layout.updates_size() + head * kStateChunk;
  }
};

Rows rows_of(const StateLayout& layout, const float* qkv, const float* gates, const StateEntries& entries, int64_t e,
             float* out) {
  const StateConfig& c = layout.config;
  const int64_t begin = entries.query_start[e];
  return {layout, qkv + begin * c.conv_channels(), gates + begin * c.gates_size(), out + begin * c.values_size(),
          entries.states[e], entries.first_position[e], entries.query_start[e + 1] - entries.query_start[e],
          entries.num_drafts[e], entries.borders[e]};
}

// The key of a row, of the length that the rule wants.
void make_key(const StateConfig& c, const float* qkv, int64_t key_head, float* k) {
  const float* const from = qkv + c.keys_size() + key_head * c.key_dim;
  if (c.kind == StateKind::kGatedDelta) HWY_DYNAMIC_DISPATCH(normalise_row)(from, c.key_dim, 1, k);
  else std::copy_n(from, c.key_dim, k);
}

void put_key(const StateConfig& c, const float* k, int64_t index, float* keys) {
  for (int64_t d = 0; d < c.key_dim; ++d) keys[d * kStateChunk + index] = k[d];
}

// Some value heads of a key head of one sequence, in one step. One that has not all of them leaves the keys in the
// state as they are.
class HeadTask {
 public:
  HeadTask(const Rows& rows, int64_t key_head, int64_t first_head, int64_t num_heads, bool has_all)
      : rows_(rows),
        c_(rows.layout.config),
        row_size_(rows.layout.row_size()),
        matrix_size_(c_.key_dim * row_size_),
        key_head_(key_head),
        first_head_(first_head),
        num_heads_(num_heads),
        border_(rows.border),
        matrices_(rows.state + first_head * matrix_size_),
        v_(static_cast<size_t>(row_size_)),
        out_(static_cast<size_t>(row_size_)) {
    if (!has_all) own_keys_.resize(static_cast<size_t>(c_.key_dim * kStateChunk));
    take_keys();
    if (rows.first_position == 0) std::fill_n(matrices_, num_heads * matrix_size_, 0.0f);
  }

  void add_row(int64_t row, const StateWeights& weights) {
    const int32_t position = rows_.first_position + static_cast<int32_t>(row), index = position % kStateChunk;
    if (position - index != border_) close_chunk();
    LLMB_CHECK(position - index == border_);
    const float* const qkv = rows_.qkv + row * c_.conv_channels();
    float q[kMaxStateKeyDim], k[kMaxStateKeyDim], by_key[kStateChunk], by_query[kStateChunk];
    const bool is_delta = c_.kind == StateKind::kGatedDelta;
    const float* const q_from = qkv + key_head_ * c_.key_dim;
    if (is_delta) {
      HWY_DYNAMIC_DISPATCH(normalise_row)(q_from, c_.key_dim, 1 / std::sqrt(static_cast<float>(c_.key_dim)), q);
    } else {
      std::copy_n(q_from, c_.key_dim, q);
    }
    make_key(c_, qkv, key_head_, k);
    put_key(c_, k, index, keys_);
    if (is_delta) HWY_DYNAMIC_DISPATCH(chunk_products)(keys_, k, c_.key_dim, by_key);
    HWY_DYNAMIC_DISPATCH(chunk_products)(keys_, q, c_.key_dim, by_query);
    for (int64_t h = first_head_; h < first_head_ + num_heads_; ++h) {
      add_to_head(h, index, q, k, is_delta ? by_key : nullptr, by_query,
                  qkv + 2 * c_.keys_size() + h * c_.value_dim, rows_.gates + row * c_.gates_size(), weights,
                  rows_.out + row * c_.values_size() + h * c_.value_dim);
    }
  }

 private:
  void add_to_head(int64_t h, int32_t index, const float* q, const float* k, const float* by_key, const float* by_query,
                   const float* v, const float* gates, const StateWeights& weights, float* out) {
    float* const decays = rows_.decays(border_, h);
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
    HWY_DYNAMIC_DISPATCH(update_head)(token, matrix(h), v_.data(), rows_.updates(border_, h), out_.data());
    for (int64_t i = 0; i < c_.value_dim; ++i)
      out[i] = weights.skip == nullptr ? out_[i] : out_[i] + weights.skip[h] * v[i];
  }

  float* matrix(int64_t head) { return matrices_ + (head - first_head_) * matrix_size_; }

  static float decay_of(float log_decay) {
    const float zero[kStateChunk] = {};
    float decay[kStateChunk];
    HWY_DYNAMIC_DISPATCH(decays_since)(zero, log_decay, decay);
    return decay[0];
  }

  // The keys of the chunk at the border.
  void take_keys() {
    float* const keys = rows_.keys(border_, key_head_);
    keys_ = own_keys_.empty() ? keys : own_keys_.data();
    if (!own_keys_.empty()) std::copy_n(keys, own_keys_.size(), keys_);
  }

  // The border moves on by a chunk: in the state, unless drafts are among the chunk's tokens.
  void close_chunk() {
    float* into = matrices_;
    if (border_ + kStateChunk > rows_.end() - rows_.num_drafts) {
      LLMB_CHECK(drafted_.empty());
      drafted_.resize(static_cast<size_t>(num_heads_ * matrix_size_));
      into = drafted_.data();
    }
    for (int64_t h = first_head_; h < first_head_ + num_heads_; ++h)
      HWY_DYNAMIC_DISPATCH(close_chunk)(keys_, rows_.decays(border_, h), rows_.updates(border_, h), c_.key_dim,
                                        row_size_, matrix(h), into + (h - first_head_) * matrix_size_);
    matrices_ = into;
    border_ += kStateChunk;
    take_keys();
  }

  const Rows& rows_;
  const StateConfig& c_;
  const int64_t row_size_, matrix_size_, key_head_, first_head_, num_heads_;
  int32_t border_;
  float* matrices_;             // [num_heads, key_dim, row_size]
  float* keys_ = nullptr;       // [key_dim, 16]
  std::vector<float> own_keys_, drafted_;
  std::vector<float> v_, out_;  // [row_size]  zeros behind value_dim
};

// The keys of a step's newest rows, into the state.
void keep_keys(const Rows& rows, int64_t key_head) {
  const StateConfig& c = rows.layout.config;
  const int32_t newest = (rows.end() - 1) / kStateChunk - (rows.layout.num_chunks() - 1);
  float k[kMaxStateKeyDim];
  for (int32_t position = std::max(rows.first_position, newest * kStateChunk); position < rows.end(); ++position) {
    make_key(c, rows.qkv + (position - rows.first_position) * c.conv_channels(), key_head, k);
    put_key(c, k, position % kStateChunk, rows.keys(position, key_head));
  }
}

}  // namespace

void update_states(const StateLayout& layout, const float* qkv, const float* gates, const StateWeights& weights,
                   const StateEntries& entries, float* out, ThreadPool& pool) {
  constexpr int64_t kTasksPerThread = 2;
  const StateConfig& c = layout.config;
  LLMB_CHECK(c.key_dim <= kMaxStateKeyDim);
  const int64_t num_key_tasks = int64_t{entries.count} * c.num_key_heads;
  const int64_t num_heads = c.num_value_heads / c.num_key_heads;  // of a key head
  int64_t num_parts = 1;
  if (pool.num_threads() > 1)
    num_parts = std::clamp(ceil_div(kTasksPerThread * pool.num_threads(), std::max<int64_t>(num_key_tasks, 1)),
                           int64_t{1}, num_heads);
  const int64_t heads_per_part = ceil_div(num_heads, num_parts);
  num_parts = ceil_div(num_heads, heads_per_part);
  pool.parallel_for(num_key_tasks * num_parts, [&](int64_t task, int) {
    const int64_t key_task = task / num_parts, first = task % num_parts * heads_per_part;
    const int64_t key_head = key_task % c.num_key_heads;
    const Rows rows = rows_of(layout, qkv, gates, entries, key_task / c.num_key_heads, out);
    HeadTask heads(rows, key_head, key_head * num_heads + first, std::min(heads_per_part, num_heads - first),
                   num_parts == 1);
    for (int64_t row = 0; row < rows.count; ++row) heads.add_row(row, weights);
  });
  if (num_parts == 1) return;
  pool.parallel_for(num_key_tasks, [&](int64_t task, int) {
    keep_keys(rows_of(layout, qkv, gates, entries, task / c.num_key_heads, out), task % c.num_key_heads);
  });
}

}  // namespace llmb::cpu
#endif
