#include "model/quantization_config.h"

#include <nlohmann/json.hpp>
#include <string>

namespace llmb {

namespace {

using nlohmann::json;

constexpr const char* kSupported =
    "; supported: fp8 (E4M3), compressed-tensors float-quantized with 8 bits, mxfp4 of gpt_oss";

Status refused(const std::string& what) {
  return unsupported("quantization_config: " + what + " is not supported" + kSupported);
}

// [rows, columns] that share a scale.
void read_block_size(ConfigFields& f, const char* name, ModelConfig* config) {
  const json* size = f.find(name);
  if (size == nullptr) return;
  const auto is_size = [](const json& v) {
    return v.is_number_integer() && v.get<int64_t>() >= 1 && v.get<int64_t>() <= 65536;
  };
  if (!size->is_array() || size->size() != 2 || !is_size((*size)[0]) || !is_size((*size)[1]))
    return f.fail(data_loss(std::string("\"") + name + "\" " + brief(*size) + " is not a pair of sizes"));
  const auto rows = (*size)[0].get<int32_t>(), cols = (*size)[1].get<int32_t>();
  if (config->fp8_block_rows != 0 && (config->fp8_block_rows != rows || config->fp8_block_cols != cols))
    return f.fail(unsupported(std::string("blocks of several sizes in \"") + name + "\" are not supported"));
  config->fp8_block_rows = rows;
  config->fp8_block_cols = cols;
}

void read_fp8(ConfigFields& f, ModelConfig* config) {
  const std::string format = f.text("fmt", "e4m3");
  if (format != "e4m3") f.fail(refused("fp8 format \"" + format.substr(0, 60) + "\""));
  read_block_size(f, "weight_block_size", config);
}

// One of "config_groups".
void read_group(const json& group, ConfigFields& parent, ModelConfig* config) {
  if (!group.is_object()) return parent.fail(data_loss("a group of \"config_groups\" is not an object"));
  ConfigFields f(group);
  const std::string format = f.text("format", "float-quantized");
  if (format != "float-quantized") parent.fail(refused("compressed-tensors format \"" + format.substr(0, 60) + "\""));
  if (const json* weights = f.find("weights"); weights != nullptr && weights->is_object()) {
    ConfigFields w(*weights);
    const std::string type = w.text("type", "int");
    const int64_t bits = w.integer("num_bits", 8, 1, 64);
    if (type != "float" || bits != 8)
      parent.fail(refused("weights of type " + type.substr(0, 60) + " with " + std::to_string(bits) + " bits"));
    const std::string strategy = w.text("strategy", "tensor");
    if (strategy != "tensor" && strategy != "channel" && strategy != "block")
      parent.fail(refused("strategy \"" + strategy.substr(0, 60) + "\""));
    if (!w.boolean("symmetric", true)) parent.fail(refused("weights that are not symmetric"));
    read_block_size(w, "block_structure", config);
    parent.fail(w.status());
  } else {
    parent.fail(data_loss("a group of \"config_groups\" has no \"weights\""));
  }
  parent.fail(f.status());
}

void read_compressed_tensors(ConfigFields& f, ModelConfig* config) {
  const std::string format = f.text("format", "dense");
  if (format != "float-quantized") f.fail(refused("compressed-tensors format \"" + format.substr(0, 60) + "\""));
  const json* groups = f.find("config_groups");
  if (groups == nullptr || !groups->is_object()) return f.fail(data_loss("compressed-tensors needs \"config_groups\""));
  for (const auto& [name, group] : groups->items()) read_group(group, f, config);
  if (const json* sparsity = f.find("sparsity_config"); sparsity != nullptr && sparsity->is_object()) {
    ConfigFields s(*sparsity);
    if (s.has("format") && s.text("format", "dense") != "dense")
      f.fail(refused("sparsity format \"" + s.text("format", "").substr(0, 60) + "\""));
  }
}

}  // namespace

void read_quantization(ConfigFields& fields, ModelConfig* config) {
  const json* object = fields.find("quantization_config");
  if (object == nullptr) object = fields.find("compression_config");  // what compressed-tensors wrote at first
  if (object == nullptr) return;
  if (!object->is_object()) return fields.fail(data_loss("\"quantization_config\" is not an object"));
  ConfigFields f(*object);
  const std::string method = f.text("quant_method", "");
  if (method == "fp8") read_fp8(f, config);
  else if (method == "compressed-tensors") read_compressed_tensors(f, config);
  else if (method == "mxfp4" && config->model_type == "gpt_oss") return;  // the checkpoint's tensors say the rest
  else f.fail(refused("quant_method \"" + method.substr(0, 60) + "\""));
  fields.fail(f.status());
}

}  // namespace llmb
