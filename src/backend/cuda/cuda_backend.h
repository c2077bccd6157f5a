// The backend that computes on an NVIDIA GPU. Results are deterministic in the sense of
// LoadOptions::Cuda::deterministic.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/split_choice.h"
#include "backend/ranks/rank_context.h"

namespace llmb {

// `index`: of the GPU, as CUDA counts them. ranks: what this one shares with others that compute the same model, each
// on a GPU of its own; null: this one computes all of it. splits: which steps are run in two parts.
std::unique_ptr<Backend> make_cuda_backend(int index, std::shared_ptr<RankContext> ranks = nullptr,
                                           SplitMode splits = SplitMode::kNever);

}  // namespace llmb
