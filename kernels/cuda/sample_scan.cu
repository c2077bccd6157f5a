// The best logit of each row, NaN and infinities, and mask, bias and penalties. Bound by bytes: one read of the logits. A CTA
// scans a segment of a row; the last CTA of the row to finish combines the segments.
#include <cmath>

#include "kernels/cuda/ptx.h"
#include "kernels/cuda/sample_mail.h"
#include "kernels/cuda/sample_state.h"

namespace llmb::cuda {

namespace {

constexpr int kEditThreads = 256;
constexpr float kLargest = std::numeric_limits<float>::max();

__device__ void take_better(ScanPartial& best, const ScanPartial& other) {
  best.has_bad |= other.has_bad;
  if (other.max > best.max || (other.max == best.max && other.id < best.id)) best.max = other.max, best.id = other.id;
}

__device__ ScanPartial warp_best(ScanPartial best) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const ScanPartial other{__shfl_xor_sync(kAllLanes, best.max, offset),
                            __shfl_xor_sync(kAllLanes, best.id, offset),
                            __shfl_xor_sync(kAllLanes, best.has_bad, offset)};
    take_better(best, other);
  }
  return best;
}

// Scans one warp's kBlock logits from `begin` on.
__device__ ScanPartial scan_block(const float* logits, int64_t begin, int64_t vocab) {
  ScanPartial best{-kInfinity, kMaxId, 0};
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int turn = 0; turn < kBlock / (4 * kWarp); ++turn) {
    const int64_t i = begin + (turn * kWarp + lane) * 4;
    float x[4];
    load4(logits, i, vocab, -kInfinity, x);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      best.has_bad |= !(x[j] < kInfinity);
      if (x[j] > best.max) best.max = x[j], best.id = static_cast<int32_t>(i) + j;
    }
  }
  return best;
}

// The row's result, as its logits are now.
__device__ void finish_scan(const SampleArgs& args, int64_t row, const ScanPartial& best) {
  RowState& state = args.states[row];
  const bool is_finite = !best.has_bad && best.max > -kInfinity;
  state.max = best.max;
  state.token = is_finite ? best.id : 0;
  state.is_finite = is_finite;
  state.has_bad = best.has_bad;
  state.is_drawn = 0;
  state.top_k = {-kInfinity, kMaxId};
  state.top_p = {0.0f, kMaxId};
  args.out.tokens[row] = state.token;
  args.out.is_finite[row] = is_finite;
}

__global__ void __launch_bounds__(kSegmentThreads) scan_kernel(SampleArgs args, bool edited_rows_only) {
  ptx::follow_previous_grid();
  __shared__ ScanPartial partials[kSegmentThreads / kWarp];
  __shared__ bool is_last;
  const int64_t row = blockIdx.x;
  const SampleRow& params = args.in.rows[row];
  if (is_padding(params)) {
    if (blockIdx.y == 0 && threadIdx.x == 0) finish_scan(args, row, {0, 0, 1});
    return;
  }
  if (edited_rows_only && (!has_edits(params) || !args.states[row].is_finite)) return;

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t block = int64_t{blockIdx.y} * (kSegment / kBlock) + warp;
  const ScanPartial of_warp = warp_best(scan_block(args.logits(row), block * kBlock, args.in.vocab));
  if (lane == 0) partials[warp] = of_warp;
  if (lane == 0 && block < args.num_blocks) args.maxima[row * args.num_blocks + block] = of_warp.max;
  __syncthreads();
  ScanPartial* row_scans = args.scans + row * args.num_segments;
  if (threadIdx.x == 0) {
    ScanPartial best = partials[0];
    for (int w = 1; w < kSegmentThreads / kWarp; ++w) take_better(best, partials[w]);
    row_scans[blockIdx.y] = best;
    __threadfence();
    is_last = atomicAdd(&args.counters[row], 1u) == static_cast<uint32_t>(args.num_segments - 1);
  }
  __syncthreads();
  if (!is_last || warp != 0) return;
  __threadfence();
  ScanPartial best{-kInfinity, kMaxId, 0};
  for (int32_t i = lane; i < args.num_segments; i += kWarp) take_better(best, row_scans[i]);
  best = warp_best(best);
  if (lane != 0) return;
  args.counters[row] = 0;
  finish_scan(args, row, best);
}

// A lane looks at its own bit of a word, so that a warp's stores lie side by side. What the mask forbids is never
// chosen: nobody asks for its raw logit.
__global__ void __launch_bounds__(kSegmentThreads) mask_kernel(SampleArgs args) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x;
  const SampleRow& params = args.in.rows[row];
  if (is_padding(params) || params.mask < 0 || !args.states[row].is_finite) return;
  const uint32_t* mask = args.in.masks + int64_t{params.mask} * args.mask_words;
  float* logits = args.logits(row);
  const int32_t begin = static_cast<int32_t>(blockIdx.y) * kSegment, end = min(begin + kSegment, args.in.vocab);
  for (int32_t i = begin + static_cast<int32_t>(threadIdx.x); i < end; i += kSegmentThreads)
    if ((mask[i / 32] >> (i % 32) & 1u) == 0) logits[i] = -kInfinity;
}

// As kernels/cpu/sample: each operation rounds by itself, and nothing overflows to +Inf.
__device__ float penalized(float x, const SampleRow& params, int32_t output_count) {
  x = x > 0 ? __fdiv_rn(x, params.repetition_penalty) : __fmul_rn(x, params.repetition_penalty);
  x = __fsub_rn(x, __fmul_rn(params.frequency_penalty, static_cast<float>(output_count)));
  if (output_count > 0) x = __fsub_rn(x, params.presence_penalty);
  return kLargest < x ? kLargest : x;
}

