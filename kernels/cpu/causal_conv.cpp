// Bound by memory: two floats moved for each channel of a token, `width` multiply-adds and an exp. One task is a
// stretch of channels of one sequence.
#include "kernels/cpu/causal_conv.h"

#include <algorithm>

#include "core/types.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/causal_conv.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// sources[j]: the inputs of token j of the window, the oldest first; null: there is none.
void conv_row(const float* const* sources, const float* weight, const float* bias, bool has_silu, int64_t width,
              int64_t stride, int64_t n, float* out) {
  const auto silu = [](V x) HWY_ATTR { return hn::Div(x, hn::Add(hn::Set(D(), 1.0f), exp_v(hn::Neg(x)))); };
  const auto mul_add = [](V a, V b, V c) HWY_ATTR { return hn::MulAdd(a, b, c); };
  for (int64_t i = 0; i < n; i += kLogicalLanes) {
    const int64_t rest = std::min<int64_t>(kLogicalLanes, n - i);
    V16 sum = bias != nullptr ? load16_partial(bias + i, rest) : set16(0);
    for (int64_t j = 0; j < width; ++j) {
      if (sources[j] == nullptr) continue;
      const float* const x = sources[j] + i;
      const float* const w = weight + j * stride + i;
      sum = rest == kLogicalLanes ? map16(load16(x), load16(w), sum, mul_add)
                                  : map16(load16_partial(x, rest), load16_partial(w, rest), sum, mul_add);
    }
    if (has_silu) sum = map16(sum, silu);
    if (rest == kLogicalLanes) store16(sum, out + i);
    else store16_partial(sum, out + i, rest);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

namespace llmb::cpu {

HWY_EXPORT(conv_row);

namespace {

constexpr int64_t kStretch = 1024;  // channels

}  // namespace

void causal_conv(const float* x, const float* weight, const float* bias, bool has_silu, int64_t width, int64_t channels,
                 const StateEntries& entries, int64_t conv_offset, int64_t num_kept, float* out, ThreadPool& pool) {
  const int64_t num_stretches = ceil_div(channels, kStretch);
  pool.parallel_for(entries.count * num_stretches, [&](int64_t task, int) {
    const auto e = static_cast<int32_t>(task / num_stretches);
    const int64_t first = task % num_stretches * kStretch, n = std::min(kStretch, channels - first);
    const int64_t begin = entries.query_start[e], end = entries.query_start[e + 1];
    const int64_t position = entries.first_position[e];
    float* const state = entries.states[e] + conv_offset + first;
    std::vector<const float*> sources(static_cast<size_t>(width));
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t j = 0; j < width; ++j) {
        const int64_t back = width - 1 - j, source = row - back;  // the row of that token, were it in this step
        const int64_t at = position + row - begin - back;
        const float*& from = sources[static_cast<size_t>(j)];
        if (at < 0) from = nullptr;
        else if (source >= begin) from = x + source * channels + first;
        else from = state + at % num_kept * channels;
      }
      HWY_DYNAMIC_DISPATCH(conv_row)
      (sources.data(), weight + first, bias != nullptr ? bias + first : nullptr, has_silu, width, channels, n,
       out + row * channels + first);
    }
    for (int64_t row = std::max(begin, end - num_kept); row < end; ++row)
      std::copy_n(x + row * channels + first, n, state + (position + row - begin) % num_kept * channels);
  });
}

}  // namespace llmb::cpu
#endif
