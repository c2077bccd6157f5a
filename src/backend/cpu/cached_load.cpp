#include "backend/cpu/cached_load.h"

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file_ops.h"
#include "base/log.h"

namespace llmb {

namespace {

// Two makers stand between load_model_weights and CpuOps: one notes the bytes of what is made, the other makes the same
// of them. Both rely on load_model_weights asking in the same order.
class NotingMaker final : public WeightMaker {
 public:
  explicit NotingMaker(CpuOps& ops) : ops_(ops) {}
  std::unique_ptr<LinearWeight> make_linear(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                            WeightRole role) override {
    return noted(ops_.make_linear(parts, biases, role));
  }
  bool rounds_rows_of_tables() const override { return ops_.rounds_rows_of_tables(); }
  std::unique_ptr<LinearWeight> make_table_columns(std::span<const TensorView> parts, int64_t first,
                                                   int64_t count) override {
    return noted(ops_.make_table_columns(parts, first, count));
  }
  std::unique_ptr<ExpertsWeight> make_experts(std::vector<std::unique_ptr<LinearWeight>> gate_up,
                                              std::vector<std::unique_ptr<LinearWeight>> down) override {
    return ops_.make_experts(std::move(gate_up), std::move(down));
  }
  std::unique_ptr<DeviceBuffer> make_vector(const TensorView& values) override {
    auto buffer = ops_.make_vector(values);
    sections_.emplace_back(static_cast<const uint8_t*>(buffer->rows().data),
                           static_cast<size_t>(values.cols) * sizeof(float));
    return buffer;
  }

  // In order; valid as long as the weights.
  const std::vector<std::span<const uint8_t>>& sections() const { return sections_; }

 private:
  std::unique_ptr<LinearWeight> noted(std::unique_ptr<LinearWeight> weight) {
    for (const std::span<const uint8_t> bytes : CpuOps::packed_bytes(*weight))
      if (!bytes.empty()) sections_.push_back(bytes);
    return weight;
  }

  CpuOps& ops_;
  std::vector<std::span<const uint8_t>> sections_;
};

// Its results may only be used if weights.is_used_up() in the end.
class CachedMaker final : public WeightMaker {
 public:
  CachedMaker(CpuOps& ops, CachedWeights& weights) : ops_(ops), weights_(weights) {}
  std::unique_ptr<LinearWeight> make_linear(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                            WeightRole role) override {
    return ops_.make_linear_from(parts, biases, role, [this](int64_t bytes) {
      return cpu::AlignedBuffer(weights_.memory(), weights_.take(bytes), bytes);
    });
  }
  std::unique_ptr<ExpertsWeight> make_experts(std::vector<std::unique_ptr<LinearWeight>> gate_up,
                                              std::vector<std::unique_ptr<LinearWeight>> down) override {
    return ops_.make_experts(std::move(gate_up), std::move(down));
  }
  std::unique_ptr<DeviceBuffer> make_vector(const TensorView& values) override {
    auto buffer = ops_.allocate(1, values.cols, DType::kF32);
    const int64_t bytes = values.cols * int64_t{sizeof(float)};
    if (const uint8_t* from = weights_.take(bytes); from != nullptr)
      std::memcpy(buffer->rows().data, from, static_cast<size_t>(bytes));
    return buffer;
  }

 private:
  CpuOps& ops_;
  CachedWeights& weights_;
};

// All that a rank's weights depend on beside the model: which of its rows, columns, experts and layers they are.
std::string share_text(const ModelShare& share) {
  std::string text = "a rank's part, version " + std::to_string(kTensorPartsVersion);
  const auto add = [&](const Range& range) {
    text += " " + std::to_string(range.begin) + "-" + std::to_string(range.end);
  };
  for (const Range& range : {share.q_heads, share.kv_heads, share.mlp, share.shared_mlp, share.experts, share.vocab,
                             share.layers, share.state_keys, share.state_values})
    add(range);
  for (const ModelShare::OfLayer& layer : share.of_layers) add(layer.kv_heads), add(layer.mlp);
  for (const bool flag : {share.adds_biases, share.embeds, share.draws}) text += flag ? " yes" : " no";
  return text + "\n";
}

// nullopt: there is no file that can be used.
std::optional<CachedLoad> take_weights(const std::string& path, const std::string& key, const ModelConfig& config,
                                       const WeightFiles& files, WeightForm form, CpuOps& ops, ThreadPool& pool,
                                       const ModelShare* share) {
  Result<CachedWeights> cached = CachedWeights::open(path, key, pool);
  if (!cached.ok()) {
    if (cached.status().code() != StatusCode::kNotFound)
      log_warning("weight cache: " + cached.status().message() + "; packing anew");
    return std::nullopt;
  }
  CachedMaker maker(ops, *cached);
  const auto shapes = files.make_source(pool, WeightAccess::kShapes, form);
  Result<ModelWeights> weights = load_model_weights(config, *shapes, maker, share);
  if (weights.ok() && cached->is_used_up()) return CachedLoad{std::move(*weights), std::move(*cached)};
  log_warning("weight cache: " + path + ": does not fit the model; packing anew");
  return std::nullopt;
}

}  // namespace

Result<CachedLoad> load_model_weights_cached(const ModelConfig& config, const WeightFiles& files,
                                             const LoadOptions& options, CpuOps& ops, ThreadPool& pool,
                                             const ModelShare* share, const RankPart* part) {
  LLMB_ASSIGN_OR_RETURN(const std::optional<std::string> identity, files.identity());
  const WeightForm form = weight_form(options);
  const auto source = files.make_source(pool, WeightAccess::kValues, form);
  if (!identity) {
    log_warning("weight cache: not used, as the model's files have changed within the last seconds");
    LLMB_ASSIGN_OR_RETURN(ModelWeights weights, load_model_weights(config, *source, ops, share));
    return CachedLoad{std::move(weights), std::nullopt};
  }
  std::string key = "quantization ";
  key.append(quantization_name(options.cpu.quantization)).append(form == WeightForm::kBlocks ? ", blocks\n" : "\n");
  if (config.mtp.is_used && !config.mtp.is_apart()) key += "with the layer behind the last one\n";
  if (share != nullptr) key += share_text(*share);
  key.append(*identity);
  const std::string path =
      weight_cache_path(options.cpu.weight_cache_dir, options.model_dir, options.cpu.quantization, part);
  if (std::optional<CachedLoad> load = take_weights(path, key, config, files, form, ops, pool, share))
    return std::move(*load);
  NotingMaker maker(ops);
  LLMB_ASSIGN_OR_RETURN(ModelWeights weights, load_model_weights(config, *source, maker, share));
  LLMB_RETURN_IF_ERROR(files.still_readable());
  // Where times tell nothing, the content is looked at once more: something else may have been packed.
  const Result<std::optional<std::string>> identity_now = files.identity();
  Status written = data_loss("the model's files have changed meanwhile");
  if (identity_now.ok() && *identity_now == identity)
    written = write_weight_cache(path, key, maker.sections(), real_file_ops());
  if (!written.ok()) log_warning("weight cache: not written: " + written.message());
  return CachedLoad{std::move(weights), std::nullopt};
}

}  // namespace llmb
