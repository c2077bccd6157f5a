#include "model/lora_adapter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/float_formats.h"
#include "base/mapped_file.h"
#include "base/whole_file.h"
#include "model/architecture.h"
#include "model/config_fields.h"

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

bool is_all_finite(const TensorView& view) {
  std::vector<float> row(view.cols);
  for (int64_t i = 0; i < view.rows; ++i) {
    read_floats(view, i, row.data());
    if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) return false;
  }
  return true;
}

}  // namespace

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

// Reads adapter_config.json, then finds each tensor's place. Remembers nothing once the adapter is open.
class LoraReader {
 public:
  LoraReader(std::string dir, const ModelConfig& model, const Architecture& architecture)
      : dir_(std::move(dir)), model_(model), names_(architecture.weights) {}

  Result<LoraAdapter> open() {
    LLMB_RETURN_IF_ERROR(read_config().with_context(dir_ + "/adapter_config.json"));
    LLMB_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_adapter_file(dir_));
    LoraAdapter adapter(std::move(checkpoint), model_.num_hidden_layers);
    LLMB_RETURN_IF_ERROR(place_tensors(&adapter).with_context(dir_ + "/" + kAdapterFile));
    return adapter;
  }

 private:
  // A projection of a layer, or a part of one.
  struct Place {
    int32_t layer = 0;
    Projection projection = Projection::kQkv;
    int64_t in_features = 0, out_features = 0, out_column = 0;
  };
  struct Pattern {
    std::string name;
    double value;
  };

  Status read_config();
  static Status refuse_others(const nlohmann::json& json);
  static Status read_patterns(const nlohmann::json& json, const char* field, double max, std::vector<Pattern>* out);
  static const Pattern* find_pattern(const std::vector<Pattern>& patterns, std::string_view module);

  Status place_tensors(LoraAdapter* adapter) const;
  Status add_module(const std::string& tensor_name, const std::string& module, LoraAdapter* adapter) const;
  Result<Place> find_place(std::string_view module) const;
  std::optional<std::pair<int32_t, std::string_view>> find_layer(std::string_view module) const;
  std::vector<int32_t> rows_of(const Place& place) const;
  std::vector<std::pair<int32_t, bool>> heads_of(const Place& place) const;

  const std::string dir_;
  const ModelConfig& model_;
  const WeightNames& names_;
  int64_t rank_ = 8;
  double alpha_ = 8;
  bool is_rank_stabilised_ = false;
  std::vector<Pattern> ranks_, alphas_;
};

Status LoraReader::read_config() {
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(dir_ + "/adapter_config.json", kMaxTextFileBytes));
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json json, parse_config_object(text));
  ConfigFields fields(json);
  const std::string type = fields.text("peft_type", "LORA");
  rank_ = fields.integer("r", 8, 1, kMaxLoraRank);
  alpha_ = fields.number("lora_alpha", 8, 0, 1e6);
  is_rank_stabilised_ = fields.boolean("use_rslora", false);
  LLMB_RETURN_IF_ERROR(fields.status());
  if (type != "LORA") return unsupported("peft_type " + type + ": only LORA is computed");
  LLMB_RETURN_IF_ERROR(refuse_others(json));
  LLMB_RETURN_IF_ERROR(read_patterns(json, "rank_pattern", kMaxLoraRank, &ranks_));
  return read_patterns(json, "alpha_pattern", 1e6, &alphas_);
}

// Variants of LoRA that compute something else, by the fields that ask for them.
Status LoraReader::refuse_others(const nlohmann::json& json) {
  for (const char* name : {"use_dora", "use_qalora", "lora_bias", "layer_replication", "modules_to_save",
                           "trainable_token_indices", "target_parameters", "alora_invocation_tokens", "use_bdlora",
                           "arrow_config", "kasa_config", "monteclora_config"}) {
    const auto found = json.find(name);
    if (found == json.end() || found->is_null() || *found == false || (found->is_structured() && found->empty()))
      continue;
    return unsupported(std::string(name) + " is " + brief(*found) + ": such adapters are not computed");
  }
  if (const auto bias = json.find("bias"); bias != json.end() && !bias->is_null() && *bias != "none")
    return unsupported("bias is " + brief(*bias) + ": only \"none\" is computed");
  // These change the base model's weights when an adapter is made, and the adapter goes with those.
  if (const auto init = json.find("init_lora_weights"); init != json.end() && init->is_string()) {
    const std::string value = init->get<std::string>();
    for (const char* name : {"pissa", "olora", "corda", "loftq", "lora_ga"})
      if (value.starts_with(name))
        return unsupported("init_lora_weights is \"" + value +
                           "\", which changes the base model: convert the adapter to plain LoRA with PEFT");
  }
  return {};
}

