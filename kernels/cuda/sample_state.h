// Shared by the kernels of sample: the state of each row between them, and its logits as weights. Internal to sample.
#pragma once

#include <cstdint>
#include <limits>

#include "core/step_plan.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kMaxId = std::numeric_limits<int32_t>::max();

// A warp takes the maximum or the sum of a block of kBlock logits; a segment is what one CTA reads. Both are fixed, so
// that every row's arithmetic is.
constexpr int kBlock = 1024;
constexpr int kSegmentThreads = 256;
constexpr int kSegment = kBlock * kSegmentThreads / kWarp;

// In order of (value descending, id ascending) everything up to and including this one is kept.
struct Cut {
  float value;
  int32_t id;

  __device__ bool drops(float x, int32_t i) const { return x < value || (x == value && i > id); }
};

struct RowState {
  double log_sum;  // of exp of the raw logits
  float max;       // of the logits as they are: raw at first, later after mask, bias and penalties
  TokenId token;   // the best, later the drawn one
  int32_t is_finite;
  int32_t has_bad;  // a NaN or +Inf is among the logits
  int32_t is_drawn;
  Cut top_k;  // in logits
  Cut top_p;  // in weights
};

// The best of some logits, lowest id first among equals.
struct ScanPartial {
  float max;
  int32_t id;
  int32_t has_bad;  // a NaN or +Inf is among them
};

// How far all ranks have found the digits of the key at which a filter's prefix ends.
struct PartBorder {
  double above;     // the measure of larger keys
  double wanted;    // by the prefix
  uint32_t digits;  // the highest ones
};

// Arguments of every kernel: the call's, and the parts of the workspace.
struct SampleArgs {
  SampleInput in;
  SampleResult out;
  RowState* states;       // [max_rows]
  uint32_t* counters;     // [max_rows]  CTAs of the row that are done; 0 between kernels
  ScanPartial* scans;     // [max_rows, num_segments]
  float* maxima;          // [max_rows, num_blocks]
  double* sums;           // [max_rows, num_blocks]
  float* penalty_logits;  // [max_penalties]  of the entry's token before penalties
  float* bias_logits;     // [max_biases]  of the entry's token before bias
  PartBorder* borders;    // [max_rows]  where ranks have parts
  int32_t num_segments;
  int32_t num_blocks;
  int32_t mask_words;
  int32_t first_id = 0;      // of a part of the vocabulary, which is all that other numbers here are of
  double* totals = nullptr;  // [max_rows]  of a part: sums of weights go there

  __device__ float* logits(int64_t row) const { return in.logits + row * in.vocab; }
  __device__ bool holds(int32_t id) const { return id >= 0 && id < in.vocab; }
};

SampleArgs make_args(const SampleInput& input, const SampleResult& result, const SampleLimits& limits,
                     void* workspace);

// Each is one kernel launch.
void launch_scan(const SampleArgs& args, bool edited_rows_only, cudaStream_t stream);
void launch_mask(const SampleArgs& args, cudaStream_t stream);
void launch_edit(const SampleArgs& args, cudaStream_t stream);
void launch_log_sum(const SampleArgs& args, cudaStream_t stream);
void launch_draw(const SampleArgs& args, cudaStream_t stream);
void launch_filter(const SampleArgs& args, cudaStream_t stream);
void launch_top_logprobs(const SampleArgs& args, cudaStream_t stream);
void launch_finish(const SampleArgs& args, cudaStream_t stream);

#if defined(LLMB_SIMT) || defined(__CUDACC__)

__device__ inline bool is_padding(const SampleRow& row) { return row.token_row < 0; }
__device__ inline bool has_edits(const SampleRow& row) {
  return row.mask >= 0 || row.penalty_begin < row.penalty_end || row.bias_begin < row.bias_end;
}

