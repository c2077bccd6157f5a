// Bound by bytes: each input is read and each output written once, and of a sequence's first rows also the inputs that
// its state keeps. A thread has some channels of one sequence, and goes through stretches of its rows with the newest
// inputs in registers. The thread of the first stretch, which alone reads the state, also writes to it.
#include "kernels/cuda/causal_conv.h"

#include <algorithm>

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int32_t kStretch = 16;  // rows
static_assert(kStretch >= kMaxConvWidth - 1);

template <class T>
struct Conv {
  const T* x;
  const float* weight;
  const float* bias;
  bool has_silu;
  int32_t width, num_kept;
  int64_t channels;
  int64_t kept_offset;  // floats of a slot before the inputs that are kept
  const StateEntry* entries;
  T* out;
};

template <int kPack>
struct Channels {
  float values[kPack];
};

// The inputs of row `index` of the entry, which may lie before it; none before the sequence.
template <int kPack, class T>
__device__ Channels<kPack> input(const Conv<T>& conv, const StateEntry& entry, int32_t index, int64_t channel) {
  Channels<kPack> in = {};
  const int32_t position = entry.first_position + index;
  if (index >= 0) {
    load_floats(conv.x + (entry.first_row + index) * conv.channels + channel, in.values);
  } else if (position >= 0) {
    load_floats(entry.slot + conv.kept_offset + position % conv.num_kept * conv.channels + channel, in.values);
  }
  return in;
}

// kWidth: the convolution's width, or more: what is seen too much has no weight and is nothing.
template <int kWidth, int kPack, class T>
__global__ void __launch_bounds__(kThreads) causal_conv_kernel(Conv<T> conv) {
  ptx::follow_previous_grid();
  const StateEntry entry = conv.entries[blockIdx.y];
  const int64_t channel = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack;
  if (channel >= conv.channels) return;
  Channels<kPack> weights[kWidth] = {}, window[kWidth] = {}, bias = {};
#pragma unroll
  for (int j = 0; j < kWidth; ++j)
    if (j >= kWidth - conv.width)
      load_floats(conv.weight + (j - (kWidth - conv.width)) * conv.channels + channel, weights[j].values);
  if (conv.bias != nullptr) load_floats(conv.bias + channel, bias.values);
  for (auto begin = static_cast<int32_t>(blockIdx.z) * kStretch; begin < entry.num_rows;
       begin += static_cast<int32_t>(gridDim.z) * kStretch) {
    const int32_t end = min(entry.num_rows, begin + kStretch);
#pragma unroll
    for (int j = 1; j < kWidth; ++j)
      if (j > kWidth - conv.width) window[j] = input<kPack>(conv, entry, begin + j - kWidth, channel);
    for (int32_t index = begin; index < end; ++index) {
#pragma unroll
      for (int j = 0; j + 1 < kWidth; ++j) window[j] = window[j + 1];
      window[kWidth - 1] = input<kPack>(conv, entry, index, channel);
      Channels<kPack> sum = bias;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (j < kWidth - conv.width) continue;
#pragma unroll
        for (int i = 0; i < kPack; ++i)
          sum.values[i] = fmaf(window[j].values[i], weights[j].values[i], sum.values[i]);
      }
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        if (conv.has_silu) sum.values[i] = sum.values[i] / (1.0f + expf(-sum.values[i]));
      store_floats(sum.values, conv.out + (entry.first_row + index) * conv.channels + channel);
    }
  }
  if (blockIdx.z > 0) return;
  for (int32_t index = max(0, entry.num_rows - conv.num_kept); index < entry.num_rows; ++index) {
    const int64_t place = (entry.first_position + index) % conv.num_kept;
    store_floats(input<kPack>(conv, entry, index, channel).values,
                 entry.slot + conv.kept_offset + place * conv.channels + channel);
  }
}

}  // namespace

template <class T>
void causal_conv(const StateLayout& layout, int32_t state_layer, const T* x, const float* weight, const float* bias,
                 bool has_silu, const StateEntry* entries, int32_t num_entries, int64_t num_tokens, T* out,
                 cudaStream_t stream) {
  if (num_entries == 0 || num_tokens == 0) return;
  const int64_t channels = layout.config.conv_channels(), width = layout.config.conv_width;
  LLMB_CHECK(width >= 1 && width <= kMaxConvWidth);
  const Conv<T> conv{x,
                     weight,
                     bias,
                     has_silu,
                     static_cast<int32_t>(width),
                     static_cast<int32_t>(layout.conv_kept()),
                     channels,
                     kStateHeader + state_layer * layout.layer_size() + layout.conv_offset(),
                     entries,
                     out};
  // A lone prompt among many sequences gets some times its share.
  const int64_t num_stretches = std::clamp<int64_t>(4 * num_tokens / (int64_t{num_entries} * kStretch), 1, 64);
  const auto run = [&](auto kernel, int pack) {
    const dim3 grid(static_cast<unsigned>(ceil_div(channels, int64_t{kThreads} * pack)),
                    static_cast<unsigned>(num_entries), static_cast<unsigned>(num_stretches));
    launch_ahead({grid, dim3(kThreads), 0, stream}, kernel, conv);
  };
  constexpr int kPack = 4, kUsualWidth = 4;
  const bool packs = channels % kPack == 0, is_usual = width <= kUsualWidth;
  if (packs && is_usual) run(causal_conv_kernel<kUsualWidth, kPack, T>, kPack);
  else if (packs) run(causal_conv_kernel<kMaxConvWidth, kPack, T>, kPack);
  else run(causal_conv_kernel<kMaxConvWidth, 1, T>, 1);
}

template void causal_conv(const StateLayout&, int32_t, const float*, const float*, const float*, bool,
                          const StateEntry*, int32_t, int64_t, float*, cudaStream_t);
template void causal_conv(const StateLayout&, int32_t, const __nv_bfloat16*, const float*, const float*, bool,
                          const StateEntry*, int32_t, int64_t, __nv_bfloat16*, cudaStream_t);
template void causal_conv(const StateLayout&, int32_t, const __half*, const float*, const float*, bool,
                          const StateEntry*, int32_t, int64_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
