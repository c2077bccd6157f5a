// Host side of a launch, included once per element type.
#pragma once

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/cuda/paged_attention_mma.h"
#include "kernels/cuda/paged_attention_scalar.h"
#include "kernels/cuda/paged_attention_wgmma.h"

namespace llmb::cuda::attention {

template <class T>
constexpr DType kDTypeOf = std::is_same_v<T, float>    ? DType::kF32
                           : std::is_same_v<T, __half> ? DType::kF16
                                                       : DType::kBF16;

// Defined in paged_attention_tree_bf16.cu, _shared_bf16.cu, and those of f16.
#define LLMB_OTHER_KERNELS(T)                                                                         \
  extern template void launch_mma<T, T, ItemKind::kTree>(const Args<T>&, int32_t, cudaStream_t);      \
  extern template void launch_mma<T, T, ItemKind::kShared>(const Args<T>&, int32_t, cudaStream_t);    \
  extern template void launch_mma<T, T, ItemKind::kContinued>(const Args<T>&, int32_t, cudaStream_t); \
  extern template void launch_wgmma<T, ItemKind::kShared>(const Args<T>&, cudaStream_t);
LLMB_OTHER_KERNELS(__nv_bfloat16)
LLMB_OTHER_KERNELS(__half)
#undef LLMB_OTHER_KERNELS

// Defined in paged_attention_int8_bf16.cu, _shared_int8_bf16.cu, those of fp8, and those of f16.
#define LLMB_SCALED_KERNELS(T, KV)                                                                   \
  extern template void launch_mma<T, KV, ItemKind::kChain>(const Args<T>&, int32_t, cudaStream_t);  \
  extern template void launch_mma<T, KV, ItemKind::kTree>(const Args<T>&, int32_t, cudaStream_t);   \
  extern template void launch_mma<T, KV, ItemKind::kShared>(const Args<T>&, int32_t, cudaStream_t); \
  extern template void launch_mma<T, KV, ItemKind::kContinued>(const Args<T>&, int32_t, cudaStream_t);
LLMB_SCALED_KERNELS(__nv_bfloat16, int8_t)
LLMB_SCALED_KERNELS(__half, int8_t)
LLMB_SCALED_KERNELS(__nv_bfloat16, E4m3)
LLMB_SCALED_KERNELS(__half, E4m3)
#undef LLMB_SCALED_KERNELS

// Defined in paged_attention_wide_bf16.cu and _f16.cu.
template <class T>
void launch_wide(const Args<T>& args, cudaStream_t stream);
extern template void launch_wide(const Args<__nv_bfloat16>&, cudaStream_t);
extern template void launch_wide(const Args<__half>&, cudaStream_t);

template <class T>
Args<T> make_args(const T* qkv, int64_t qkv_stride, T* out, const BlockId* block_ids, const AttentionWork& work,
                  const AttentionParams& params) {
  const AttentionShape& shape = params.shape;
  const bool is_power_of_two = std::has_single_bit(static_cast<unsigned>(shape.block_size));
  Args<T> args{};
  args.qkv = qkv;
  args.qkv_stride = qkv_stride;
  args.out = out;
  args.block_ids = block_ids;
  args.work = work;
  args.alibi_slopes = params.alibi_slopes;
  args.sinks = params.sinks;
  args.num_heads = shape.num_heads;
  args.num_kv_heads = shape.num_kv_heads;
  args.group = shape.group();
  args.group_reciprocal = 0xFFFFFFFFu / static_cast<uint32_t>(args.group);
  args.head_dim = shape.head_dim;
  args.value_dim = shape.value_dim();
  args.block_stride = shape.block_stride > 0 ? shape.block_stride : shape.dense_stride();
  args.row_stride = shape.row_dim();
  args.out_stride = int64_t{shape.num_heads} * shape.value_dim();
  args.block_rows = static_cast<uint32_t>(args.block_stride / args.row_stride);
  args.block_size = shape.block_size;
  args.block_shift = is_power_of_two ? std::countr_zero(static_cast<unsigned>(shape.block_size)) : -1;
  args.window = shape.window > 0 ? std::min(shape.window, kNoWindow) : kNoWindow;
  args.later = shape.later;
  args.chunk = shape.chunk;
  args.scale = params.scale;
  args.softcap = params.softcap;
  args.softcap_rate = params.softcap > 0 ? 2 * kLog2e / params.softcap : 0;
  args.fold = params.softcap > 0 || params.alibi_slopes != nullptr ? 1.0f : params.scale * kLog2e;
  args.deterministic = shape.deterministic;
  return args;
}

// Launches for keys and values of type KV, T, int8_t or E4m3, which are in args.
template <class T, class KV>
void launch_all(const Args<T>& args, const AttentionTiling& tiling, cudaStream_t stream) {
  if (tiling.scalar) return launch_scalar<T, KV>(args, stream);
  if constexpr (!std::is_same_v<T, float>) {
    LLMB_CHECK(!(args.later > 0 || args.chunk > 0) ||
               (args.work.tree.parent_rows == nullptr && args.work.shared.stats == nullptr));
    if (tiling.wide) return launch_wide(args, stream);
    const AttentionWork& work = args.work;
    LLMB_CHECK(args.qkv_stride % 8 == 0 && (std::is_same_v<T, KV> || !tiling.wgmma));
    if (work.shared.stats != nullptr) {
      LLMB_CHECK(work.tree.parent_rows == nullptr);
      Args<T> shared = args;
      shared.work.num_ctas = work.shared.num_ctas;
      shared.work.items = work.shared.items;
      shared.work.cta_start = work.shared.cta_start;
      if (work.shared.uses_wgmma) launch_wgmma<T, ItemKind::kShared>(shared, stream);
      else launch_mma<T, KV, ItemKind::kShared>(shared, tiling.padded_dim, stream);
    }
    const int32_t first_wgmma_cta = tiling.first_wgmma_cta(work.num_ctas);
    Args<T> part = args;
    if (tiling.wgmma && work.has_wgmma_items) {
      part.work.num_ctas = work.num_ctas - first_wgmma_cta;
      part.work.cta_start = work.cta_start + first_wgmma_cta;
      launch_wgmma<T, ItemKind::kChain>(part, stream);
      part = args;
    }
    part.work.num_ctas = first_wgmma_cta;
    if (work.tree.parent_rows != nullptr) launch_mma<T, KV, ItemKind::kTree>(part, tiling.padded_dim, stream);
    else if (work.shared.stats != nullptr) launch_mma<T, KV, ItemKind::kContinued>(part, tiling.padded_dim, stream);
    else launch_mma<T, KV, ItemKind::kChain>(part, tiling.padded_dim, stream);
  }
}

template <class T>
AttentionTiling checked_tiling(const AttentionParams& params, KvCode code) {
  const AttentionShape& shape = params.shape;
  LLMB_CHECK(shape.dtype == kDTypeOf<T> && shape.kv_code == code);
  LLMB_CHECK(code == KvCode::kNone || (shape.latent_dim == 0 && shape.block_stride == 0));
  LLMB_CHECK(params.scale > 0 && params.softcap >= 0 && shape.window >= 0);
  LLMB_CHECK(shape.later >= 0 && shape.later <= AttentionShape::kAllLater);
  LLMB_CHECK(shape.later == 0 || params.alibi_slopes == nullptr);
  LLMB_CHECK(shape.chunk >= 0 && (shape.chunk == 0 || (shape.window == 0 && shape.later == 0)));
  return attention_tiling(shape);
}

}  // namespace llmb::cuda::attention

