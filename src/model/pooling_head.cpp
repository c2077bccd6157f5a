#include "model/pooling_head.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "formats/safetensors.h"

namespace llmb {

namespace {

// The name among "a|b" that the model has.
std::string found_name(const std::string& names, const WeightSource& model) {
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('|', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    if (model.has(name + ".weight")) return name;
    begin = end + 1;
  }
  return names.substr(0, names.find('|'));
}

}  // namespace

Result<PoolingHead::Layer> PoolingHead::load_layer(const PoolingLayer& layer, WeightSource& model,
                                                   WeightMaker& maker) {
  std::optional<Checkpoint> file;
  if (!layer.file.empty()) {
    const std::filesystem::path path(layer.file);
    LLMB_ASSIGN_OR_RETURN(file, Checkpoint::open_file(path.parent_path().string(), path.filename().string()));
  }
  const auto tensor = [&](const std::string& name, std::vector<int64_t> shape) {
    auto found = file ? file->tensor(name, shape) : model.tensor(name, shape);
    return found.ok() || !file ? std::move(found) : Result<TensorView>(found.status().with_context(layer.file));
  };
  const std::string name = file ? layer.name : found_name(layer.name, model);
  Layer out;
  out.width = layer.out_features;
  out.activation = layer.activation;
  LLMB_ASSIGN_OR_RETURN(const TensorView weight, tensor(name + ".weight", {layer.out_features, layer.in_features}));
  std::vector<TensorView> biases;
  if (layer.has_bias) {
    LLMB_ASSIGN_OR_RETURN(biases.emplace_back(), tensor(name + ".bias", {layer.out_features}));
  }
  if (layer.rows.empty()) {
    out.weight = maker.make_linear({&weight, 1}, biases, WeightRole::kSmall);
  } else {
    std::vector<TensorView> rows;
    for (const int32_t row : layer.rows) {
      rows.push_back(weight);
      rows.back().data = static_cast<const char*>(weight.data) + row * weight.row_bytes();
      rows.back().rows = 1;
    }
    out.width = static_cast<int64_t>(rows.size());
    out.weight = maker.make_linear(rows, {}, WeightRole::kSmall);
  }
  if (!layer.norm.empty()) {
    LLMB_ASSIGN_OR_RETURN(const TensorView norm, tensor(layer.norm + ".weight", {layer.out_features}));
    out.norm.weight = maker.make_vector(norm);
    if (layer.norm_has_bias) {
      LLMB_ASSIGN_OR_RETURN(const TensorView bias, tensor(layer.norm + ".bias", {layer.out_features}));
      out.norm.bias = maker.make_vector(bias);
    }
  }
  model.release();
  for (const MappedFile& mapped : file ? std::span(file->files()) : std::span<const MappedFile>())
    LLMB_RETURN_IF_ERROR(mapped.still_readable());
  return out;
}

Result<PoolingHead> PoolingHead::load(const Pooling& pooling, WeightSource& model, WeightMaker& maker) {
  PoolingHead head;
  head.kind_ = pooling.kind;
  for (const PoolingLayer& layer : pooling.layers) {
    LLMB_ASSIGN_OR_RETURN(head.layers_.emplace_back(), load_layer(layer, model, maker));
  }
  return head;
}

void PoolingHead::allocate(const ModelConfig& config, Ops& ops, int64_t max_rows) {
  norm_eps_ = static_cast<float>(config.norm_eps);
  const DType dtype = ops.activation_dtype();
  if (kind_ != PoolingKind::kLast)
    pooled_ = ops.allocate(max_rows, config.hidden_size, layers_.empty() ? DType::kF32 : dtype);
  for (Layer& layer : layers_) {
    const bool is_given = &layer == &layers_.back() && !layer.activation && !layer.norm.weight;
    layer.product = ops.allocate(max_rows, layer.width, is_given ? DType::kF32 : dtype);
    if (layer.activation) layer.out = ops.allocate(max_rows, layer.width, dtype);
  }
}

void PoolingHead::forward(Rows hidden, int64_t num_samples, Ops& ops) {
  Rows x = hidden;
  if (pooled_) {
    x = pooled_->rows();
    ops.pool_rows(hidden, kind_, num_samples, x);
  }
  for (const Layer& layer : layers_) {
    ops.linear(*layer.weight, x, num_samples, layer.product->rows());
    x = layer.product->rows();
    if (layer.activation) {
      ops.activate({*layer.activation, /*gated=*/false}, x, num_samples, layer.out->rows());
      x = layer.out->rows();
    }
    if (layer.norm.weight)
      ops.layer_norm_groups(x, 0, 1, *layer.norm.weight, layer.norm.bias.get(), norm_eps_, num_samples);
  }
  ops.give_vectors(x, num_samples);
}

}  // namespace llmb
