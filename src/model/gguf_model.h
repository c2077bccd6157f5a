// A GGUF file as a Hugging Face model: its values as a config.json, its tensors under the names that the loader asks
// for, and what llama.cpp's converter did to them undone.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "core/block_format.h"
#include "core/model_config.h"
#include "core/pooling.h"
#include "formats/gguf_file.h"
#include "model/config_loader.h"
#include "model/weight_source.h"

namespace llmb {

// A model is a GGUF file where its path is that of a file, not of a directory.
bool is_gguf_path(const std::string& model_path);

// Properties of the tensors that follow from general.architecture.
struct GgufArchitecture {
  const char* name;
  const char* model_type;        // of config.json
  bool is_rope_interleaved;      // rows of q and k stand in the order of rotated pairs, not of halves
  bool has_norms_plus_one;       // norm weights have the 1 added that the model adds to them
  bool has_post_attention_norm;  // post_attention_layernorm is called so here, and not ffn_norm
};

// kUnsupported names the architecture.
Result<GgufArchitecture> gguf_architecture(const GgufFile& file);

// The equivalent config.json. Sizes are checked by parse_model_config.
Result<nlohmann::json> gguf_config_json(const GgufFile& file);

Result<ModelConfig> load_gguf_config(const std::string& path);
Result<GenerationConfig> load_gguf_generation_config(const std::string& path);

// How states become one vector, as "pooling_type" and the file's layers behind it say; or scores of a head's labels.
Result<Pooling> load_gguf_pooling(const std::string& path, const ModelConfig& config);
Result<Pooling> load_gguf_classifier(const std::string& path, const ModelConfig& config);

// The file's name of a tensor that has one to itself: "model.layers.7.mlp.up_proj.weight" is "blk.7.ffn_up.weight".
std::optional<std::string> gguf_tensor_name(const std::string& name, const GgufArchitecture& architecture);
// Where row `row` of q or k stands in a file whose rope is interleaved: the numbers of a rotated pair are neighbours
// there, which stand half of a head's rotated part apart.
int64_t gguf_interleaved_row(int64_t row, const ModelConfig& config);

// Every tensor has a type that can be dequantised; the first that has not is named.
Status check_gguf_tensors(const GgufFile& file);

// F32, F16 and BF16 tensors as they are, MXFP4 as bf16, which holds it exactly, all others as fp32; or matrices in
// their blocks. The file and the pool outlive the source.
class GgufSource final : public WeightSource {
 public:
  // REQUIRES: gguf_architecture(file) is ok, and so is check_gguf_tensors(file).
  GgufSource(const GgufFile& file, const ModelConfig& config, ThreadPool& pool,
             WeightAccess access = WeightAccess::kValues, WeightForm form = WeightForm::kNumbers);
  bool has(const std::string& name) const override;
  Result<TensorView> tensor(const std::string& name, std::span<const int64_t> shape) override;
  Result<std::optional<TensorView>> outline(const std::string& name, std::span<const int64_t> shape) override;
  Result<TensorView> part(const std::string& name, std::span<const int64_t> shape, const MatrixPart& part) override;
  bool has_common_layout() const override { return true; }
  void release() override {
    buffers_.release();
    reads_.release();
  }

 private:
  struct Rows;
  Result<Rows> find_rows(const std::string& name, std::span<const int64_t> shape) const;
  Status check_scales(BlockFormat format, const Rows& r, const MatrixPart& part);
  void copy_row(const Rows& r, int64_t row, const MatrixPart& part, bool as_stored, DType dtype, uint8_t* to) const;
  Result<TensorView> make(const Rows& r, const MatrixPart& part);

  const GgufFile& file_;
  const ModelConfig& config_;
  const GgufArchitecture architecture_;
  ThreadPool& pool_;
  const WeightAccess access_;
  const WeightForm form_;
  WeightBuffers buffers_;
  MappedReads reads_;
};

}  // namespace llmb
