// Attention without tensor cores: for float, and for head and block sizes that the tensor-core kernel cannot load.
// A warp takes one row at a time, 32 positions at a time.
#pragma once

#include "kernels/cuda/paged_attention_scaled.h"

namespace llmb::cuda::attention {

// KV: of keys and values in memory, T, int8_t or E4m3. kTree: items may be rows of trees behind their place.
template <class T, class KV, bool kTree>
class ScalarRow {
 public:
  static constexpr int kPositions = 32;

  // Shared floats of a warp.
  static __host__ __device__ int shared_floats(int head_dim) { return 2 * head_dim + kPositions; }

  // row: of the item.
  __device__ ScalarRow(const Args<T>& args, const AttentionItem& item, int row, float* shared)
      : args_(args),
        item_(item),
        index_(row),
        row_(find_row(args, item, row)),
        lane_(threadIdx.x % 32),
        begin_(max(item.kv_begin,
                   args.chunk > 0 ? row_.position / args.chunk * args.chunk : row_.position - args.window + 1)),
        end_(min(item.kv_end, row_.position + 1)),
        query_(shared),
        values_(shared + args.head_dim),
        numerators_(shared + 2 * args.head_dim) {}

  __device__ void run() {
    const T* query = query_of(args_, row_);
    for (int i = lane_; i < args_.head_dim; i += 32) {
      query_[i] = to_float(query[i]);
      if (i < args_.value_dim) values_[i] = 0;
    }
    for (int position = begin_ / kPositions * kPositions; position < end_; position += kPositions) add(position);
    for (int step = 1; step < 32; step *= 2) total_.sum += __shfl_xor_sync(kAllLanes, total_.sum, step);
    write();
  }

 private:
  // Elements from the pool's begin to the position's key or value.
  __device__ int64_t element_at(int position) const {
    PoolPlace place;
    if constexpr (kTree) place = tree_place_of(args_, item_, position);
    else place = place_of(args_, item_, position);
    return int64_t{place.block} * args_.block_stride +
           (int64_t{item_.kv_head} * args_.block_size + place.offset) * args_.row_stride;
  }

  __device__ float score(int position) const {
    const int64_t at = element_at(position);
    const KV* key = static_cast<const KV*>(args_.k) + at;
    float dot = 0;
    for (int i = 0; i < args_.head_dim; ++i) dot = fmaf(query_[i], to_float(key[i]), dot);
    if constexpr (kHasScales<KV>) dot *= args_.k_scales[at / args_.head_dim];
    dot *= args_.scale;
    if (args_.softcap > 0) dot = args_.softcap * tanhf(dot / args_.softcap);
    if (args_.alibi_slopes != nullptr)
      dot = fmaf(args_.alibi_slopes[row_.head], static_cast<float>(position - row_.position), dot);
    return dot * kLog2e;
  }

  // The 32 positions from `first`; each lane its own for the scores, then columns of all of them.
  __device__ void add(int first) {
    const int position = first + lane_;
    const bool sees = position >= begin_ && position < end_;
    __syncwarp();  // query_ is there; nobody reads the numerators before any more
    const float own = sees ? score(position) : kMinusInfinity;
    float max = own;
    for (int step = 1; step < 32; step *= 2) max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, step));
    max = fmaxf(max, total_.max);
    const float rescale = max == total_.max ? 1.0f : exp2f(total_.max - max);
    const float numerator = sees ? exp2f(own - max) : 0.0f;
    numerators_[lane_] = numerator;
    total_ = {max, fmaf(total_.sum, rescale, numerator)};
    __syncwarp();
    const int last = min(end_, first + kPositions);
    for (int column = lane_; column < args_.value_dim; column += 32) {
      float acc = values_[column] * rescale;
      for (int p = ::max(begin_, first); p < last; ++p) {
        const int64_t at = element_at(p);
        const KV* value = static_cast<const KV*>(args_.v) + at;
        float weight_of_p = numerators_[p - first];
        if constexpr (kHasScales<KV>) weight_of_p *= args_.v_scales[at / args_.head_dim];
        acc = fmaf(weight_of_p, to_float(value[column]), acc);
      }
      values_[column] = acc;
    }
  }

  __device__ void write() {
    const bool whole = item_.partial < 0;
    const float factor = whole ? final_factor(args_, item_, index_, total_) : 1.0f;
    const int64_t partial = item_.partial + index_;
    if (!whole && lane_ == 0) {
      args_.work.partial_stats[2 * partial] = total_.max;
      args_.work.partial_stats[2 * partial + 1] = total_.sum;
    }
    for (int column = lane_; column < args_.value_dim; column += 32) {
      if (whole) {
        result_of(args_, row_)[column] = from_float<T>(values_[column] * factor);
      } else {
        args_.work.partials[partial * args_.value_dim + column] = values_[column];
      }
    }
    __syncwarp();  // query_ is free
  }

  const Args<T>& args_;
  const AttentionItem& item_;
  const int index_;
  const Row row_;
  const int lane_;
  const int begin_, end_;  // positions that the row sees
  float* const query_;
  float* const values_;
  float* const numerators_;
  Stats total_{kMinusInfinity, 0};  // sum: of this lane's positions
};

template <class T, class KV, bool kTree>
__global__ void __launch_bounds__(kThreads) scalar_paged_attention_kernel(const Args<T> args) {
  ptx::follow_previous_grid();
  const int warp = static_cast<int>(threadIdx.x / 32);
  BlockState* state = dynamic_shared<BlockState>();
  float* shared = reinterpret_cast<float*>(state + 1) + warp * ScalarRow<T, KV, kTree>::shared_floats(args.head_dim);
  const AttentionItem& item = state->item;
  for (bool more = next_item(args, true, state); more; more = next_item(args, false, state)) {
    for (int row = warp; row < item.num_rows; row += kWarps) ScalarRow<T, KV, kTree>(args, item, row, shared).run();
    finish_item(args, state);
  }
}

template <class T, class KV>
void launch_scalar(const Args<T>& args, cudaStream_t stream) {
  const size_t row_bytes = static_cast<size_t>(ScalarRow<T, KV, false>::shared_floats(args.head_dim)) * sizeof(float);
  const bool has_tree = args.work.tree.parent_rows != nullptr;
  launch_ahead({dim3(static_cast<unsigned>(args.work.num_ctas)), dim3(kThreads),
                sizeof(BlockState) + kWarps * row_bytes, stream},
               has_tree ? scalar_paged_attention_kernel<T, KV, true> : scalar_paged_attention_kernel<T, KV, false>,
               args);
}

}  // namespace llmb::cuda::attention
