#include "backend/cuda/expanded_prefill.h"

#include "core/types.h"
#include "kernels/cuda/expand_latents.h"
#include "kernels/cuda/tuning.h"

namespace llmb {

PromptWork prompt_work(const LatentConfig& latent, const PromptRows& prompt) {
  const double rows = prompt.num_rows, positions = prompt.context_len;
  const double pairs = rows * (positions - (rows - 1) / 2);
  const double matrices =
      cuda::tuning::kExpansionCost * static_cast<double>(latent.rank) * (latent.key_dim + latent.value_dim);
  const double of_latents = cuda::tuning::kAbsorbedPairCost * (2.0 * latent.rank + latent.rope_dim);
  const double of_heads = latent.query_dim() + latent.value_dim;
  return {rows * matrices + pairs * of_latents, positions * matrices + pairs * of_heads};
}

ExpandedSize choose_expanded(const LatentConfig& latent, int32_t num_heads, int64_t pool_blocks,
                             std::span<const PromptRows> candidates, std::vector<uint8_t>* is_expanded) {
  is_expanded->assign(candidates.size(), 0);
  ExpandedSize size;
  const auto heads_for = [&](int64_t num_blocks) {
    int32_t heads = num_heads;
    while (heads > 0 && (num_heads % heads != 0 || heads * num_blocks > pool_blocks)) --heads;
    return heads;
  };
  for (size_t i = 0; i < candidates.size(); ++i) {
    const PromptRows& prompt = candidates[i];
    if (prompt.num_rows < cuda::tuning::kMinExpandedRows) continue;
    const PromptWork work = prompt_work(latent, prompt);
    if (!(work.expanded < work.absorbed)) continue;
    const int64_t num_blocks = size.num_blocks + ceil_div(int64_t{prompt.context_len}, int64_t{cuda::kExpandedBlock});
    const int32_t heads = heads_for(num_blocks);
    if (heads == 0 || num_heads / heads > cuda::tuning::kMaxHeadGroups) continue;
    (*is_expanded)[i] = 1;
    ++size.num_seqs;
    size.num_rows += prompt.num_rows;
    size.num_blocks = static_cast<int32_t>(num_blocks);
    size.num_heads = heads;
  }
  return size;
}

}  // namespace llmb
