#include "model/quantization_config.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/whole_file.h"

namespace llmb {

namespace {

using nlohmann::json;

constexpr const char* kSupported =
    "; supported: fp8 (E4M3), compressed-tensors (float-quantized and int-quantized with 8 bits, pack-quantized with 4 "
    "or 8, nvfp4-pack-quantized; numbers in sparse-24-bitmask), gptq (4 or 8 bits), awq (4 bits, gemm), bitsandbytes, "
    "mxfp4 of gpt_oss";

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

// How many columns share a scale; 0: all.
int64_t read_group_size(ConfigFields& f, int64_t fallback) {
  const int64_t size = f.integer("group_size", fallback, -1, 1 << 20);
  if (size == 0) f.fail(data_loss("\"group_size\" 0: a group has at least one column, or -1 for all"));
  return size < 0 ? 0 : size;
}

// Integers of few bits in the "weights" of a group.
StoredQuantization read_ints(ConfigFields& w, const std::string& format, int64_t bits) {
  StoredQuantization stored;
  stored.method = format == "pack-quantized" ? StoredMethod::kPackedInts : StoredMethod::kInts;
  stored.bits = static_cast<int32_t>(bits);
  if (bits != 8 && (bits != 4 || format != "pack-quantized"))
    w.fail(refused(format + " with " + std::to_string(bits) + " bits"));
  const std::string strategy = w.text("strategy", "tensor");
  if (strategy != "tensor" && strategy != "channel" && strategy != "group")
    w.fail(refused("strategy \"" + strategy.substr(0, 60) + "\""));
  if (strategy == "group") stored.group_size = read_group_size(w, 128);
  return stored;
}

// NVFP4 in the "weights" of a group.
StoredQuantization read_nvfp4(ConfigFields& w, int64_t bits) {
  StoredQuantization stored;
  stored.method = StoredMethod::kNvfp4;
  stored.group_size = read_group_size(w, 16);
  if (bits != 4 || stored.group_size != 16)
    w.fail(refused("nvfp4-pack-quantized with " + std::to_string(bits) + " bits in groups of " +
                   std::to_string(stored.group_size)));
  if (!w.boolean("symmetric", true)) w.fail(refused("weights that are not symmetric"));
  return stored;
}

// One of "config_groups".
void read_group(const json& group, const std::string& of_all, ConfigFields& parent, ModelConfig* config,
                std::optional<StoredQuantization>* stored) {
  if (!group.is_object()) return parent.fail(data_loss("a group of \"config_groups\" is not an object"));
  ConfigFields f(group);
  const std::string format = f.text("format", of_all);
  const bool is_ints = format == "pack-quantized" || format == "int-quantized";
  const bool is_nvfp4 = format == "nvfp4-pack-quantized";
  if (format != "float-quantized" && !is_ints && !is_nvfp4)
    parent.fail(refused("compressed-tensors format \"" + format.substr(0, 60) + "\""));
  const json* weights = f.find("weights");
  if (weights == nullptr || !weights->is_object())
    return parent.fail(data_loss("a group of \"config_groups\" has no \"weights\""));
  ConfigFields w(*weights);
  const std::string type = w.text("type", "int");
  const int64_t bits = w.integer("num_bits", 8, 1, 64);
  StoredQuantization here;
  if (is_ints) here = read_ints(w, format, bits);
  if (is_nvfp4) here = read_nvfp4(w, bits);
  if (type != (is_ints ? "int" : "float") || (!is_ints && !is_nvfp4 && bits != 8))
    parent.fail(refused("weights of type " + type.substr(0, 60) + " with " + std::to_string(bits) + " bits"));
  if (!is_ints && !is_nvfp4) {
    const std::string strategy = w.text("strategy", "tensor");
    if (strategy != "tensor" && strategy != "channel" && strategy != "block")
      parent.fail(refused("strategy \"" + strategy.substr(0, 60) + "\""));
    if (!w.boolean("symmetric", true)) parent.fail(refused("weights that are not symmetric"));
    read_block_size(w, "block_structure", config);
  }
  if (*stored && **stored != here) parent.fail(unsupported("several kinds of \"config_groups\" are not supported"));
  *stored = here;
  parent.fail(w.status());
  parent.fail(f.status());
}

StoredQuantization read_compressed_tensors(ConfigFields& f, ModelConfig* config) {
  const std::string format = f.text("format", "dense");
  const json* groups = f.find("config_groups");
  std::optional<StoredQuantization> stored;
  std::string sparsity_format = "dense";
  if (const json* sparsity = f.find("sparsity_config"); sparsity != nullptr && sparsity->is_object())
    sparsity_format = ConfigFields(*sparsity).text("format", "dense");
  const bool is_sparse = sparsity_format == "sparse-24-bitmask";
  if (sparsity_format != "dense" && !is_sparse)
    f.fail(refused("sparsity format \"" + sparsity_format.substr(0, 60) + "\""));
  const bool has_groups = groups != nullptr && groups->is_object() && !groups->empty();
  if (is_sparse && has_groups) f.fail(refused("sparse-24-bitmask of weights that are quantised as well"));
  if (is_sparse) {
    StoredQuantization sparse;
    sparse.method = StoredMethod::kSparse24;
    return sparse;
  }
  if (groups == nullptr || !groups->is_object()) f.fail(data_loss("compressed-tensors needs \"config_groups\""));
  else
    for (const auto& [name, group] : groups->items()) read_group(group, format, f, config, &stored);
  return stored.value_or(StoredQuantization());
}

StoredQuantization read_gptq(ConfigFields& f) {
  StoredQuantization stored;
  stored.method = StoredMethod::kGptq;
  stored.bits = static_cast<int32_t>(f.integer("bits", {}, 1, 64));
  if (stored.bits != 4 && stored.bits != 8) f.fail(refused("gptq with " + std::to_string(stored.bits) + " bits"));
  stored.group_size = read_group_size(f, -1);
  stored.has_order = f.boolean("desc_act", false);
  const std::string format = f.text("checkpoint_format", f.text("format", "gptq"));
  if (format != "gptq" && format != "gptq_v2") f.fail(refused("gptq in the format \"" + format.substr(0, 60) + "\""));
  stored.zeros_are_one_less = format == "gptq";
  return stored;
}

StoredQuantization read_awq(ConfigFields& f) {
  StoredQuantization stored;
  stored.method = StoredMethod::kAwq;
  const int64_t bits = f.integer(f.pick("bits|w_bit").c_str(), {}, 1, 64);
  if (bits != 4) f.fail(refused("awq with " + std::to_string(bits) + " bits"));
  stored.group_size = f.has("q_group_size") ? f.integer("q_group_size", {}, 1, 1 << 20) : read_group_size(f, 128);
  const std::string version = f.text("version", "gemm");
  if (version != "gemm" && version != "GEMM") f.fail(refused("awq in the version \"" + version.substr(0, 60) + "\""));
  if (!f.boolean("zero_point", true)) f.fail(refused("awq without zero points"));
  return stored;
}

StoredQuantization read_method(ConfigFields& f, ModelConfig* config) {
  StoredQuantization stored;
  const std::string method = f.text("quant_method", "");
  if (method == "fp8") read_fp8(f, config);
  else if (method == "compressed-tensors") stored = read_compressed_tensors(f, config);
  else if (method == "gptq") stored = read_gptq(f);
  else if (method == "awq") stored = read_awq(f);
  else if (method == "bitsandbytes") stored.method = StoredMethod::kBitsandbytes;  // the tensors say the rest
  else if (method == "mxfp4" && config->model_type == "gpt_oss") stored.method = StoredMethod::kMxfp4;
  else f.fail(refused("quant_method \"" + method.substr(0, 60) + "\""));
  return stored;
}

const json* find_quantization(const ConfigFields& fields) {
  const json* object = fields.find("quantization_config");
  return object != nullptr ? object : fields.find("compression_config");  // what compressed-tensors wrote at first
}

}  // namespace

void read_quantization(ConfigFields& fields, ModelConfig* config) {
  const json* object = find_quantization(fields);
  if (object == nullptr) return;
  if (!object->is_object()) return fields.fail(data_loss("\"quantization_config\" is not an object"));
  config->has_quantization = true;
  ConfigFields f(*object);
  read_method(f, config);
  fields.fail(f.status());
}

Result<StoredQuantization> load_stored_quantization(const std::string& model_dir) {
  const std::string path = model_dir + "/config.json";
  const Result<std::string> text = read_whole_file(path, kMaxTextFileBytes);
  if (text.status().code() == StatusCode::kNotFound) return StoredQuantization();
  LLMB_RETURN_IF_ERROR(text.status());
  const Result<json> object = parse_config_object(*text);
  if (!object.ok()) return object.status().with_context(path);
  const ConfigFields outer(*object);
  const json* found = find_quantization(outer);
  if (const json* inner = outer.find("text_config"); found == nullptr && inner != nullptr && inner->is_object())
    found = find_quantization(ConfigFields(*inner));
  if (found == nullptr || !found->is_object()) return StoredQuantization();
  ConfigFields f(*found);
  ModelConfig config;
  config.model_type = outer.find("model_type") == nullptr ? "" : ConfigFields(*object).text("model_type", "");
  const StoredQuantization stored = read_method(f, &config);
  LLMB_RETURN_IF_ERROR(f.status().with_context(path));
  return stored;
}

Result<StoredQuantization> stays_packed_on_gpu(const std::string& model_dir, const ModelConfig& config,
                                               DType activations, Quantization quantization) {
  if (!config.has_quantization || activations == DType::kF32 || quantization != Quantization::kNone)
    return StoredQuantization();
  LLMB_ASSIGN_OR_RETURN(const StoredQuantization stored, load_stored_quantization(model_dir));
  const bool is_integers =
      stored.is_gptq_or_awq() || stored.method == StoredMethod::kPackedInts || stored.method == StoredMethod::kInts;
  const bool is_sparse = stored.method == StoredMethod::kSparse24;
  const bool stays = config.experts.num_experts > 0 ? stored.method == StoredMethod::kMxfp4 : is_integers || is_sparse;
  return stays ? stored : StoredQuantization();
}

}  // namespace llmb
