#include "model/weight_files.h"

#include <utility>
#include <variant>

#include "model/fp8_weights.h"
#include "model/gguf_model.h"
#include "model/model_weights.h"
#include "model/safetensors.h"

namespace llmb {

struct WeightFiles::Parts {
  ModelConfig config;
  std::variant<Checkpoint, GgufFile> files;
};

WeightFiles::WeightFiles(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
WeightFiles::WeightFiles(WeightFiles&&) noexcept = default;
WeightFiles::~WeightFiles() = default;

Result<WeightFiles> WeightFiles::open(const std::string& model_path, const ModelConfig& config) {
  Result<WeightFiles> files = open_files(model_path, config);
  if (!files.ok()) return files;
  ThreadPool pool(1);
  const Status status = check_model_weights(config, *files->make_source(pool, WeightAccess::kShapes));
  if (!status.ok()) return status.with_context(model_path);
  return files;
}

Result<WeightFiles> WeightFiles::open_files(const std::string& model_path, const ModelConfig& config) {
  if (is_gguf_path(model_path)) {
    Result<GgufFile> file = GgufFile::open(model_path);
    if (!file.ok()) return file.status();
    Status status = gguf_architecture(*file).status();
    if (status.ok()) status = check_gguf_tensors(*file);
    if (!status.ok()) return status.with_context(model_path);
    return WeightFiles(std::make_unique<const Parts>(Parts{config, std::move(*file)}));
  }
  Result<Checkpoint> checkpoint = Checkpoint::open(model_path);
  if (!checkpoint.ok()) return checkpoint.status();
  return WeightFiles(std::make_unique<const Parts>(Parts{config, std::move(*checkpoint)}));
}

std::unique_ptr<WeightSource> WeightFiles::make_source(ThreadPool& pool, WeightAccess access) const {
  if (const auto* file = std::get_if<GgufFile>(&parts_->files))
    return std::make_unique<GgufSource>(*file, parts_->config, pool, access);
  return std::make_unique<Fp8Source>(std::get<Checkpoint>(parts_->files), parts_->config, pool, access);
}

}  // namespace llmb
