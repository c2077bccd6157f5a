#include "backend/cuda/attention_kinds.h"

#include <algorithm>

namespace llmb {

AttentionKinds attention_kinds(const ModelConfig& config, const cuda::AttentionShape& like, int32_t num_sms,
                               int32_t max_position) {
  AttentionKinds all;
  const auto kind_of = [&](int32_t num_kv_heads, int32_t head_dim, int32_t chunk) {
    if (chunk >= max_position) chunk = 0;
    const auto is_it = [&](const AttentionKind& kind) {
      return kind.shape.num_kv_heads == num_kv_heads && kind.shape.head_dim == head_dim && kind.shape.chunk == chunk;
    };
    const auto found = std::find_if(all.kinds.begin(), all.kinds.end(), is_it);
    if (found == all.kinds.end()) {
      cuda::AttentionShape shape = like;
      shape.num_heads = config.num_attention_heads;
      shape.num_kv_heads = num_kv_heads;
      shape.head_dim = head_dim;
      shape.chunk = chunk;
      all.kinds.push_back({shape, num_sms * cuda::attention_tiling(shape).ctas_per_sm});
      return static_cast<int32_t>(all.kinds.size()) - 1;
    }
    return static_cast<int32_t>(found - all.kinds.begin());
  };
  for (int32_t i = 0; i < config.num_used_layers(); ++i) {
    const LayerConfig layer = config.layer(i);
    const bool attends = layer.has_mixer && !layer.has_state;
    all.of_layers.push_back(attends ? kind_of(config.num_kv_heads_of(i), config.head_dim_of(i), layer.chunk) : 0);
  }
  if (all.kinds.empty()) kind_of(config.num_key_value_heads, config.head_dim, 0);
  return all;
}

}  // namespace llmb