// The uniform in [0, 1) of base/rng.h's sampling_uniform(params.rng, params.choice, params.position): Philox4x32-10.
__device__ inline float draw_uniform(const SampleRow& params) {
  uint32_t c0 = params.position, c1 = params.choice, c2 = static_cast<uint32_t>(params.rng.request),
           c3 = static_cast<uint32_t>(params.rng.request >> 32);
  uint32_t k0 = static_cast<uint32_t>(params.rng.seed), k1 = static_cast<uint32_t>(params.rng.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return static_cast<float>(c0 >> 8) * 0x1.0p-24f;
}

// Values i to i + 3 of a row, `fill` past its end. i is a multiple of 4. The same values go to the same thread whether
// the row is aligned or not, since sums must not depend on where a row stands.
__device__ inline void load4(const float* row, int64_t i, int64_t n, float fill, float (&x)[4]) {
  if (i + 4 <= n && (reinterpret_cast<uintptr_t>(row) & 15) == 0) {
    const float4 v = *reinterpret_cast<const float4*>(row + i);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) x[j] = i + j < n ? row[i + j] : fill;
}

// exp(x) for x <= 0, the bits of kernels/cpu's exp_bounded on targets that fuse multiply-adds.
__device__ inline float exp_weight(float x) {
  constexpr float kShift =
      12582912.0f + 127;  // 1.5 * 2^23 + 127: adding it rounds, and leaves n + 127 in the lowest bits
  const float shifted = fmaf(x, 1.44269504f, kShift);
  const float n = __fsub_rn(shifted, kShift);
  float r = fmaf(-n, 0.693359375f, x);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 0.00138144672f;
  p = fmaf(p, r, 0.00836878084f);
  p = fmaf(p, r, 0.0416683927f);
  p = fmaf(p, r, 0.166665196f);
  p = fmaf(p, r, 0.49999994f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  return x < -87.0f ? 0.0f : __fmul_rn(p, __uint_as_float(__float_as_uint(shifted) << 23));
}

// exp((x - max) / temperature) for x <= max; at x = max exactly 1.
class Weights {
 public:
  __device__ Weights(float max, float temperature) : max_(max), temperature_(temperature) {
    is_one_ = temperature == 1.0f;
    // Elsewhere the steps below could over- or underflow.
    is_plain_ = temperature > 0x1p-30f && temperature < 0x1p30f;
    reciprocal_ = __fdiv_rn(1.0f, temperature);
    zero_below_ = is_plain_ ? -87.5f * temperature : -kInfinity;
  }

  __device__ float operator()(float x) const {
    const float d = __fsub_rn(x, max_);
    if (d < zero_below_ || d == -kInfinity) return 0.0f;
    return exp_weight(is_one_ ? d : is_plain_ ? divide(d) : __fdiv_rn(d, temperature_));
  }

  // Logits below this certainly have weights below `weight`: the margins cover all rounding.
  __device__ float logit_below(float weight) const {
    return max_ + temperature_ * (logf(weight) - 1e-3f) - 1e-5f * fabsf(max_);
  }

 private:
  // The correctly rounded quotient: with the rounded reciprocal, one step brings the error below a unit in the last
  // place, and by Markstein's theorem a second one rounds correctly.
  __device__ float divide(float d) const {
    float q = __fmul_rn(d, reciprocal_);
    q = fmaf(fmaf(-q, temperature_, d), reciprocal_, q);
    return fmaf(fmaf(-q, temperature_, d), reciprocal_, q);
  }

  float max_, temperature_, reciprocal_, zero_below_;
  bool is_one_, is_plain_;
};

// A row's weights after top-k, min-p and top-p.
struct KeptWeights {
  Weights weights;
  Cut top_k, top_p;
  float min_p;

  __device__ float operator()(float x, int32_t id) const {
    if (top_k.drops(x, id)) return 0.0f;
    const float w = weights(x);
    return top_p.drops(w, id) || w < min_p ? 0.0f : w;
  }
};

#endif

}  // namespace llmb::cuda