__device__ float biased(float x, float bias) {
  x = __fadd_rn(x, bias);
  return kLargest < x ? kLargest : x;
}

// A block is a row. Each token is in a slice once, so the entries of a slice may be taken in any order.
__global__ void __launch_bounds__(kEditThreads) edit_kernel(SampleArgs args) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x;
  const SampleRow& params = args.in.rows[row];
  if (is_padding(params) || !has_edits(params) || !args.states[row].is_finite) return;
  float* logits = args.logits(row);
  const bool keep = params.num_logprobs >= 0;
  for (int32_t i = params.bias_begin + static_cast<int32_t>(threadIdx.x); i < params.bias_end; i += kEditThreads) {
    const TokenBias entry = args.in.bias[i];
    const int32_t id = entry.token - args.first_id;
    if (!args.holds(id)) continue;
    const float x = logits[id];
    if (keep) args.bias_logits[i] = x;
    logits[id] = biased(x, entry.bias);
  }
  __syncthreads();
  for (int32_t i = params.penalty_begin + static_cast<int32_t>(threadIdx.x); i < params.penalty_end;
       i += kEditThreads) {
    const TokenPenalty entry = args.in.penalty[i];
    const int32_t id = entry.token - args.first_id;
    if (!args.holds(id)) continue;
    const float x = logits[id];
    if (keep) args.penalty_logits[i] = x;
    logits[id] = penalized(x, params, entry.output_count);
  }
}

// The chosen token's logit as it was before bias, which comes first, and penalties. One warp asks.
__device__ float raw_logit(const SampleArgs& args, int64_t row, const SampleRow& params, int32_t id) {
  const int lane = threadIdx.x % kWarp;
  const float* found = nullptr;
  for (int32_t i = params.penalty_begin + lane; i < params.penalty_end; i += kWarp)
    if (args.in.penalty[i].token - args.first_id == id) found = args.penalty_logits + i;
  const unsigned in_penalty = __ballot_sync(kAllLanes, found != nullptr);
  const float* before_penalty = found;
  found = nullptr;
  for (int32_t i = params.bias_begin + lane; i < params.bias_end; i += kWarp)
    if (args.in.bias[i].token - args.first_id == id) found = args.bias_logits + i;
  const unsigned in_bias = __ballot_sync(kAllLanes, found != nullptr);
  float x = args.logits(row)[id];
  if (in_bias != 0) x = found != nullptr ? *found : 0.0f;
  else if (in_penalty != 0) x = before_penalty != nullptr ? *before_penalty : 0.0f;
  const unsigned holders = in_bias != 0 ? in_bias : in_penalty != 0 ? in_penalty : 1u;
  return __shfl_sync(kAllLanes, x, __ffs(static_cast<int>(holders)) - 1);
}

// A warp is a row.
__global__ void __launch_bounds__(kEditThreads) finish_kernel(SampleArgs args) {
  ptx::follow_previous_grid();
  const int64_t row = int64_t{blockIdx.x} * (kEditThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= args.in.num_rows) return;
  const int lane = threadIdx.x % kWarp;
  const SampleRow& params = args.in.rows[row];
  const RowState state = args.states[row];
  float logprob = 0;
  if (!is_padding(params) && params.num_logprobs >= 0 && state.is_finite)
    logprob = static_cast<float>(raw_logit(args, row, params, state.token) - state.log_sum);
  if (lane == 0) args.out.logprobs[row] = logprob;
  if (is_padding(params) || state.is_finite) return;
  // Mask, bias and penalties may have left no token after the best ones were found.
  const int32_t num_top = min(min(params.num_logprobs, args.in.vocab), args.out.max_top);
  for (int32_t i = lane; i < num_top; i += kWarp) {
    args.out.top_tokens[row * args.out.max_top + i] = 0;
    args.out.top_logprobs[row * args.out.max_top + i] = 0;
  }
}

// A warp is a row. What this rank's part holds of the tokens that rows got.
__global__ void __launch_bounds__(kEditThreads) choose_kernel(SampleArgs args, ChosenToken* out) {
  ptx::follow_previous_grid();
  const int64_t row = int64_t{blockIdx.x} * (kEditThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= args.in.num_rows) return;
  const SampleRow& params = args.in.rows[row];
  const RowState state = args.states[row];
  ChosenToken chosen{-1, 0};
  if (!is_padding(params) && state.is_finite && args.holds(state.token)) {
    chosen.token = state.token + args.first_id;
    if (params.num_logprobs >= 0) chosen.raw_logit = raw_logit(args, row, params, state.token);
  }
  if (threadIdx.x % kWarp == 0) out[row] = chosen;
}

}  // namespace

void launch_scan(const SampleArgs& args, bool edited_rows_only, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.in.num_rows), static_cast<unsigned>(args.num_segments));
  launch_ahead({grid, dim3(kSegmentThreads), 0, stream}, scan_kernel, args, edited_rows_only);
}

void launch_mask(const SampleArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.in.num_rows), static_cast<unsigned>(args.num_segments));
  launch_ahead({grid, dim3(kSegmentThreads), 0, stream}, mask_kernel, args);
}

void launch_edit(const SampleArgs& args, cudaStream_t stream) {
  launch_ahead({dim3(static_cast<unsigned>(args.in.num_rows)), dim3(kEditThreads), 0, stream}, edit_kernel, args);
}

void launch_finish(const SampleArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(args.in.num_rows, kEditThreads / kWarp));
  launch_ahead({dim3(blocks), dim3(kEditThreads), 0, stream}, finish_kernel, args);
}

void launch_choose(const SampleArgs& args, ChosenToken* out, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(args.in.num_rows, kEditThreads / kWarp));
  launch_ahead({dim3(blocks), dim3(kEditThreads), 0, stream}, choose_kernel, args, out);
}

}  // namespace llmb::cuda
