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

// Defined in paged_attention_tree_bf16.cu, _tree_f16.cu, _shared_bf16.cu and _shared_f16.cu.
extern template void launch_mma<__nv_bfloat16, ItemKind::kTree>(const Args<__nv_bfloat16>&, int32_t, cudaStream_t);
extern template void launch_mma<__half, ItemKind::kTree>(const Args<__half>&, int32_t, cudaStream_t);
extern template void launch_mma<__nv_bfloat16, ItemKind::kShared>(const Args<__nv_bfloat16>&, int32_t, cudaStream_t);
extern template void launch_mma<__half, ItemKind::kShared>(const Args<__half>&, int32_t, cudaStream_t);
extern template void launch_wgmma<__nv_bfloat16, ItemKind::kShared>(const Args<__nv_bfloat16>&, cudaStream_t);
extern template void launch_wgmma<__half, ItemKind::kShared>(const Args<__half>&, cudaStream_t);
extern template void launch_mma<__nv_bfloat16, ItemKind::kContinued>(const Args<__nv_bfloat16>&, int32_t, cudaStream_t);
extern template void launch_mma<__half, ItemKind::kContinued>(const Args<__half>&, int32_t, cudaStream_t);

template <class T>
Args<T> make_args(const T* qkv, int64_t qkv_stride, T* out, const T* k, const T* v, const BlockId* block_ids,
                  const AttentionWork& work, const AttentionParams& params) {
  const AttentionShape& shape = params.shape;
  const bool is_power_of_two = std::has_single_bit(static_cast<unsigned>(shape.block_size));
  Args<T> args{};
  args.qkv = qkv;
  args.qkv_stride = qkv_stride;
  args.out = out;
  args.k = k;
  args.v = v;
  args.block_ids = block_ids;
  args.work = work;
  args.alibi_slopes = params.alibi_slopes;
  args.sinks = params.sinks;
  args.num_heads = shape.num_heads;
  args.num_kv_heads = shape.num_kv_heads;
  args.group = shape.group();
  args.group_reciprocal = 0xFFFFFFFFu / static_cast<uint32_t>(args.group);
  args.head_dim = shape.head_dim;
  args.block_size = shape.block_size;
  args.block_shift = is_power_of_two ? std::countr_zero(static_cast<unsigned>(shape.block_size)) : -1;
  args.window = shape.window > 0 ? std::min(shape.window, kNoWindow) : kNoWindow;
  args.scale = params.scale;
  args.softcap = params.softcap;
  args.softcap_rate = params.softcap > 0 ? 2 * kLog2e / params.softcap : 0;
  args.fold = params.softcap > 0 || params.alibi_slopes != nullptr ? 1.0f : params.scale * kLog2e;
  args.deterministic = shape.deterministic;
  return args;
}

}  // namespace llmb::cuda::attention

namespace llmb::cuda {

template <class T>
void paged_attention(const T* qkv, int64_t qkv_stride, T* out, const T* k, const T* v, const BlockId* block_ids,
                     const AttentionWork& work, const AttentionParams& params, cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  LLMB_CHECK(shape.dtype == attention::kDTypeOf<T>);
  LLMB_CHECK(params.scale > 0 && params.softcap >= 0 && shape.window >= 0);
  const AttentionTiling tiling = attention_tiling(shape);
  const attention::Args<T> args = attention::make_args(qkv, qkv_stride, out, k, v, block_ids, work, params);
  if constexpr (std::is_same_v<T, float>) {
    attention::launch_scalar(args, stream);
  } else if (tiling.scalar) {
    attention::launch_scalar(args, stream);
  } else {
    LLMB_CHECK(qkv_stride % 8 == 0);
    if (work.shared.stats != nullptr) {
      LLMB_CHECK(work.tree.parent_rows == nullptr);
      attention::Args<T> shared = args;
      shared.work.num_ctas = work.shared.num_ctas;
      shared.work.items = work.shared.items;
      shared.work.cta_start = work.shared.cta_start;
      if (work.shared.uses_wgmma) attention::launch_wgmma<T, attention::ItemKind::kShared>(shared, stream);
      else attention::launch_mma<T, attention::ItemKind::kShared>(shared, tiling.padded_dim, stream);
    }
    const int32_t first_wgmma_cta = tiling.first_wgmma_cta(work.num_ctas);
    attention::Args<T> part = args;
    if (tiling.wgmma && work.has_wgmma_items) {
      part.work.num_ctas = work.num_ctas - first_wgmma_cta;
      part.work.cta_start = work.cta_start + first_wgmma_cta;
      attention::launch_wgmma<T, attention::ItemKind::kChain>(part, stream);
      part = args;
    }
    part.work.num_ctas = first_wgmma_cta;
    if (work.tree.parent_rows != nullptr)
      attention::launch_mma<T, attention::ItemKind::kTree>(part, tiling.padded_dim, stream);
    else if (work.shared.stats != nullptr)
      attention::launch_mma<T, attention::ItemKind::kContinued>(part, tiling.padded_dim, stream);
    else attention::launch_mma<T, attention::ItemKind::kChain>(part, tiling.padded_dim, stream);
  }
}

}  // namespace llmb::cuda
