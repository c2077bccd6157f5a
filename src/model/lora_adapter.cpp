#include "model/lora_adapter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/float_formats.h"
#include "base/mapped_file.h"
#include "base/whole_file.h"
#include "model/architecture.h"
#include "model/gguf_model.h"
#include "model/lora_config.h"

namespace llmb {

namespace {

constexpr const char* kAdapterFile = "adapter_model.safetensors";
constexpr std::string_view kModulePrefix = "base_model.model.";

// The alternatives of "a|b".
std::vector<std::string_view> alternatives(std::string_view names) {
  std::vector<std::string_view> list;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('|', begin), names.size());
    list.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return list;
}

bool is_one_of(std::string_view name, const char* names) {
  if (names == nullptr) return false;
  const auto list = alternatives(names);
  return std::find(list.begin(), list.end(), name) != list.end();
}

Result<Checkpoint> open_adapter_file(const std::string& dir) {
  if (file_exists(dir + "/" + kAdapterFile)) return Checkpoint::open_file(dir, kAdapterFile);
  if (file_exists(dir + "/adapter_model.bin"))
    return unsupported(dir + "/adapter_model.bin is pickled: save the adapter again with PEFT's save_pretrained(), which "
                             "writes " +
                       std::string(kAdapterFile));
  return not_found(dir + ": has no " + kAdapterFile);
}

Result<TensorView> gguf_lora_view(const GgufTensor& tensor, const std::vector<int64_t>& shape) {
  const std::string name = "tensor " + std::string(tensor.name), type = tensor.type->name;
  if (tensor.shape != shape)
    return invalid_argument(name + " has shape " + shape_string(tensor.shape) + ", expected " + shape_string(shape));
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
    if (type == (dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16"))
      return TensorView{tensor.data.data(), dtype, shape[0], shape[1]};
  return unsupported(name + " has type " + type + ": convert the adapter with --outtype f16, bf16 or f32");
}

bool is_all_finite(const TensorView& view) {
  std::vector<float> row(view.cols);
  for (int64_t i = 0; i < view.rows; ++i) {
    read_floats(view, i, row.data());
    if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) return false;
  }
  return true;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> adapter_files(const std::string& path) {
  if (is_gguf_path(path)) return {{path.substr(path.rfind('/') + 1), path}};
  return {{"adapter_config.json", path + "/adapter_config.json"}, {kAdapterFile, path + "/" + kAdapterFile}};
}

void read_floats(const TensorView& matrix, int64_t row, float* out) {
  const auto* from = static_cast<const uint8_t*>(matrix.data) + row * matrix.cols * dtype_bytes(matrix.dtype);
  if (matrix.dtype == DType::kF32) {
    std::memcpy(out, from, static_cast<size_t>(matrix.cols) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < matrix.cols; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, sizeof bits);
    out[i] = matrix.dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
}

// Finds each tensor's place. Remembers nothing once the adapter is open.
class LoraReader {
 public:
  LoraReader(std::string dir, const ModelConfig& model, const Architecture& architecture)
      : dir_(std::move(dir)), model_(model), names_(architecture.weights) {}

  Result<LoraAdapter> open() {
    LoraAdapter adapter(model_.num_hidden_layers);
    if (is_gguf_path(dir_)) {
      LLMB_ASSIGN_OR_RETURN(GgufFile file, GgufFile::open(dir_));
      LLMB_RETURN_IF_ERROR(place_gguf_tensors(file, &adapter).with_context(dir_));
      adapter.gguf_ = std::move(file);
      return adapter;
    }
    LLMB_ASSIGN_OR_RETURN(config_, LoraConfig::read(dir_));
    LLMB_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_adapter_file(dir_));
    LLMB_RETURN_IF_ERROR(place_tensors(checkpoint, &adapter).with_context(dir_ + "/" + kAdapterFile));
    adapter.checkpoint_ = std::move(checkpoint);
    return adapter;
  }

 private:
  // A projection of a layer, or a part of one.
  struct Place {
    int32_t layer = 0;
    Projection projection = Projection::kQkv;
    int64_t in_features = 0, out_features = 0, out_column = 0;
  };
  Status place_tensors(const Checkpoint& checkpoint, LoraAdapter* adapter) const;
  Status add_module(const Checkpoint& checkpoint, const std::string& tensor_name, const std::string& module,
                    LoraAdapter* adapter) const;
  Status place_gguf_tensors(const GgufFile& file, LoraAdapter* adapter) const;
  Status add_gguf_module(const GgufFile& file, const std::string& name, bool is_rope_interleaved,
                         const std::string& module, LoraAdapter* adapter) const;
  std::vector<std::string> all_modules() const;
  Status keep(const std::string& module, const Place& place, LoraModule added, LoraAdapter* adapter) const;
  Result<Place> find_place(std::string_view module) const;
  std::optional<std::pair<int32_t, std::string_view>> find_layer(std::string_view module) const;
  std::vector<int32_t> rows_of(const Place& place) const;
  std::vector<std::pair<int32_t, bool>> heads_of(const Place& place) const;

  const std::string dir_;
  const ModelConfig& model_;
  const WeightNames& names_;
  LoraConfig config_;
};

Status LoraReader::place_tensors(const Checkpoint& checkpoint, LoraAdapter* adapter) const {
  constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
  const std::vector<std::string> names = checkpoint.names();
  if (names.empty()) return data_loss("holds no tensors");
  for (const std::string& name : names) {
    if (!name.starts_with(kModulePrefix))
      return invalid_argument("tensor " + name + ": expected a name that begins with " + std::string(kModulePrefix));
    if (name.ends_with(kA)) {
      const std::string module = name.substr(kModulePrefix.size(), name.size() - kModulePrefix.size() - kA.size());
      LLMB_RETURN_IF_ERROR(add_module(checkpoint, name, module, adapter));
    } else if (name.ends_with(kB)) {
      const std::string first = name.substr(0, name.size() - kB.size()) + std::string(kA);
      if (!checkpoint.find(first)) return data_loss("tensor " + first + " is missing");
    } else {
      return unsupported("tensor " + name + ": only lora_A.weight and lora_B.weight of projections are computed");
    }
  }
  return {};
}

// The layer's index and the module's name in it.
std::optional<std::pair<int32_t, std::string_view>> LoraReader::find_layer(std::string_view module) const {
  for (const std::string_view prefix : alternatives(names_.prefix)) {
    const std::string layers = std::string(prefix) + names_.layers + ".";
    if (!module.starts_with(layers)) continue;
    const std::string_view rest = module.substr(layers.size());
    int32_t index = -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), index);
    if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') continue;
    if (index >= 0) return std::pair(index, rest.substr(end - rest.data() + 1));
  }
  return std::nullopt;
}

Result<LoraReader::Place> LoraReader::find_place(std::string_view module) const {
  const auto found = find_layer(module);
  if (!found)
    return unsupported("module " + std::string(module) + ": only projections of the model's layers are computed");
  const auto [layer, name] = *found;
  if (layer >= model_.num_hidden_layers)
    return invalid_argument("module " + std::string(module) + ": the model has " +
                            std::to_string(model_.num_hidden_layers) + " layers");
  if (model_.heads_differ())
    return unsupported("module " + std::string(module) + ": not of models whose layers have heads of different sizes");
  const int64_t hidden = model_.hidden_size, q = model_.q_size(), kv = model_.kv_size();
  const int64_t wide = model_.intermediate_size;
  const bool is_dense = !model_.layer(layer).has_experts, is_gated = model_.activation.gated;
  using enum Projection;
  if (names_.qkv != nullptr) {
    if (is_one_of(name, names_.qkv)) return Place{layer, kQkv, hidden, q + 2 * kv, 0};
  } else {
    if (is_one_of(name, names_.q)) return Place{layer, kQkv, hidden, q, 0};
    if (is_one_of(name, names_.k)) return Place{layer, kQkv, hidden, kv, q};
    if (is_one_of(name, names_.v)) return Place{layer, kQkv, hidden, kv, q + kv};
  }
  if (is_one_of(name, names_.o)) return Place{layer, kO, q, hidden, 0};
  if (is_dense) {
    if (is_gated && names_.gate_up != nullptr) {
      if (is_one_of(name, names_.gate_up)) return Place{layer, kGateUp, hidden, 2 * wide, 0};
    } else {
      if (is_gated && is_one_of(name, names_.gate)) return Place{layer, kGateUp, hidden, wide, 0};
      if (is_one_of(name, names_.up)) return Place{layer, kGateUp, hidden, wide, is_gated ? wide : 0};
    }
    if (is_one_of(name, names_.down)) return Place{layer, kDown, wide, hidden, 0};
  }
  return unsupported("module " + std::string(module) + ": only attention's and a dense MLP's projections are computed");
}

// As the forward pass wants the rows of q, k and v (model_weights.cpp does the same to the base weights).
std::vector<int32_t> LoraReader::rows_of(const Place& place) const {
  if (place.projection != Projection::kQkv) return {};
  std::vector<int32_t> rows;
  for (const auto& [head, is_turned] : heads_of(place)) {
    const auto d = static_cast<int32_t>(model_.head_dim);
    const int32_t turned = names_.is_interleaved && is_turned ? model_.rotary_dim(model_.ropes[0]) : 0;
    for (int32_t i = 0; i < turned; i += 2) rows.push_back(head * d + i);
    for (int32_t i = 1; i < turned; i += 2) rows.push_back(head * d + i);
    for (int32_t i = turned; i < d; ++i) rows.push_back(head * d + i);
  }
  return rows;
}

// The heads of the tensor in the order of the fused projection, and whether rope turns them.
std::vector<std::pair<int32_t, bool>> LoraReader::heads_of(const Place& place) const {
  const int32_t heads = model_.num_attention_heads, kv_heads = model_.num_key_value_heads;
  std::vector<std::pair<int32_t, bool>> out;
  if (names_.qkv == nullptr) {
    for (int32_t i = 0; i < place.out_features / model_.head_dim; ++i)
      out.emplace_back(i, place.out_column < model_.q_size() + model_.kv_size());
    return out;
  }
  std::array<std::vector<int32_t>, 3> parts;  // q, k, v
  const auto add = [](std::vector<int32_t>* to, int32_t first, int32_t count) {
    for (int32_t i = 0; i < count; ++i) to->push_back(first + i);
  };
  switch (names_.qkv_order) {
    case QkvOrder::kStacked:
      add(&parts[0], 0, heads);
      add(&parts[1], heads, kv_heads);
      add(&parts[2], heads + kv_heads, kv_heads);
      break;
    case QkvOrder::kGrouped:
      for (int32_t g = 0, group = heads / kv_heads; g < kv_heads; ++g) {
        add(&parts[0], g * (group + 2), group);
        add(&parts[1], g * (group + 2) + group, 1);
        add(&parts[2], g * (group + 2) + group + 1, 1);
      }
      break;
    case QkvOrder::kQuarters:
      for (int32_t i = 0, quarter = heads / 4; i < 4; ++i) {
        add(&parts[0], 3 * i * quarter, quarter);
        add(&parts[2], (3 * i + 1) * quarter, quarter);
        add(&parts[1], (3 * i + 2) * quarter, quarter);
      }
      break;
  }
  for (const int part : {0, 1, 2})
    for (const int32_t head : parts[part]) out.emplace_back(head, part < 2);
  return out;
}

Status LoraReader::add_module(const Checkpoint& checkpoint, const std::string& tensor_name, const std::string& module,
                              LoraAdapter* adapter) const {
  LLMB_ASSIGN_OR_RETURN(const Place place, find_place(module));
  LLMB_ASSIGN_OR_RETURN(const int64_t rank, config_.rank_of(module));
  LoraModule added;
  added.scale = config_.scale_of(module, rank);
  const std::string second = std::string(kModulePrefix) + module + ".lora_B.weight";
  const std::vector<int64_t> a_shape = {rank, place.in_features}, b_shape = {place.out_features, rank};
  LLMB_ASSIGN_OR_RETURN(added.a, checkpoint.tensor(tensor_name, a_shape));
  LLMB_ASSIGN_OR_RETURN(added.b, checkpoint.tensor(second, b_shape));
  if (names_.qkv != nullptr || names_.is_interleaved) added.b_rows = rows_of(place);
  return keep(module, place, std::move(added), adapter);
}

Status LoraReader::keep(const std::string& module, const Place& place, LoraModule added, LoraAdapter* adapter) const {
  added.out_column = place.out_column;
  added.name = module;
  auto& modules = adapter->modules_[place.layer * int64_t{kNumProjections} + static_cast<int64_t>(place.projection)];
  for (const LoraModule& other : modules)
    if (other.out_column == added.out_column) return data_loss("module " + module + " is there twice");
  modules.push_back(std::move(added));
  return {};
}

// Every projection that an adapter of this model may have, by the first of its names.
std::vector<std::string> LoraReader::all_modules() const {
  std::vector<std::string> modules;
  const std::string layers = std::string(alternatives(names_.prefix)[0]) + names_.layers + ".";
  for (int32_t layer = 0; layer < model_.num_hidden_layers; ++layer)
    for (const char* names : {names_.qkv, names_.qkv ? nullptr : names_.q, names_.qkv ? nullptr : names_.k,
                              names_.qkv ? nullptr : names_.v, names_.o, names_.gate_up,
                              names_.gate_up ? nullptr : names_.gate, names_.gate_up ? nullptr : names_.up, names_.down})
      if (names != nullptr)
        for (const std::string_view name : alternatives(names))
          modules.push_back(layers + std::to_string(layer) + "." + std::string(name));
  return modules;
}

Status LoraReader::place_gguf_tensors(const GgufFile& file, LoraAdapter* adapter) const {
  const std::string type(file.text("general.type").value_or("")), kind(file.text("adapter.type").value_or(""));
  if (type != "adapter") return invalid_argument("general.type is \"" + type + "\", expected \"adapter\"");
  if (kind != "lora") return unsupported("adapter.type is \"" + kind + "\": only lora is computed");
  if (file.find("adapter.alora.invocation_tokens") != nullptr)
    return unsupported("adapter.alora.invocation_tokens: such adapters are not computed");
  LLMB_ASSIGN_OR_RETURN(const GgufArchitecture architecture, gguf_architecture(file));
  // llama.cpp has one name for the two.
  const bool is_llama = model_.model_type == "mistral" && architecture.model_type == std::string("llama");
  if (architecture.model_type != model_.model_type && !is_llama)
    return invalid_argument("the adapter is for " + std::string(architecture.model_type) + ", the model is " +
                            model_.model_type);
  if (file.tensors().empty()) return data_loss("holds no tensors");
  std::set<std::string> placed;
  for (const std::string& module : all_modules()) {
    const std::string name = gguf_tensor_name(module + ".weight", architecture).value_or("");
    if (!placed.insert(name + ".lora_a").second || !placed.insert(name + ".lora_b").second) continue;
    LLMB_RETURN_IF_ERROR(add_gguf_module(file, name, architecture.is_rope_interleaved, module, adapter));
  }
  for (const GgufTensor& tensor : file.tensors())
    if (!placed.contains(std::string(tensor.name)))
      return unsupported("tensor " + std::string(tensor.name) +
                         ": only lora_a and lora_b of attention's and a dense MLP's projections are computed");
  return {};
}

Status LoraReader::add_gguf_module(const GgufFile& file, const std::string& name, bool is_rope_interleaved,
                                   const std::string& module, LoraAdapter* adapter) const {
  const GgufTensor *const a = file.tensor(name + ".lora_a"), *const b = file.tensor(name + ".lora_b");
  if (a == nullptr && b == nullptr) return {};
  if (a == nullptr || b == nullptr) return data_loss("tensor " + name + (a ? ".lora_b" : ".lora_a") + " is missing");
  LLMB_ASSIGN_OR_RETURN(const Place place, find_place(module));
  LoraModule added;
  const int64_t rank = a->shape.size() == 2 ? a->shape[0] : 0;
  if (rank < 1 || rank > kMaxLoraRank) return invalid_argument("tensor " + name + ".lora_a: expected a rank of 1 to 256");
  LLMB_ASSIGN_OR_RETURN(added.a, gguf_lora_view(*a, {rank, place.in_features}));
  LLMB_ASSIGN_OR_RETURN(added.b, gguf_lora_view(*b, {place.out_features, rank}));
  // As llama.cpp: no alpha is a scale of 1.
  const double alpha = file.number("adapter.lora.alpha").value_or(0);
  if (!(std::fabs(alpha) <= 1e6)) return invalid_argument("adapter.lora.alpha is out of range");
  added.scale = alpha == 0 ? 1.0F : static_cast<float>(alpha / static_cast<double>(rank));
  if (names_.qkv != nullptr || names_.is_interleaved) added.b_rows = rows_of(place);
  const bool is_rotated = module.ends_with("self_attn.q_proj") || module.ends_with("self_attn.k_proj");
  if (is_rope_interleaved && is_rotated)
    for (int64_t row = 0; row < place.out_features; ++row)
      added.b_rows.push_back(static_cast<int32_t>(gguf_interleaved_row(row, model_.head_dim)));
  return keep(module, place, std::move(added), adapter);
}

Result<LoraAdapter> LoraAdapter::open(const std::string& path, const ModelConfig& model) {
  const Architecture* const architecture = find_architecture(model.model_type);
  LLMB_CHECK_MSG(architecture != nullptr, model.model_type);
  return LoraReader(path, model, *architecture).open();
}

Status LoraAdapter::check_values() const {
  for (const auto& list : modules_)
    for (const LoraModule& m : list)
      for (const TensorView& view : {m.a, m.b})
        if (!is_all_finite(view)) return data_loss(m.name + ": holds a value that is not finite");
  return still_readable();
}

Status LoraAdapter::still_readable() const {
  if (gguf_) return gguf_->still_readable();
  for (const MappedFile& file : checkpoint_->files()) LLMB_RETURN_IF_ERROR(file.still_readable());
  return {};
}

int64_t LoraAdapter::num_modules() const {
  int64_t count = 0;
  for (const auto& list : modules_) count += static_cast<int64_t>(list.size());
  return count;
}

int64_t LoraAdapter::num_parameters() const {
  int64_t count = 0;
  for (const auto& list : modules_)
    for (const LoraModule& m : list) count += m.a.rows * m.a.cols + m.b.rows * m.b.cols;
  return count;
}

int64_t LoraAdapter::max_rank() const {
  int64_t rank = 0;
  for (const auto& list : modules_)
    for (const LoraModule& m : list) rank = std::max(rank, m.rank());
  return rank;
}

}  // namespace llmb
