// The files that hold a model's weights, opened and checked, and the tensors in them as the loader asks for them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/thread_pool.h"
#include "core/model_config.h"
#include "model/weight_source.h"

namespace llmb {

// Immutable once opened.
class WeightFiles {
 public:
  // Only headers are read. Every tensor that the model needs is there, in its shape and in a format that can be read.
  // kNotFound, kUnsupported, kDataLoss.
  static Result<WeightFiles> open(const std::string& model_path, const ModelConfig& config);
  // The same of a folder that holds a part of a model: nobody has looked which tensors there are.
  static Result<WeightFiles> open_part(const std::string& path, const ModelConfig& config);
  WeightFiles(WeightFiles&&) noexcept;
  ~WeightFiles();

  // Text that differs between files that hold different weights: sizes, times, inodes and samples of their content, and
  // of config.json; where times cannot be trusted (ChangeTimes::kUnknown), hashes of all of it. nullopt where a file
  // has changed so recently that it could change again without a new time. kNotFound, kIoError.
  Result<std::optional<std::string>> identity() const;

  // kDataLoss: a file was cut short, or its disk failed, while it was read, and zeros were read instead. To be asked
  // when all is read.
  Status still_readable() const;

  // fp32, fp16 and bf16 as they are; what is stored in fewer bits is dequantised to the config's dtype, on `pool`,
  // unless it may come in blocks. With kShapes views have no data, and nothing is read. The files and the pool outlive
  // the source.
  std::unique_ptr<WeightSource> make_source(ThreadPool& pool, WeightAccess access = WeightAccess::kValues,
                                            WeightForm form = WeightForm::kNumbers) const;

  bool is_gguf() const;
  // Whether the matrices of layers can come in blocks.
  bool stays_packed() const;
  // All tensors, as they are stored.
  int64_t stored_bytes() const;

 private:
  struct Parts;
  explicit WeightFiles(std::unique_ptr<const Parts> parts);
  static Result<WeightFiles> open_files(const std::string& model_path, const ModelConfig& config);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace llmb
