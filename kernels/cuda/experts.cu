// A pair is a row and one of its experts. Pairs are sorted by expert on the device: each expert's block counts its
// pairs, then places them behind those of the experts before it, and cuts them into the row tiles of linear_grouped.
// The products between bind; sorting reads the pairs once for each expert, from the second-level cache.
#include "kernels/cuda/experts.h"

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/activate.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/linear_fp8.h"
#include "kernels/cuda/linear_int4.h"
#include "kernels/cuda/linear_int8.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// ExpertsConfig, as the device has it.
struct Routing {
  int32_t num_experts, top_k, num_groups, top_groups;
  bool is_softmax, norm_topk_prob;
  float weight_scale;
  const float* choice_bias;
  const float* scales;
  int32_t scores_of_group;  // 1 or 2

  __device__ bool chooses_by_score() const { return choice_bias != nullptr || num_groups > 1; }
  // But for softmax's divisor.
  __device__ float score(float logit, float max) const {
    return is_softmax ? expf(logit - max) : 1.0f / (1.0f + expf(-logit));
  }
};

struct Candidate {
  float choice;
  int32_t expert;
};

// NaN ranks highest, so that it is chosen and its row becomes NaN. Of equals the lowest expert comes first.
__device__ bool is_before(const Candidate& a, const Candidate& b) {
  const bool a_nan = a.choice != a.choice, b_nan = b.choice != b.choice;
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a.choice != b.choice) return a.choice > b.choice;
  return a.expert < b.expert;
}

// A bit for each group of experts that a row may choose from. choice(e): what expert e is chosen by.
template <class Choice>
__device__ unsigned best_groups(const Routing& r, const Choice& choice) {
  if (r.num_groups == 1) return 1;
  const int lane = threadIdx.x % kWarp, size = r.num_experts / r.num_groups;
  float mine = -INFINITY;  // the score of group `lane`
  for (int g = 0; g < r.num_groups; ++g) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = lane; e < size; e += kWarp) {
      const float c = choice(g * size + e);
      second = fmaxf(second, fminf(first, c));
      first = fmaxf(first, c);
    }
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const float c = __shfl_xor_sync(kAllLanes, first, offset), d = __shfl_xor_sync(kAllLanes, second, offset);
      second = fmaxf(fminf(first, c), fmaxf(second, d));
      first = fmaxf(first, c);
    }
    if (lane == g) mine = size == 1 || r.scores_of_group == 1 ? first : first + second;
  }
  int rank = 0;
  for (int g = 0; g < r.num_groups; ++g) {
    const float other = __shfl_sync(kAllLanes, mine, g);
    rank += other > mine || (other == mine && g < lane);
  }
  return __ballot_sync(kAllLanes, lane < r.num_groups && rank < r.top_groups);
}

