// The tensor-core kernel, instantiated once per element type in paged_attention_bf16.cu and _f16.cu, for steps with
// trees in paged_attention_tree_bf16.cu and _tree_f16.cu, and for those with shared prefixes, twice, in
// paged_attention_shared_bf16.cu and _shared_f16.cu; with int8 keys and values in paged_attention_int8_bf16.cu,
// _int8_f16.cu, _shared_int8_bf16.cu and _shared_int8_f16.cu, and with e4m3 in those with fp8 in their names.
#pragma once

#include <string>

#include "base/check.h"
#include "kernels/cuda/paged_attention_positions.h"
#include "kernels/cuda/paged_attention_rows.h"

namespace llmb::cuda::attention {

// Two blocks share an SM's shared memory: 227 KiB since Hopper, 164 or 100 before it. Tiles go by that.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kLargeShared = false;
#else
constexpr bool kLargeShared = true;
#endif

// Settings that the device's code was compiled with.
inline bool has_large_shared() {
#ifdef LLMB_SIMT
  return kLargeShared;
#else
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  return major >= 9;
#endif
}

template <class T, class KV, int kDim, bool kLarge, ItemKind kKind>
struct Kernel {
  // 256 channels leave registers for 64 rows of a block only, and shared memory for half as many positions.
  static constexpr int kPositions = (kLarge ? 64 : 32) / (kDim > 128 ? 2 : 1);
  static constexpr int kRowBlocks = kDim > 128 ? 1 : 2;
  using Few = PositionAttention<T, KV, kDim, kKind>;
  using Tall = RowAttention<T, KV, kDim, kPositions, 1, kKind>;
  using Tallest = RowAttention<T, KV, kDim, kPositions, kRowBlocks, kKind>;
  static constexpr int kTileBytes = max_of(Few::kSharedBytes, Tallest::kSharedBytes);
  static constexpr int kSharedBytes = kTileBytes + static_cast<int>(sizeof(BlockState));
};

template <class T, class KV, int kDim, ItemKind kKind>
__global__ void __launch_bounds__(kThreads, 2) paged_attention_kernel(const Args<T> args) {
  ptx::follow_previous_grid();
  using K = Kernel<T, KV, kDim, kLargeShared, kKind>;
  T* shared = dynamic_shared<T>();
  BlockState* state = reinterpret_cast<BlockState*>(dynamic_shared<char>() + K::kTileBytes);
  const AttentionItem& item = state->item;
  for (bool more = next_item(args, true, state); more; more = next_item(args, false, state)) {
    if (item.num_rows <= AttentionTiling::kSmallRows && !args.deterministic && K::Few::Tiles::takes(args)) {
      typename K::Few(args, *state, shared).run();
    } else if (item.num_rows <= K::Tall::kRows || K::kRowBlocks == 1) {
      typename K::Tall(args, state, shared).run();
    } else {
      typename K::Tallest(args, state, shared).run();
    }
    finish_item(args, state);
  }
}

// Items of any number of rows of several sequences; their results are states.
template <class T, class KV, int kDim>
__global__ void __launch_bounds__(kThreads, 2) shared_paged_attention_kernel(const Args<T> args) {
  ptx::follow_previous_grid();
  using K = Kernel<T, KV, kDim, kLargeShared, ItemKind::kShared>;
  T* shared = dynamic_shared<T>();
  BlockState* state = reinterpret_cast<BlockState*>(dynamic_shared<char>() + K::kTileBytes);
  for (bool more = next_item(args, true, state); more; more = next_item(args, false, state)) {
    if (state->item.num_rows <= K::Tall::kRows || K::kRowBlocks == 1) typename K::Tall(args, state, shared).run();
    else typename K::Tallest(args, state, shared).run();
  }
}

template <class T, class KV, int kDim, ItemKind kKind>
auto kernel_of() {
  if constexpr (kKind == ItemKind::kShared) return shared_paged_attention_kernel<T, KV, kDim>;
  else return paged_attention_kernel<T, KV, kDim, kKind>;
}

template <class T, class KV, int kDim, ItemKind kKind>
void launch_for_dim(const Args<T>& args, cudaStream_t stream) {
  const int shared_bytes = has_large_shared() ? Kernel<T, KV, kDim, true, kKind>::kSharedBytes
                                              : Kernel<T, KV, kDim, false, kKind>::kSharedBytes;
  launch_ahead(
      {dim3(static_cast<unsigned>(args.work.num_ctas)), dim3(kThreads), static_cast<size_t>(shared_bytes), stream},
      kernel_of<T, KV, kDim, kKind>(), args);
}

// KV: of keys and values in memory, T, int8_t or E4m3. padded_dim: as attention_tiling() says.
template <class T, class KV, ItemKind kKind>
void launch_mma(const Args<T>& args, int32_t padded_dim, cudaStream_t stream) {
  switch (padded_dim) {
    case 64:
      return launch_for_dim<T, KV, 64, kKind>(args, stream);
    case 80:
      return launch_for_dim<T, KV, 80, kKind>(args, stream);
    case 96:
      return launch_for_dim<T, KV, 96, kKind>(args, stream);
    case 128:
      return launch_for_dim<T, KV, 128, kKind>(args, stream);
    case 256:
      return launch_for_dim<T, KV, 256, kKind>(args, stream);
    default:
      LLMB_CHECK_MSG(false, "no kernel for head_dim " + std::to_string(args.head_dim));
  }
}

}  // namespace llmb::cuda::attention
