// CudaOps: latent attention (LatentConfig), of rows over the latents themselves and of prompts over keys and values
// that these are expanded to.
#include <algorithm>
#include <numeric>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_weights.h"
#include "kernels/cuda/expand_latents.h"
#include "kernels/cuda/head_linear.h"
#include "kernels/cuda/tuning.h"

namespace llmb {

namespace {

std::vector<const void*> addresses_of(HeadWeights heads) {
  std::vector<const void*> addresses;
  for (const auto& head : heads) addresses.push_back(view(*head).weight);
  return addresses;
}

int64_t row_bytes(const LatentConfig& l, DType dtype) {
  return int64_t{l.query_dim() + l.value_dim} * dtype_bytes(dtype);
}

}  // namespace

AttentionKinds with_expanded_kind(AttentionKinds kinds, const ModelConfig& config, int32_t num_sms) {
  cuda::AttentionShape shape = kinds.kinds[0].shape;
  if (!config.has_latent() || shape.deterministic) return kinds;
  LLMB_CHECK(kinds.kinds.size() < cuda::kMaxWorkLists);
  const bool is_scalar = cuda::attention_tiling(shape).scalar;
  shape.num_kv_heads = shape.num_heads;
  shape.head_dim = config.latent.query_dim();
  shape.latent_dim = 0, shape.block_stride = 0;
  shape.joined_value_dim = config.latent.value_dim;
  shape.block_size = cuda::kExpandedBlock;
  const cuda::AttentionTiling tiling = cuda::attention_tiling(shape);
  if (tiling.scalar && !is_scalar) return kinds;
  kinds.kinds.push_back({shape, num_sms * tiling.ctas_per_sm});
  return kinds;
}

int64_t num_expanded_blocks(const ModelConfig& config, const AttentionKinds& kinds, const CudaOpsOptions& options) {
  if (kinds.kinds.back().shape.joined_value_dim == 0) return 0;
  if (options.limits.max_num_tokens < cuda::tuning::kMinExpandedRows) return 0;
  const int64_t block_bytes = cuda::kExpandedBlock * row_bytes(config.latent, options.dtype);
  const int64_t most = ceil_div(int64_t{options.max_position}, int64_t{cuda::kExpandedBlock}) *
                       options.limits.max_num_seqs * config.num_attention_heads;
  return std::min(cuda::tuning::kMaxExpandedBytes / block_bytes, most);
}

void CudaOps::allocate_expansion() {
  const int64_t num_blocks = num_expanded_blocks(config_, attention_, options_);
  if (num_blocks == 0) return;
  const LatentConfig& l = config_.latent;
  expanded_ = cuda::DeviceMemory(num_blocks * cuda::kExpandedBlock * row_bytes(l, options_.dtype));
  const int64_t key_numbers = int64_t{config_.num_attention_heads} * l.key_dim * l.rank;
  expansion_matrices_ = cuda::DeviceMemory(key_numbers * dtype_bytes(options_.dtype));
  std::vector<BlockId> ids(static_cast<size_t>(num_blocks));
  std::iota(ids.begin(), ids.end(), 0);
  expanded_ids_ = upload_array(ids, stream_);
}

template <typename Body>
void CudaOps::for_absorbed(int64_t rows, const Body& body) const {
  if (step_.shape.expanded.num_heads == 0) return body(0, rows);
  for (const auto& [begin, end] : step_.absorbed) body(begin, end - begin);
}

void CudaOps::join_latents(HeadWeights heads, Rows queries, Rows latents, int64_t rows, Rows qkv) {
  const LatentConfig& l = config_.latent;
  const int32_t num_heads = config_.num_attention_heads, dim = config_.head_dim;
  const std::vector<const void*> addresses = addresses_of(heads);
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::join_latents({num_heads, dim, l.rope_dim, l.query_dim()}, data<const T>(queries), data<const T>(latents), rows,
                       data<T>(qkv), stream_);
    for_absorbed(rows, [&](int64_t first, int64_t count) {
      cuda::head_linear({addresses, l.rank, l.key_dim}, data<const T>(queries.from(first)),
                        {queries.width, 0, l.query_dim()}, count, data<T>(qkv.from(first)),
                        {qkv.width, l.rope_dim, dim}, stream_);
    });
  });
}

void CudaOps::expand_values(HeadWeights heads, Rows gathered, int64_t rows, Rows out) {
  const LatentConfig& l = config_.latent;
  const std::vector<const void*> addresses = addresses_of(heads);
  with_type(options_.dtype, [&]<typename T>(T) {
    for_absorbed(rows, [&](int64_t first, int64_t count) {
      cuda::head_linear({addresses, l.value_dim, l.rank}, data<const T>(gathered.from(first)),
                        {gathered.width, 0, l.rank}, count, data<T>(out.from(first)), {out.width, 0, l.value_dim},
                        stream_);
    });
  });
}

// Heads take turns where the pool does not hold all of them.
void CudaOps::expanded_attention(int32_t layer, HeadWeights key_heads, HeadWeights value_heads, Rows queries, Rows qkv,
                                 Rows out) {
  const ExpandedSize& size = step_.shape.expanded;
  if (size.num_heads == 0) return;
  const LatentConfig& l = config_.latent;
  const int32_t num_heads = config_.num_attention_heads;
  const StepArrays::AttentionList& list = step_.lists[0][attention_.kinds.size() - 1];
  cuda::AttentionParams params{attention_.kinds.back().shape, options_.score_scales[static_cast<size_t>(layer)]};
  params.shape.num_heads = params.shape.num_kv_heads = size.num_heads;
  cuda::AttentionWork work{};
  work.num_ctas = list.num_ctas, work.items = list.items, work.cta_start = list.cta_start;
  work.partials = attention_partials_.data<float>(), work.partial_stats = attention_partial_stats_.data<float>();
  work.counters = attention_counters_.data<int32_t>();
  work.num_blocks = size.num_blocks;
  const int64_t stride = seen_block_stride();
  const cuda::ExpandedShape shape{l.rank, l.rope_dim, l.key_dim, l.value_dim, options_.block_size,
                                  stride > 0 ? stride : int64_t{options_.block_size} * config_.head_dim,
                                  groups_.num_groups()};
  const std::vector<const void*> keys = addresses_of(key_heads), values = addresses_of(value_heads);
  const Rows x = from_step_begin(queries), y = from_step_begin(out);
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::take_rotated(shape, num_heads, data<const T>(qkv), qkv.width, step_.shape.num_own(), data<T>(queries),
                       stream_);
    for (int32_t first = 0; first < num_heads; first += size.num_heads) {
      const auto part = [&](const std::vector<const void*>& heads) {
        return std::span(heads).subspan(static_cast<size_t>(first), static_cast<size_t>(size.num_heads));
      };
      cuda::expand_latents<T>(shape, part(keys), part(values), seen_kv<T>(layer, false),
                              step_.block_ids + groups_.group(layer), step_.expanded_blocks, size.num_blocks,
                              expansion_matrices_.data<T>(), expanded_.data<T>(), stream_);
      cuda::expanded_attention<T>(data<const T>(x) + int64_t{first} * l.query_dim(), x.width,
                                  data<T>(y) + int64_t{first} * l.value_dim, y.width, expanded_.data<const T>(),
                                  expanded_ids_.data<const BlockId>(), work, params, stream_);
    }
  });
}

}  // namespace llmb
