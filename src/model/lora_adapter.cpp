#include "model/lora_adapter.h"

#include <algorithm>
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
#include "model/lora_places.h"

namespace llmb {

namespace {

constexpr const char* kAdapterFile = "adapter_model.safetensors";
constexpr std::string_view kModulePrefix = "base_model.model.", kBaseTable = ".base_layer.weight";

// How PEFT calls the matrices of a module, behind its path.
struct TensorNames {
  std::string_view a, b;
  bool is_embedding;
};
constexpr TensorNames kLinearNames = {".lora_A.weight", ".lora_B.weight", false};
constexpr TensorNames kEmbeddingNames = {".lora_embedding_A", ".lora_embedding_B", true};

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

// Whether a module is of the part of a model that makes something of images or sounds. No text goes through it, as none
// of its weights is loaded.
bool is_of_other_input(std::string_view module) {
  if (module.starts_with("model.")) module.remove_prefix(6);
  for (const std::string_view folder : {"visual.", "vision_tower.", "vision_model.", "multi_modal_projector.",
                                        "mm_projector.", "audio_tower.", "embed_vision.", "embed_audio."})
    if (module.starts_with(folder)) return true;
  return false;
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

void read_b(const LoraModule& module, int64_t row, float* out) {
  if (module.b_stride == 1 && module.b.cols == module.rank()) return read_floats(module.b, row, out);
  for (int64_t r = 0; r < module.rank(); ++r) {
    const int64_t at = row * module.b.cols + module.b_column + r * module.b_stride;
    const auto* const from = static_cast<const uint8_t*>(module.b.data) + at * dtype_bytes(module.b.dtype);
    read_floats({from, module.b.dtype, 1, 1}, 0, out + r);
  }
}

// Finds each tensor's place. Remembers nothing once the adapter is open.
class LoraReader {
 public:
  LoraReader(std::string dir, const ModelConfig& model, const Architecture& architecture)
      : dir_(std::move(dir)), model_(model), names_(architecture.weights), places_(model, architecture) {}

  Result<LoraAdapter> open() {
    LoraAdapter adapter(model_.num_hidden_layers, model_.experts.num_experts);
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
  Status place_tensors(const Checkpoint& checkpoint, LoraAdapter* adapter) const;
  Status place_tensor(const Checkpoint& checkpoint, const std::string& name, LoraAdapter* adapter) const;
  Status add_module(const Checkpoint& checkpoint, const std::string& module, const TensorNames& names,
                    LoraAdapter* adapter) const;
  Status add_stack(const Checkpoint& checkpoint, const std::string& module, const LoraPlace& place,
                   LoraAdapter* adapter) const;
  Status place_gguf_tensors(const GgufFile& file, LoraAdapter* adapter) const;
  Status add_gguf_module(const GgufFile& file, const std::string& name, bool is_rope_interleaved,
                         const std::string& module, LoraAdapter* adapter) const;
  Status keep(const std::string& module, const LoraPlace& place, LoraModule added, LoraAdapter* adapter) const;

  const std::string dir_;
  const ModelConfig& model_;
  const WeightNames& names_;
  const LoraPlaces places_;
  LoraConfig config_;
};

Status LoraReader::place_tensors(const Checkpoint& checkpoint, LoraAdapter* adapter) const {
  const std::vector<std::string> names = checkpoint.names();
  if (names.empty()) return data_loss("holds no tensors");
  for (const std::string& name : names) LLMB_RETURN_IF_ERROR(place_tensor(checkpoint, name, adapter));
  if (adapter->num_left_out_ == static_cast<int64_t>(names.size()))
    return unsupported("holds nothing but tensors of a part that sees or hears, which no text reaches");
  return {};
}

Status LoraReader::place_tensor(const Checkpoint& checkpoint, const std::string& name, LoraAdapter* adapter) const {
  if (!name.starts_with(kModulePrefix))
    return invalid_argument("tensor " + name + ": expected a name that begins with " + std::string(kModulePrefix));
  if (is_of_other_input(std::string_view(name).substr(kModulePrefix.size()))) {
    ++adapter->num_left_out_;
    return {};
  }
  for (const TensorNames& names : {kLinearNames, kEmbeddingNames}) {
    if (name.ends_with(names.a))
      return add_module(checkpoint,
                        name.substr(kModulePrefix.size(), name.size() - kModulePrefix.size() - names.a.size()), names,
                        adapter);
    if (!name.ends_with(names.b)) continue;
    const std::string first = name.substr(0, name.size() - names.b.size()) + std::string(names.a);
    return checkpoint.find(first) ? Status() : data_loss("tensor " + first + " is missing");
  }
  if (!name.ends_with(kBaseTable))
    return unsupported("tensor " + name +
                       ": only lora_A and lora_B of projections, embed_tokens and lm_head are computed");
  // PEFT saves what it adapts of the vocabulary beside the adapter.
  const std::string module = name.substr(kModulePrefix.size(), name.size() - kModulePrefix.size() - kBaseTable.size());
  LLMB_ASSIGN_OR_RETURN(const LoraPlace place, places_.find(module));
  if (!place.is_embedding && !place.is_lm_head())
    return unsupported("tensor " + name + ": trained weights of the model are not computed");
  const std::vector<int64_t> shape = {model_.vocab_size, model_.hidden_size};
  LLMB_ASSIGN_OR_RETURN(const TensorView table, checkpoint.tensor(name, shape));
  adapter->base_tables_.push_back({places_.tables_of(place), table});
  return {};
}

Status LoraReader::add_module(const Checkpoint& checkpoint, const std::string& module, const TensorNames& names,
                              LoraAdapter* adapter) const {
  LLMB_ASSIGN_OR_RETURN(const LoraPlace place, places_.find(module));
  if (place.is_stack) return add_stack(checkpoint, module, place, adapter);
  const std::string path = std::string(kModulePrefix) + module;
  const std::string first = path + std::string(names.a), second = path + std::string(names.b);
  if (place.is_embedding != names.is_embedding)
    return unsupported("tensor " + first + ": expected " +
                       std::string(place.is_embedding ? "lora_embedding_A" : "lora_A.weight"));
  LLMB_ASSIGN_OR_RETURN(const int64_t rank, config_.rank_of(module));
  LoraModule added;
  added.scale = config_.scale_of(module, rank);
  const std::vector<int64_t> a_shape = {rank, place.in_features}, b_shape = {place.out_features, rank};
  LLMB_ASSIGN_OR_RETURN(added.a, checkpoint.tensor(first, a_shape));
  LLMB_ASSIGN_OR_RETURN(added.b, checkpoint.tensor(second, b_shape));
  return keep(module, place, std::move(added), adapter);
}

// PEFT stacks A's rows expert by expert, and B's columns rank by rank (tuners/lora/layer.py, ParamWrapper).
Status LoraReader::add_stack(const Checkpoint& checkpoint, const std::string& module, const LoraPlace& place,
                             LoraAdapter* adapter) const {
  const std::string path = std::string(kModulePrefix) + module;
  const std::string first = path + std::string(kLinearNames.a), second = path + std::string(kLinearNames.b);
  const auto a = checkpoint.find(first), b = checkpoint.find(second);
  if (!a || !b) return data_loss("tensor " + (a ? second : first) + " is missing");
  const bool are_matrices = a->shape.size() == 2 && b->shape.size() == 2;
  const auto found = are_matrices ? places_.stacked_experts(place.layer, a->shape[1], b->shape[0]) : std::nullopt;
  if (!found)
    return invalid_argument("tensors " + first + " and " + second + " have shapes " + shape_string(a->shape) + " and " +
                            shape_string(b->shape) + ": expected those of all experts' projections");
  const int64_t count = model_.experts.num_experts;
  const bool is_down = found->targets[0].projection == Projection::kDown;
  const std::string parameter = module.substr(0, module.find(".base_layer")) + (is_down ? ".down_proj" : ".gate_up_proj");
  LLMB_ASSIGN_OR_RETURN(const int64_t rank, config_.rank_of(parameter));
  const std::vector<int64_t> a_shape = {count * rank, found->in_features}, b_shape = {found->out_features, count * rank};
  LoraModule all;
  all.name = module;
  LLMB_ASSIGN_OR_RETURN(all.a, checkpoint.tensor(first, a_shape));
  LLMB_ASSIGN_OR_RETURN(all.b, checkpoint.tensor(second, b_shape));
  all.scale = config_.scale_of(parameter, rank);
  for (int32_t e = 0; e < count; ++e) {
    LoraModule one = all;
    const auto* const rows = static_cast<const uint8_t*>(all.a.data);
    one.a = {rows + e * rank * all.a.cols * dtype_bytes(all.a.dtype), all.a.dtype, rank, all.a.cols};
    one.b_column = e, one.b_stride = count;
    one.is_first = false;
    LoraPlace of_expert = *found;
    of_expert.expert = e;
    LLMB_RETURN_IF_ERROR(keep(module, of_expert, std::move(one), adapter));
  }
  adapter->stacked_.push_back(std::move(all));
  return {};
}

Status LoraReader::keep(const std::string& module, const LoraPlace& place, LoraModule added,
                        LoraAdapter* adapter) const {
  added.name = module;
  if (place.is_embedding) {
    if (adapter->embedding_) return data_loss("module " + module + " is there twice");
    adapter->embedding_ = std::move(added);
    return {};
  }
  for (const LoraTarget& target : place.targets) {
    const bool is_down = target.projection == Projection::kDown;
    if (place.expert >= 0 && !adapter->has_experts())
      adapter->expert_modules_.resize(static_cast<size_t>(2 * int64_t{adapter->num_layers_} * adapter->num_experts_));
    auto& modules =
        place.expert >= 0
            ? adapter->expert_modules_[static_cast<size_t>(
                  adapter->expert_product_index(place.layer, place.expert, is_down))]
            : adapter->modules_[static_cast<size_t>(adapted_product_index(place.layer, target.projection))];
    for (const LoraModule& other : modules)
      if (other.out_column == target.out_column) return data_loss("module " + module + " is there twice");
    added.out_column = target.out_column;
    added.b_rows = target.rows;
    modules.push_back(added);
    added.is_first = false;
  }
  return {};
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
  for (const std::string& module : places_.linear_modules()) {
    const std::string name = gguf_tensor_name(module + ".weight", architecture).value_or("");
    if (!placed.insert(name + ".lora_a").second || !placed.insert(name + ".lora_b").second) continue;
    LLMB_RETURN_IF_ERROR(add_gguf_module(file, name, architecture.is_rope_interleaved, module, adapter));
  }
  for (const GgufTensor& tensor : file.tensors())
    if (!placed.contains(std::string(tensor.name)))
      return unsupported(
          "tensor " + std::string(tensor.name) +
          ": only lora_a and lora_b of attention's and a dense MLP's projections and of output are computed");
  return {};
}

Status LoraReader::add_gguf_module(const GgufFile& file, const std::string& name, bool is_rope_interleaved,
                                   const std::string& module, LoraAdapter* adapter) const {
  const GgufTensor *const a = file.tensor(name + ".lora_a"), *const b = file.tensor(name + ".lora_b");
  if (a == nullptr && b == nullptr) return {};
  if (a == nullptr || b == nullptr) return data_loss("tensor " + name + (a ? ".lora_b" : ".lora_a") + " is missing");
  LLMB_ASSIGN_OR_RETURN(LoraPlace place, places_.find(module));
  if (!places_.is_common(place))
    return unsupported("tensor " + name + ".lora_a: of a layer with a state, of a router and of the expert that all tokens "
                       "go through only PEFT's files are computed");
  LoraModule added;
  const int64_t rank = a->shape.size() == 2 ? a->shape[0] : 0;
  if (rank < 1 || rank > kMaxLoraRank) return invalid_argument("tensor " + name + ".lora_a: expected a rank of 1 to 256");
  LLMB_ASSIGN_OR_RETURN(added.a, gguf_lora_view(*a, {rank, place.in_features}));
  LLMB_ASSIGN_OR_RETURN(added.b, gguf_lora_view(*b, {place.out_features, rank}));
  // As llama.cpp: no alpha is a scale of 1.
  const double alpha = file.number("adapter.lora.alpha").value_or(0);
  if (!(std::fabs(alpha) <= 1e6)) return invalid_argument("adapter.lora.alpha is out of range");
  added.scale = alpha == 0 ? 1.0F : static_cast<float>(alpha / static_cast<double>(rank));
  const bool is_rotated = module.ends_with("self_attn.q_proj") || module.ends_with("self_attn.k_proj");
  if (is_rope_interleaved && is_rotated && !names_.is_interleaved)  // else LoraPlaces did it
    for (int64_t row = 0; row < place.out_features; ++row)
      place.targets[0].rows.push_back(static_cast<int32_t>(gguf_interleaved_row(row, model_)));
  return keep(module, place, std::move(added), adapter);
}

Result<LoraAdapter> LoraAdapter::open(const std::string& path, const ModelConfig& model) {
  const Architecture* const architecture = find_architecture(model.model_type);
  LLMB_CHECK_MSG(architecture != nullptr, model.model_type);
  return LoraReader(path, model, *architecture).open();
}

template <typename Function>
void LoraAdapter::for_each_module(const Function& f) const {
  if (embedding_) f(*embedding_);
  for (const LoraModule& m : stacked_) f(m);
  for (const auto* lists : {&modules_, &expert_modules_})
    for (const auto& list : *lists)
      for (const LoraModule& m : list) f(m);
}

Status LoraAdapter::check_values() const {
  Status status;
  for_each_module([&](const LoraModule& m) {
    if (status.ok() && m.is_first && !(is_all_finite(m.a) && is_all_finite(m.b)))
      status = data_loss(m.name + ": holds a value that is not finite");
  });
  LLMB_RETURN_IF_ERROR(status);
  return still_readable();
}

Status LoraAdapter::check_base_tables(const std::string& model_dir) const {
  if (base_tables_.empty()) return {};
  const auto model = Checkpoint::open(model_dir);
  if (!model.ok())
    return unsupported("it holds weights of the model, which cannot be compared with " + model_dir + ": " +
                       model.status().message());
  std::vector<float> expected, row;
  for (const BaseTable& table : base_tables_) {
    const auto name = std::find_if(table.names.begin(), table.names.end(), [&](auto& n) { return model->find(n); });
    if (name == table.names.end()) return invalid_argument(model_dir + " has no tensor " + table.names.front());
    const std::vector<int64_t> shape = {table.values.rows, table.values.cols};
    LLMB_ASSIGN_OR_RETURN(const TensorView base, model->tensor(*name, shape));
    expected.resize(static_cast<size_t>(base.cols)), row.resize(expected.size());
    for (int64_t i = 0; i < base.rows; ++i) {
      read_floats(base, i, expected.data());
      read_floats(table.values, i, row.data());
      if (row != expected)
        return unsupported("its " + *name + " is another than the model's from row " + std::to_string(i) +
                           " on: trained rows of the vocabulary are not computed");
    }
  }
  return {};
}

Status LoraAdapter::still_readable() const {
  if (gguf_) return gguf_->still_readable();
  for (const MappedFile& file : checkpoint_->files()) LLMB_RETURN_IF_ERROR(file.still_readable());
  return {};
}

int64_t LoraAdapter::num_modules() const {
  int64_t count = 0;
  for_each_module([&](const LoraModule& m) { count += m.is_first ? 1 : 0; });
  return count;
}

int64_t LoraAdapter::num_parameters() const {
  int64_t count = 0;
  for_each_module([&](const LoraModule& m) {
    if (m.is_first) count += m.a.rows * m.a.cols + m.b.rows * m.b.cols;
  });
  return count;
}

int64_t LoraAdapter::max_rank() const {
  int64_t rank = embedding_ ? embedding_->rank() : 0;
  for (const auto* lists : {&modules_, &expert_modules_})
    for (const auto& list : *lists)
      for (const LoraModule& m : list) rank = std::max(rank, m.rank());
  return rank;
}

}  // namespace llmb