// A row's chosen experts, ascending, and their weights. A row is a warp's; lane i holds the i-th best.
__global__ void __launch_bounds__(kThreads) route_kernel(const float* __restrict__ logits, Routing r, int64_t rows,
                                                         int32_t* __restrict__ chosen, float* __restrict__ weights) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const int32_t num_experts = r.num_experts, top_k = r.top_k;
  const float* const mine = logits + row * num_experts;
  float max = -INFINITY;
  bool has_nan = false;
  for (int32_t e = lane; e < num_experts; e += kWarp) {
    max = fmaxf(max, mine[e]);
    has_nan |= mine[e] != mine[e];
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, offset));
  has_nan = __ballot_sync(kAllLanes, has_nan) != 0;
  float all = 1;
  if (r.is_softmax && (r.chooses_by_score() || !r.norm_topk_prob)) {
    all = 0;
    for (int32_t e = lane; e < num_experts; e += kWarp) all += expf(mine[e] - max);
    all = warp_sum(all);
  }
  const auto choice = [&](int32_t e) {
    if (!r.chooses_by_score()) return mine[e];
    const float score = r.score(mine[e], max) / all;
    return r.choice_bias != nullptr ? score + r.choice_bias[e] : score;
  };
  const unsigned groups = best_groups(r, choice);
  const int group_size = num_experts / r.num_groups;
  Candidate own{0, INT32_MAX}, last{0, -1};
  for (int i = 0; i < top_k; ++i) {
    Candidate best{0, INT32_MAX};  // none yet
    for (int32_t e = lane; e < num_experts; e += kWarp) {
      if ((groups >> (e / group_size) & 1) == 0) continue;
      const Candidate c{choice(e), e};
      const bool is_left = i == 0 || is_before(last, c);
      if (is_left && (best.expert == INT32_MAX || is_before(c, best))) best = c;
    }
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const Candidate other{__shfl_xor_sync(kAllLanes, best.choice, offset),
                            __shfl_xor_sync(kAllLanes, best.expert, offset)};
      const bool take = other.expert != INT32_MAX && (best.expert == INT32_MAX || is_before(other, best));
      if (take) best = other;
    }
    if (lane == i) own = best;
    last = best;
  }
  const float share = lane < top_k ? r.score(mine[own.expert], max) : 0.0f;
  const float total = r.norm_topk_prob ? warp_sum(share) : all;
  int rank = 0;  // among the chosen, by index
  for (int i = 0; i < top_k; ++i) rank += __shfl_sync(kAllLanes, own.expert, i) < own.expert;
  if (lane < top_k) {
    chosen[row * top_k + rank] = own.expert;
    const float weight = share / total * r.weight_scale;
    weights[row * top_k + rank] = has_nan ? NAN : r.scales != nullptr ? weight * r.scales[own.expert] : weight;
  }
}

__device__ int block_sum(int x, int* partial_sums) {
  x = warp_sum(x);
  __syncthreads();  // the last call's sums have been read
  if (threadIdx.x % kWarp == 0) partial_sums[threadIdx.x / kWarp] = x;
  __syncthreads();
  int sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += partial_sums[w];
  return sum;
}

// Experts that this rank has.
struct OwnExperts {
  int32_t first, end;

  __device__ bool has(int32_t expert) const { return expert >= first && expert < end; }
};

// A block is an expert. Another rank's has no pairs.
__global__ void __launch_bounds__(kThreads) count_kernel(const int32_t* __restrict__ chosen, int32_t num_pairs,
                                                         OwnExperts own, int32_t* __restrict__ counts) {
  __shared__ int partial_sums[kWarps];
  const auto expert = static_cast<int32_t>(blockIdx.x);
  int count = 0;
  for (int32_t p = threadIdx.x; p < num_pairs; p += kThreads) count += own.has(expert) && chosen[p] == expert;
  count = block_sum(count, partial_sums);
  if (threadIdx.x == 0) counts[expert] = count;
}

