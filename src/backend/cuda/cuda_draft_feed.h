// DraftFeed between two models on one GPU: tokens are copied in the stream that both put their steps into.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "backend/cuda/cuda_ops.h"
#include "backend/draft_feed.h"
#include "kernels/cuda/memory.h"

namespace llmb {

// Plans that a draft model's backend holds, which wait for nobody: as many as mostly are drafted for two steps.
inline constexpr int32_t kPlansOfDraftModel = 12;
// The same of a model that drafts for itself, by layers, or by heads, which guess all places in one plan; 0: of no such.
inline int32_t num_own_plans(const ModelConfig& config, const LoadOptions& options) {
  if (options.drafting_layers > 0 || config.mtp.is_used) return kPlansOfDraftModel;
  return options.heads_dir.empty() ? 0 : 2;
}

class CudaDraftFeed final : public DraftFeed {
 public:
  // `index`: of the GPU. Both outlive it; the draft model's ops come when it loads.
  CudaDraftFeed(int index, const std::optional<CudaOps>& target, const std::optional<CudaOps>& draft,
                std::shared_ptr<const cuda::Stream> stream)
      : index_(index), target_(target), draft_(draft), stream_(std::move(stream)) {}

  int32_t num_slots() const override { return target_->num_drafted(); }
  Status keep(int32_t first, int32_t count) override;
  Status keep_best(int32_t first, int32_t count, int32_t num_best) override;

 private:
  const int index_;
  const std::optional<CudaOps>& target_;
  const std::optional<CudaOps>& draft_;
  const std::shared_ptr<const cuda::Stream> stream_;
};

}  // namespace llmb