Status LoraReader::read_patterns(const nlohmann::json& json, const char* field, double max, std::vector<Pattern>* out) {
  const auto found = json.find(field);
  if (found == json.end() || found->is_null()) return {};
  if (!found->is_object())
    return invalid_argument(std::string(field) + " is " + brief(*found) + ", expected an object");
  for (const auto& [key, value] : found->items()) {
    // PEFT takes names as regular expressions; a dot in a module's path matches itself as well.
    const std::string name = key.starts_with('^') ? key.substr(1) : key;
    if (name.empty() || name.find_first_of("*+?[](){}|\\$^") != name.npos)
      return unsupported(std::string(field) + ": \"" + key + "\" is a regular expression: write out the modules' names");
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= max))
      return invalid_argument(std::string(field) + ": \"" + key + "\" is " + brief(value) + ", expected 0 to " +
                              std::to_string(static_cast<int64_t>(max)));
    out->push_back({key, value.get<double>()});
  }
  return {};
}

// As PEFT: "^path" is the beginning of the module's path; any other name its end, whole parts of it.
const LoraReader::Pattern* LoraReader::find_pattern(const std::vector<Pattern>& patterns, std::string_view module) {
  for (const Pattern& pattern : patterns) {
    const std::string_view name = pattern.name;
    if (name[0] == '^' && module.starts_with(name.substr(1))) return &pattern;
    if (!module.ends_with(name)) continue;
    if (module.size() == name.size() || module[module.size() - name.size() - 1] == '.') return &pattern;
  }
  return nullptr;
}

Status LoraReader::place_tensors(LoraAdapter* adapter) const {
  constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
  const std::vector<std::string> names = adapter->checkpoint_.names();
  if (names.empty()) return data_loss("holds no tensors");
  for (const std::string& name : names) {
    if (!name.starts_with(kModulePrefix))
      return invalid_argument("tensor " + name + ": expected a name that begins with " + std::string(kModulePrefix));
    if (name.ends_with(kA)) {
      const std::string module = name.substr(kModulePrefix.size(), name.size() - kModulePrefix.size() - kA.size());
      LLMB_RETURN_IF_ERROR(add_module(name, module, adapter));
    } else if (name.ends_with(kB)) {
      const std::string first = name.substr(0, name.size() - kB.size()) + std::string(kA);
      if (!adapter->checkpoint_.find(first)) return data_loss("tensor " + first + " is missing");
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

Status LoraReader::add_module(const std::string& tensor_name, const std::string& module, LoraAdapter* adapter) const {
  LLMB_ASSIGN_OR_RETURN(const Place place, find_place(module));
  const Pattern* const own_rank = find_pattern(ranks_, module);
  const Pattern* const own_alpha = find_pattern(alphas_, module);
  const auto rank = own_rank != nullptr ? static_cast<int64_t>(own_rank->value) : rank_;
  if (rank < 1) return invalid_argument("rank_pattern: \"" + own_rank->name + "\" is 0, expected 1 or more");
  const double alpha = own_alpha != nullptr ? own_alpha->value : alpha_;
  const auto of_rank = static_cast<double>(rank);
  LoraModule added;
  added.scale = static_cast<float>(alpha / (is_rank_stabilised_ ? std::sqrt(of_rank) : of_rank));
  const std::string second = std::string(kModulePrefix) + module + ".lora_B.weight";
  const std::vector<int64_t> a_shape = {rank, place.in_features}, b_shape = {place.out_features, rank};
  const Checkpoint& checkpoint = adapter->checkpoint_;
  LLMB_ASSIGN_OR_RETURN(added.a, checkpoint.tensor(tensor_name, a_shape));
  LLMB_ASSIGN_OR_RETURN(added.b, checkpoint.tensor(second, b_shape));
  added.out_column = place.out_column;
  if (names_.qkv != nullptr || names_.is_interleaved) added.b_rows = rows_of(place);
  auto& modules = adapter->modules_[place.layer * int64_t{kNumProjections} + static_cast<int64_t>(place.projection)];
  for (const LoraModule& other : modules)
    if (other.out_column == added.out_column)
      return data_loss("module " + module + " is there twice");
  modules.push_back(std::move(added));
  return {};
}

Result<LoraAdapter> LoraAdapter::open(const std::string& dir, const ModelConfig& model) {
  const Architecture* const architecture = find_architecture(model.model_type);
  LLMB_CHECK_MSG(architecture != nullptr, model.model_type);
  return LoraReader(dir, model, *architecture).open();
}

Status LoraAdapter::check_values() const {
  for (const std::string& name : checkpoint_.names()) {
    const StoredTensor stored = *checkpoint_.find(name);
    LLMB_ASSIGN_OR_RETURN(const TensorView view, checkpoint_.tensor(name, stored.shape));
    if (!is_all_finite(view)) return data_loss(stored.where + ": holds a value that is not finite");
  }
  return still_readable();
}

Status LoraAdapter::still_readable() const {
  for (const MappedFile& file : checkpoint_.files()) LLMB_RETURN_IF_ERROR(file.still_readable());
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