// Places an expert's pairs, in their order: row_of_slot, slot_of_pair; and its tiles. Pairs of another rank's expert
// have slot -1. The last expert's block also empties the tiles that are left.
__global__ void __launch_bounds__(kThreads)
    place_kernel(const int32_t* __restrict__ chosen, int32_t num_pairs, int32_t top_k,
                 const int32_t* __restrict__ counts, int32_t num_experts, OwnExperts own, int32_t tile_rows,
                 int32_t max_tiles, int32_t* __restrict__ row_of_slot, int32_t* __restrict__ slot_of_pair,
                 RowTile* __restrict__ tiles) {
  __shared__ int partial_sums[kWarps];
  const auto expert = static_cast<int32_t>(blockIdx.x);
  int before = 0, tiles_before = 0;
  for (int32_t e = threadIdx.x; e < expert; e += kThreads) {
    before += counts[e];
    tiles_before += (counts[e] + tile_rows - 1) / tile_rows;
  }
  const int first_slot = block_sum(before, partial_sums), first_tile = block_sum(tiles_before, partial_sums);
  const int count = counts[expert], num_tiles = (count + tile_rows - 1) / tile_rows;
  for (int t = threadIdx.x; t < num_tiles; t += kThreads)
    tiles[first_tile + t] = {expert, first_slot + t * tile_rows, min(tile_rows, count - t * tile_rows)};
  if (expert == num_experts - 1)
    for (int t = first_tile + num_tiles + threadIdx.x; t < max_tiles; t += kThreads) tiles[t] = {-1, 0, 0};
  if (!own.has(expert)) {
    for (int32_t pair = threadIdx.x; pair < num_pairs; pair += kThreads)
      if (chosen[pair] == expert) slot_of_pair[pair] = -1;
    return;
  }

  int next_slot = first_slot;
  for (int32_t begin = 0; begin < num_pairs; begin += kThreads) {
    const int32_t pair = begin + static_cast<int32_t>(threadIdx.x);
    const bool is_mine = pair < num_pairs && chosen[pair] == expert;
    const unsigned vote = __ballot_sync(kAllLanes, is_mine);
    __syncthreads();  // the last turn's counts have been read
    if (threadIdx.x % kWarp == 0) partial_sums[threadIdx.x / kWarp] = __popc(vote);
    __syncthreads();
    int slot = next_slot + __popc(vote & ((1u << (threadIdx.x % kWarp)) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < static_cast<int>(threadIdx.x / kWarp)) slot += partial_sums[w];
      next_slot += partial_sums[w];
    }
    if (is_mine) {
      row_of_slot[slot] = pair / top_k;
      slot_of_pair[pair] = slot;
    }
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const T* __restrict__ y, const int32_t* __restrict__ slot_of_pair, const float* __restrict__ weights,
                   int32_t top_k, int64_t hidden, T* __restrict__ out) {
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (at >= hidden) return;
  float sum[kWidth] = {};
  for (int i = 0; i < top_k; ++i) {
    const int64_t slot = slot_of_pair[row * top_k + i];
    if (slot < 0) continue;
    const float weight = weights != nullptr ? weights[row * top_k + i] : 1.0f;
    float v[kWidth];
    load_floats(y + slot * hidden + at, v);
#pragma unroll
    for (int c = 0; c < kWidth; ++c) sum[c] = fmaf(weight, v[c], sum[c]);
  }
  store_floats(sum, out + row * hidden + at);
}

// Multiplies what a pair's matrix gave by the pair's weight.
template <class T>
__global__ void __launch_bounds__(kThreads) weigh_kernel(T* __restrict__ x, const int32_t* __restrict__ slot_of_pair,
                                                         const float* __restrict__ weights, int64_t width) {
  const int64_t pair = blockIdx.x, column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t slot = slot_of_pair[pair];
  if (column >= width || slot < 0) return;
  T* const at = x + slot * width + column;
  *at = from_float<T>(weights[pair] * to_float(*at));
}

// The workspace's arrays, one behind the other.
struct Workspace {
  int32_t *chosen = nullptr, *counts = nullptr, *row_of_slot = nullptr, *slot_of_pair = nullptr;
  float* weights = nullptr;
  RowTile* tiles = nullptr;
  void *gate_up = nullptr, *activated = nullptr, *y = nullptr;
  int8_t *x_int8 = nullptr, *activated_int8 = nullptr;  // where experts are int8, with the scales below
  float *x_scales = nullptr, *activated_scales = nullptr;
  int64_t bytes = 0;

  // With `base` nullptr: to count bytes.
  Workspace(uint8_t* base, const ExpertsShape& s, int64_t rows, int64_t element_bytes) {
    const int64_t pairs = rows * s.config.top_k;
    const auto place = [&](auto** array, int64_t size, int64_t each) {
      if (base != nullptr) *array = reinterpret_cast<std::remove_reference_t<decltype(*array)>>(base + bytes);
      bytes += ceil_div(size * each, 16) * 16;
    };
    place(&chosen, pairs, 4);
    place(&counts, s.config.num_experts, 4);
    place(&row_of_slot, pairs, 4);
    place(&slot_of_pair, pairs, 4);
    place(&weights, pairs, 4);
    place(&tiles, max_tiles(pairs, s.config.num_experts), sizeof(RowTile));
    place(&gate_up, pairs * s.gate_up, element_bytes);
    place(&activated, pairs * s.intermediate, element_bytes);
    place(&y, pairs * s.hidden, element_bytes);
    if (!s.is_int8) return;
    place(&x_int8, rows * int8_row_bytes(s.hidden), 1);
    place(&x_scales, rows, 4);
    place(&activated_int8, pairs * int8_row_bytes(s.intermediate), 1);
    place(&activated_scales, pairs, 4);
  }

  // Every expert's last tile may be short.
  static int64_t max_tiles(int64_t pairs, int32_t num_experts) {
    const int64_t tile_rows = grouped_tile_rows(pairs, num_experts);
    return std::min<int64_t>(pairs, pairs / tile_rows + num_experts);
  }
};

// The rows' product by each one's expert. int8, scales: memory for the rows as int8, where experts are.
template <class T>
void multiply_rows(const GroupedWeights& weights, const T* x, int64_t num_x_rows, const int32_t* x_rows,
                   const Workspace& w, int32_t num_tiles, int32_t tile_rows, int8_t* int8, float* scales, T* out,
                   cudaStream_t stream) {
  if constexpr (!std::is_same_v<T, float>) {
    if (weights.is_int4) return linear_grouped_int4(weights, x, x_rows, w.tiles, num_tiles, tile_rows, out, stream);
    if (weights.is_fp8) return linear_grouped_fp8(weights, x, x_rows, w.tiles, num_tiles, tile_rows, out, stream);
  }
  LLMB_CHECK(!weights.is_int4 && !weights.is_fp8);
  if (weights.scales == nullptr) return linear_grouped(weights, x, x_rows, w.tiles, num_tiles, tile_rows, out, stream);
  quantize_rows(x, num_x_rows, weights.in_features, int8, scales, stream);
  linear_grouped_int8(weights, {int8, scales}, x_rows, w.tiles, num_tiles, tile_rows, out, stream);
}

Routing routing_of(const ExpertsConfig& config, const float* choice_bias, const float* scales) {
  return {config.num_experts,
          config.top_k,
          config.num_groups,
          config.top_groups,
          config.scores == ExpertScores::kSoftmax,
          config.norm_topk_prob,
          static_cast<float>(config.weight_scale),
          choice_bias,
          scales,
          config.scores_of_group};
}

}  // namespace

