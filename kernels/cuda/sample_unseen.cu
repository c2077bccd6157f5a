// Penalties that count a token which the step before sampled. A warp is a row: its lanes look for the token in the
// row's slice. Bound by the bytes of the slices.
#include "kernels/cuda/device.h"
#include "kernels/cuda/sample.h"

namespace llmb::cuda {

namespace {

constexpr int kWarp = 32, kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    count_unseen_tokens_kernel(SampleRow* rows, int32_t num_rows, TokenPenalty* penalty, const TokenId* sampled) {
  const int32_t row = static_cast<int32_t>(blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp);
  if (row >= num_rows) return;
  const int lane = threadIdx.x % kWarp;
  const int32_t begin = rows[row].penalty_begin, last = rows[row].penalty_end - 1;
  if (last < begin || penalty[last].token >= 0) return;
  const TokenId token = sampled[-1 - penalty[last].token];
  bool is_mine = false;
  for (int32_t i = begin + lane; i < last; i += kWarp) {
    if (penalty[i].token != token) continue;
    ++penalty[i].output_count;
    is_mine = true;
  }
  const bool found = __any_sync(0xffffffffu, is_mine);
  if (lane != 0) return;
  if (found) rows[row].penalty_end = last;
  else penalty[last].token = token;
}

}  // namespace

void count_unseen_tokens(SampleRow* rows, int32_t num_rows, TokenPenalty* penalty, const TokenId* sampled,
                         cudaStream_t stream) {
  if (num_rows == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(num_rows, kThreads / kWarp));
  launch({dim3(blocks), dim3(kThreads), 0, stream}, count_unseen_tokens_kernel, rows, num_rows, penalty, sampled);
}

}  // namespace llmb::cuda
