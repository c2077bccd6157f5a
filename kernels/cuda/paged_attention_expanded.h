// Attention of prompts over latents that were expanded to keys and values of every head (expand_latents.h): a
// position's value stands behind its key in a row of one pool, and they differ in size. Instantiated once per element
// type in paged_attention_expanded_bf16.cu, _f16.cu and _f32.cu.
//
// Bound by multiply-adds. Not for deterministic runs: a row's bits would depend on how its prompt was cut into chunks.
#pragma once

#include <string>

#include "kernels/cuda/paged_attention_launch.h"

namespace llmb::cuda::attention {

// Padded to kDim channels of keys and kValueDim of values. Tiles are small enough for two blocks on Hopper, whose shared
// memory is 227 KiB, and one where it has 99.
template <class T, int kDim, int kValueDim>
struct ExpandedKernel {
  static constexpr int kPositions = 32;
  static constexpr int kRowBlocks = kDim > 192 ? 1 : 2;
  using Tall = RowAttention<T, T, kDim, kPositions, 1, ItemKind::kChain, kValueDim>;
  using Tallest = RowAttention<T, T, kDim, kPositions, kRowBlocks, ItemKind::kChain, kValueDim>;
  static constexpr int kTileBytes = Tallest::kSharedBytes;
  static constexpr int kSharedBytes = kTileBytes + static_cast<int>(sizeof(BlockState));
};

template <class T, int kDim, int kValueDim>
__global__ void __launch_bounds__(kThreads, 2) expanded_attention_kernel(const Args<T> args) {
  ptx::follow_previous_grid();
  using K = ExpandedKernel<T, kDim, kValueDim>;
  T* const shared = dynamic_shared<T>();
  BlockState* const state = reinterpret_cast<BlockState*>(dynamic_shared<char>() + K::kTileBytes);
  for (bool more = next_item(args, true, state); more; more = next_item(args, false, state)) {
    if (state->item.num_rows <= K::Tall::kRows || K::kRowBlocks == 1) typename K::Tall(args, state, shared).run();
    else typename K::Tallest(args, state, shared).run();
    finish_item(args, state);
  }
}

template <class T, int kDim, int kValueDim>
void launch_expanded(const Args<T>& args, cudaStream_t stream) {
  using K = ExpandedKernel<T, kDim, kValueDim>;
  launch_ahead({dim3(static_cast<unsigned>(args.work.num_ctas)), dim3(kThreads), K::kSharedBytes, stream},
               expanded_attention_kernel<T, kDim, kValueDim>, args);
}

}  // namespace llmb::cuda::attention

namespace llmb::cuda {

template <class T>
void expanded_attention(const T* queries, int64_t query_stride, T* out, int64_t out_stride, const T* pool,
                        const BlockId* block_ids, const AttentionWork& work, const AttentionParams& params,
                        cudaStream_t stream) {
  using namespace attention;
  const AttentionShape& shape = params.shape;
  const AttentionTiling tiling = checked_tiling<T>(params, KvCode::kNone);
  LLMB_CHECK(shape.joined_value_dim > 0 && shape.group() == 1 && !shape.deterministic && shape.block_stride == 0);
  LLMB_CHECK(shape.window == 0 && shape.later == 0 && shape.chunk == 0);
  LLMB_CHECK(work.tree.parent_rows == nullptr && work.shared.stats == nullptr);
  Args<T> args = make_args(queries, query_stride, out, block_ids, work, params);
  args.k = pool, args.v = pool + shape.head_dim;
  args.out_stride = out_stride;
  if (tiling.scalar) return launch_scalar<T, T>(args, stream);
  if constexpr (!std::is_same_v<T, float>) {
    LLMB_CHECK(query_stride % 8 == 0 && out_stride % 8 == 0);
    if (tiling.only_wgmma) return launch_wgmma_for_dim<T, 192, ItemKind::kChain, 128>(args, stream);
    if (tiling.padded_dim == 192) return launch_expanded<T, 192, 128>(args, stream);
    launch_expanded<T, 256, 256>(args, stream);
  }
}

}  // namespace llmb::cuda
