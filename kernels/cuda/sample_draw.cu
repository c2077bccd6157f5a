// Sums of weights: of the raw logits for log probabilities, and of those kept after the filters, from which a token is
// drawn. Bound by bytes on devices whose fp64 is not slow: one read of the logits. A warp sums kBlock of them; the
// last CTA of a row to finish adds up the blocks in order, finds the block that holds u, and the token within it.
#include <cmath>

#include "kernels/cuda/ptx.h"
#include "kernels/cuda/sample_block.h"
#include "kernels/cuda/sample_mail.h"
#include "kernels/cuda/sample_state.h"

namespace llmb::cuda {

namespace {

// The sum of one warp's kBlock weights from `begin` on, the same in every lane.
template <class Weight>
__device__ double sum_block(const float* logits, int64_t begin, int64_t vocab, const Weight& weight) {
  const int lane = threadIdx.x % kWarp;
  double sum = 0;
#pragma unroll 2
  for (int turn = 0; turn < kBlock / (4 * kWarp); ++turn) {
    const int64_t i = begin + (turn * kWarp + lane) * 4;
    float x[4];
    load4(logits, i, vocab, -kInfinity, x);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += weight(x[j], static_cast<int32_t>(i) + j);
  }
  return warp_sum(sum);
}

// Writes the sums of the CTA's blocks. True, in all its threads, for the CTA that is the row's last to finish.
template <class Weight>
__device__ bool sum_segment(const SampleArgs& args, int64_t row, const Weight& weight, bool* is_last) {
  const int warp = threadIdx.x / kWarp;
  const int64_t block = int64_t{blockIdx.y} * (kSegment / kBlock) + warp;
  if (block < args.num_blocks) {
    const double sum = sum_block(args.logits(row), block * kBlock, args.in.vocab, weight);
    if (threadIdx.x % kWarp == 0) args.sums[row * args.num_blocks + block] = sum;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    *is_last = atomicAdd(&args.counters[row], 1u) == static_cast<uint32_t>(args.num_segments - 1);
    if (*is_last) args.counters[row] = 0;
  }
  __syncthreads();
  __threadfence();
  return *is_last;
}

__device__ double sum_of(const double* sums, int32_t n, BlockScratch* scratch) {
  double own = 0, total;
  const int32_t per_thread = (n + kSegmentThreads - 1) / kSegmentThreads;
  const int32_t begin = min(n, static_cast<int32_t>(threadIdx.x) * per_thread), end = min(n, begin + per_thread);
  for (int32_t i = begin; i < end; ++i) own += sums[i];
  block_exclusive_sum(own, scratch, &total);
  return total;
}

__global__ void __launch_bounds__(kSegmentThreads) log_sum_kernel(SampleArgs args) {
  ptx::follow_previous_grid();
  __shared__ BlockScratch scratch;
  __shared__ bool is_last;
  const int64_t row = blockIdx.x;
  const SampleRow& params = args.in.rows[row];
  if (is_padding(params) || params.num_logprobs < 0 || !args.states[row].is_finite) return;
  const float max = args.states[row].max;
  const Weights weights(max, 1.0f);
  const auto weight = [&](float x, int32_t) { return weights(x); };
  if (!sum_segment(args, row, weight, &is_last)) return;
  const double total = sum_of(args.sums + row * args.num_blocks, args.num_blocks, &scratch);
  if (threadIdx.x != 0) return;
  args.states[row].log_sum = args.totals != nullptr ? max : max + log(total);
  if (args.totals != nullptr) args.totals[row] = total;
}

__device__ KeptWeights kept_weights(const RowState& state, const SampleRow& params) {
  return {Weights(state.max, params.temperature), state.top_k, state.top_p, fminf(params.min_p, 1.0f)};
}

// The token at which the sum of the row's weights passes the target. Its blocks are summed.
__device__ int32_t find_token(const SampleArgs& args, int64_t row, const KeptWeights& weight, double target,
                              BlockScratch* scratch) {
  const double* sums = args.sums + row * args.num_blocks;
  const auto reached = [=](double sum) { return sum > target; };
  const Crossing block = find_crossing(
      args.num_blocks, 0, [=](int32_t i) { return sums[i]; }, reached, scratch);
  const float* logits = args.logits(row);
  const int32_t begin = block.position * kBlock, count = min(kBlock, args.in.vocab - begin);
  const auto measure = [&](int32_t i) { return double{weight(logits[begin + i], begin + i)}; };
  return begin + find_crossing(count, block.before, measure, reached, scratch).position;
}

__device__ bool is_drawn(const SampleRow& params, const RowState& state) {
  return !is_padding(params) && params.temperature > 0 && state.is_finite && !state.is_drawn;
}

// By inverse CDF over ids.
__global__ void __launch_bounds__(kSegmentThreads) draw_kernel(SampleArgs args) {
  ptx::follow_previous_grid();
  __shared__ BlockScratch scratch;
  __shared__ bool is_last;
  const int64_t row = blockIdx.x;
  const SampleRow& params = args.in.rows[row];
  const RowState& state = args.states[row];
  if (!is_drawn(params, state)) return;
  const KeptWeights weight = kept_weights(state, params);
  if (!sum_segment(args, row, weight, &is_last)) return;
  const double total = sum_of(args.sums + row * args.num_blocks, args.num_blocks, &scratch);
  if (args.totals != nullptr) {
    if (threadIdx.x == 0) args.totals[row] = total;
    return;
  }
  const int32_t token = find_token(args, row, weight, double{draw_uniform(params)} * total, &scratch);
  if (threadIdx.x == 0) args.states[row].token = args.out.tokens[row] = token;
}

// As kernels/cpu/sample_parts: the part in which the sum of all ranks' weights passes the target, then within it.
__global__ void __launch_bounds__(kSegmentThreads) draw_in_part_kernel(SampleArgs args, SampleMail mail) {
  ptx::follow_previous_grid();
  __shared__ BlockScratch scratch;
  const int64_t row = blockIdx.x;
  const SampleRow& params = args.in.rows[row];
  if (!is_drawn(params, args.states[row])) return;
  const auto sum_of_rank = [&](int32_t r) { return mail.of<const double>(r)[row]; };
  double total = 0;
  for (int32_t r = 0; r < mail.size; ++r) total += sum_of_rank(r);
  double target = double{draw_uniform(params)} * total;
  int32_t owner = 0;
  while (owner + 1 < mail.size && target >= sum_of_rank(owner)) target -= sum_of_rank(owner++);
  while (owner > 0 && !(sum_of_rank(owner) > 0)) --owner;  // rounding carried past the last positive weight
  int32_t token = -1;
  if (owner == mail.rank)
    token = find_token(args, row, kept_weights(args.states[row], params), target, &scratch);
  if (threadIdx.x == 0) args.states[row].token = token;
}

void launch_segments(void (*kernel)(SampleArgs), const SampleArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.in.num_rows), static_cast<unsigned>(args.num_segments));
  launch_ahead({grid, dim3(kSegmentThreads), 0, stream}, kernel, args);
}

}  // namespace

void launch_log_sum(const SampleArgs& args, cudaStream_t stream) { launch_segments(log_sum_kernel, args, stream); }
void launch_draw(const SampleArgs& args, cudaStream_t stream) { launch_segments(draw_kernel, args, stream); }

void launch_draw_in_part(const SampleArgs& args, const SampleMail& mail, cudaStream_t stream) {
  launch_ahead({dim3(static_cast<unsigned>(args.in.num_rows)), dim3(kSegmentThreads), 0, stream}, draw_in_part_kernel,
               args, mail);
}

}  // namespace llmb::cuda