namespace llmb::cuda {

template <class T>
void paged_attention(const T* qkv, int64_t qkv_stride, T* out, const T* k, const T* v, const BlockId* block_ids,
                     const AttentionWork& work, const AttentionParams& params, cudaStream_t stream) {
  const AttentionTiling tiling = attention::checked_tiling<T>(params, KvCode::kNone);
  attention::Args<T> args = attention::make_args(qkv, qkv_stride, out, block_ids, work, params);
  args.k = k, args.v = v + (params.shape.head_dim - params.shape.value_dim());
  attention::launch_all<T, T>(args, tiling, stream);
}

template <class T, class Code>
void paged_attention(const T* qkv, int64_t qkv_stride, T* out, const ScaledKv<Code>& kv, const BlockId* block_ids,
                     const AttentionWork& work, const AttentionParams& params, cudaStream_t stream) {
  const AttentionTiling tiling = attention::checked_tiling<T>(params, kCodeOf<Code>);
  attention::Args<T> args = attention::make_args(qkv, qkv_stride, out, block_ids, work, params);
  args.k = kv.k, args.v = kv.v, args.k_scales = kv.k_scales, args.v_scales = kv.v_scales;
  attention::launch_all<T, Code>(args, tiling, stream);
}

}  // namespace llmb::cuda
