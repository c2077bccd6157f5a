#include "model/weight_files.h"

#include <utility>

#include "model/fp8_weights.h"
#include "model/safetensors.h"

namespace llmb {

struct WeightFiles::Parts {
  ModelConfig config;
  Checkpoint checkpoint;
};

WeightFiles::WeightFiles(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
WeightFiles::WeightFiles(WeightFiles&&) noexcept = default;
WeightFiles::~WeightFiles() = default;

Result<WeightFiles> WeightFiles::open(const std::string& model_path, const ModelConfig& config) {
  Result<Checkpoint> checkpoint = Checkpoint::open(model_path);
  if (!checkpoint.ok()) return checkpoint.status();
  return WeightFiles(std::make_unique<const Parts>(Parts{config, std::move(*checkpoint)}));
}

std::unique_ptr<WeightSource> WeightFiles::make_source(ThreadPool& pool) const {
  return std::make_unique<Fp8Source>(parts_->checkpoint, parts_->config, pool);
}

}  // namespace llmb