int64_t experts_workspace_bytes(const ExpertsShape& shape, DType dtype) {
  // Tiles are most for the largest number of rows that is cut into small ones; what they take is little.
  const int64_t spare = (shape.max_rows * shape.config.top_k + shape.config.num_experts) * int64_t{sizeof(RowTile)};
  return Workspace(nullptr, shape, shape.max_rows, dtype_bytes(dtype)).bytes + spare;
}

template <class T>
void mix_experts(const GroupedWeights& gate_up, const GroupedWeights& down, const ExpertsConfig& config,
                 const ActivationSpec& spec, const float* router_logits, const float* choice_bias, const float* scales,
                 const T* x, int64_t rows, T* out, void* workspace, cudaStream_t stream,
                 const ExpertAdapters* adapters) {
  LLMB_CHECK(config.num_experts <= kMaxExperts && config.top_k <= kMaxExpertsPerToken);
  LLMB_CHECK(config.num_groups <= kMaxExpertGroups && config.num_experts % config.num_groups == 0);
  LLMB_CHECK(config.choice_bias == (choice_bias != nullptr));
  LLMB_CHECK(config.num_groups == 1 || config.scores_of_group == 1 || config.scores_of_group == 2);
  if (rows == 0) return;
  const ExpertsShape shape{rows,
                           down.out_features,
                           gate_up.out_features,
                           down.in_features,
                           config,
                           gate_up.is_int8() || down.is_int8()};
  const Workspace w(static_cast<uint8_t*>(workspace), shape, rows, sizeof(T));
  const auto pairs = static_cast<int32_t>(rows * config.top_k);
  const int32_t tile_rows = grouped_tile_rows(pairs, config.num_experts);
  const auto num_tiles = static_cast<int32_t>(Workspace::max_tiles(pairs, config.num_experts));
  const dim3 experts(static_cast<unsigned>(config.num_experts)), threads(kThreads);
  const OwnExperts own{gate_up.first_own, gate_up.end_own};
  launch({dim3(static_cast<unsigned>(ceil_div(rows, kWarps))), threads, 0, stream}, route_kernel, router_logits,
         routing_of(config, choice_bias, scales), rows, w.chosen, w.weights);
  launch({experts, threads, 0, stream}, count_kernel, w.chosen, pairs, own, w.counts);
  launch({experts, threads, 0, stream}, place_kernel, w.chosen, pairs, config.top_k, w.counts, config.num_experts,
         own, tile_rows, num_tiles, w.row_of_slot, w.slot_of_pair, w.tiles);
  auto* const wide = static_cast<T*>(w.gate_up);
  auto* const activated = static_cast<T*>(w.activated);
  auto* const y = static_cast<T*>(w.y);
  const ExpertSlots slots{w.chosen, w.slot_of_pair, w.row_of_slot, pairs, config.top_k};
  if (adapters != nullptr) cut_expert_items(*adapters, slots, stream);
  multiply_rows(gate_up, x, rows, w.row_of_slot, w, num_tiles, tile_rows, w.x_int8, w.x_scales, wide, stream);
  if (adapters != nullptr)
    add_expert_lora(*adapters, slots, false, x, w.row_of_slot, gate_up.in_features, wide, gate_up.out_features, stream);
  if (config.weighs_input) {
    const auto chunks = static_cast<unsigned>(ceil_div(gate_up.out_features, kThreads));
    launch({dim3(static_cast<unsigned>(pairs), chunks), threads, 0, stream}, weigh_kernel<T>, wide, w.slot_of_pair,
           w.weights, gate_up.out_features);
  }
  activate(spec, static_cast<const T*>(wide), pairs, down.in_features, activated, stream);
  multiply_rows(down, static_cast<const T*>(activated), pairs, nullptr, w, num_tiles, tile_rows, w.activated_int8,
                w.activated_scales, y, stream);
  if (adapters != nullptr)
    add_expert_lora(*adapters, slots, true, static_cast<const T*>(activated), nullptr, down.in_features, y,
                    down.out_features, stream);
  const auto combine = [&](auto kernel, int width) {
    const auto chunks = static_cast<unsigned>(ceil_div(shape.hidden, int64_t{kThreads} * width));
    launch({dim3(static_cast<unsigned>(rows), chunks), threads, 0, stream}, kernel, y, w.slot_of_pair,
           config.weighs_input ? nullptr : w.weights, config.top_k, shape.hidden, out);
  };
  if (can_pack(shape.hidden, y, out)) combine(combine_kernel<T, kPackWidth>, kPackWidth);
  else combine(combine_kernel<T, 1>, 1);
}

template void mix_experts(const GroupedWeights&, const GroupedWeights&, const ExpertsConfig&, const ActivationSpec&,
                          const float*, const float*, const float*, const float*, int64_t, float*, void*,
                          cudaStream_t, const ExpertAdapters*);
template void mix_experts(const GroupedWeights&, const GroupedWeights&, const ExpertsConfig&, const ActivationSpec&,
                          const float*, const float*, const float*, const __nv_bfloat16*, int64_t, __nv_bfloat16*,
                          void*, cudaStream_t, const ExpertAdapters*);
template void mix_experts(const GroupedWeights&, const GroupedWeights&, const ExpertsConfig&, const ActivationSpec&,
                          const float*, const float*, const float*, const __half*, int64_t, __half*, void*,
                          cudaStream_t, const ExpertAdapters*);

}  // namespace llmb::cuda
