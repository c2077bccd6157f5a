// The tensors of a GGUF file under the names of a Hugging Face checkpoint.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/float_formats.h"
#include "core/block_format.h"
#include "core/block_scales.h"
#include "formats/safetensors.h"
#include "model/gguf_dequantise.h"
#include "model/gguf_model.h"

namespace llmb {

namespace {

struct Rename {
  std::string_view from, to;
};

// Prefixes of the names of all tensors but the head, and of the index of a layer.
constexpr std::string_view kPrefixes[] = {"model.", "transformer.", "gpt_neox."};
constexpr std::string_view kLayers[] = {"layers.", "h.", "blocks."};

constexpr Rename kModelNames[] = {{"embed_tokens.", "token_embd."}, {"wte.", "token_embd."},
                                  {"embed_in.", "token_embd."},     {"word_embeddings.", "token_embd."},
                                  {"wpe.", "position_embd."},       {"word_embeddings_layernorm.", "token_embd_norm."},
                                  {"norm.", "output_norm."},        {"ln_f.", "output_norm."},
                                  {"norm_f.", "output_norm."},      {"final_layer_norm.", "output_norm."},
                                  {"final_layernorm.", "output_norm."}};

constexpr Rename kHeadNames[] = {{"lm_head.", "output."}, {"embed_out.", "output."}};

constexpr Rename kLayerNames[] = {{"input_layernorm.", "attn_norm."},
                                  {"self_attn.q_proj.", "attn_q."},
                                  {"self_attn.k_proj.", "attn_k."},
                                  {"self_attn.v_proj.", "attn_v."},
                                  {"self_attn.o_proj.", "attn_output."},
                                  {"self_attn.qkv_proj.", "attn_qkv."},
                                  {"self_attn.q_norm.", "attn_q_norm."},
                                  {"self_attn.k_norm.", "attn_k_norm."},
                                  {"mlp.gate_proj.", "ffn_gate."},
                                  {"mlp.up_proj.", "ffn_up."},
                                  {"mlp.down_proj.", "ffn_down."},
                                  {"mlp.gate_up_proj.", "ffn_up."},
                                  {"mlp.c_fc.", "ffn_up."},
                                  {"mlp.c_proj.", "ffn_down."},
                                  {"pre_feedforward_layernorm.", "ffn_norm."},
                                  {"post_feedforward_layernorm.", "post_ffw_norm."},
                                  {"self_attn.sinks", "attn_sinks.weight"},
                                  {"ln_1.", "attn_norm."},
                                  {"norm_1.", "attn_norm."},
                                  {"ln_attn.", "attn_norm_2."},
                                  {"ln_mlp.", "attn_norm."},
                                  {"attn.c_attn.", "attn_qkv."},
                                  {"attn.Wqkv.", "attn_qkv."},
                                  {"attention.query_key_value.", "attn_qkv."},
                                  {"self_attention.query_key_value.", "attn_qkv."},
                                  {"attn.c_proj.", "attn_output."},
                                  {"attn.out_proj.", "attn_output."},
                                  {"attention.dense.", "attn_output."},
                                  {"self_attention.dense.", "attn_output."},
                                  {"ln_2.", "ffn_norm."},
                                  {"norm_2.", "ffn_norm."},
                                  {"mlp.dense_h_to_4h.", "ffn_up."},
                                  {"mlp.dense_4h_to_h.", "ffn_down."},
                                  {"ffn.up_proj.", "ffn_up."},
                                  {"ffn.down_proj.", "ffn_down."},
                                  {"self_attn.q_a_proj.", "attn_q_a."},
                                  {"self_attn.q_a_layernorm.", "attn_q_a_norm."},
                                  {"self_attn.q_b_proj.", "attn_q_b."},
                                  {"self_attn.kv_a_proj_with_mqa.", "attn_kv_a_mqa."},
                                  {"self_attn.kv_a_layernorm.", "attn_kv_a_norm."},
                                  {"self_attn.k_b_proj.", "attn_k_b."},
                                  {"self_attn.v_b_proj.", "attn_v_b."},
                                  {"mlp.shared_experts.gate_proj.", "ffn_gate_shexp."},
                                  {"mlp.shared_experts.up_proj.", "ffn_up_shexp."},
                                  {"mlp.shared_experts.down_proj.", "ffn_down_shexp."},
                                  {"mlp.shared_expert.gate_proj.", "ffn_gate_shexp."},
                                  {"mlp.shared_expert.up_proj.", "ffn_up_shexp."},
                                  {"mlp.shared_expert.down_proj.", "ffn_down_shexp."},
                                  {"mlp.shared_expert_gate.", "ffn_gate_inp_shexp."},
                                  {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
                                  {"mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias"},
                                  {"mlp.gate.wg.", "ffn_gate_inp."},
                                  {"mlp.gate.", "ffn_gate_inp."},
                                  {"mlp.router.", "ffn_gate_inp."},
                                  {"block_sparse_moe.gate.", "ffn_gate_inp."},
                                  {"block_sparse_moe.router.layer.", "ffn_gate_inp."},
                                  {"feed_forward.router.", "ffn_gate_inp."},
                                  {"post_self_attn_layernorm.", "post_attention_norm."},
                                  {"post_mlp_layernorm.", "post_ffw_norm."},
                                  {"self_attn.query_layernorm.", "attn_q_norm."},
                                  {"self_attn.key_layernorm.", "attn_k_norm."},
                                  {"self_attn.dense.", "attn_output."},
                                  {"mlp.fc1.", "ffn_up."},
                                  {"mlp.fc2.", "ffn_down."},
                                  {"feed_forward.gate_proj.", "ffn_gate."},
                                  {"feed_forward.up_proj.", "ffn_up."},
                                  {"feed_forward.down_proj.", "ffn_down."},
                                  {"mlp.shared_mlp.gate_proj.", "ffn_gate_shexp."},
                                  {"mlp.shared_mlp.up_proj.", "ffn_up_shexp."},
                                  {"mlp.shared_mlp.down_proj.", "ffn_down_shexp."},
                                  {"feed_forward.shared_expert.gate_proj.", "ffn_gate_shexp."},
                                  {"feed_forward.shared_expert.up_proj.", "ffn_up_shexp."},
                                  {"feed_forward.shared_expert.down_proj.", "ffn_down_shexp."},
                                  {"shared_mlp.gate_proj.", "ffn_gate_shexp."},
                                  {"shared_mlp.up_proj.", "ffn_up_shexp."},
                                  {"shared_mlp.output_linear.", "ffn_down_shexp."}};

// Folders of numbered matrices or vectors that are in one tensor of the file; "": kExpertNames say in which.
constexpr Rename kNumbered[] = {{"experts.", ""},
                                {"block_sparse_moe.", ""},
                                {"self_attn.q_layernorm.norms.", "attn_q_norm."},
                                {"self_attn.k_layernorm.norms.", "attn_k_norm."}};

// After "mlp.experts.<index>." or "block_sparse_moe.experts.<index>.": one matrix of a tensor that holds all of them.
constexpr Rename kExpertNames[] = {{"gate_proj.", "ffn_gate_exps."}, {"up_proj.", "ffn_up_exps."},
                                   {"down_proj.", "ffn_down_exps."}, {"w1.", "ffn_gate_exps."},
                                   {"w3.", "ffn_up_exps."},          {"w2.", "ffn_down_exps."}};

// Where a tensor stands in the file.
struct Place {
  std::string name;
  std::optional<int64_t> index;  // of a matrix in a 3-dimensional tensor, or of a vector in a matrix
};

std::optional<std::string> renamed(std::string_view name, std::span<const Rename> names) {
  for (const Rename& entry : names)
    if (name.starts_with(entry.from)) return std::string(entry.to) + std::string(name.substr(entry.from.size()));
  return std::nullopt;
}

bool remove_one_of(std::span<const std::string_view> prefixes, std::string_view* name) {
  for (const std::string_view prefix : prefixes)
    if (name->starts_with(prefix)) {
      name->remove_prefix(prefix.size());
      return true;
    }
  return false;
}

// "experts.7.up_proj.weight", after what comes before it.
std::optional<Place> numbered_place(std::string_view part) {
  for (const Rename& folder : kNumbered) {
    const size_t at = part.find(folder.from);
    if (at == part.npos) continue;
    const std::string_view rest = part.substr(at + folder.from.size());
    int64_t index = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), index);
    if (error != std::errc() || index < 0 || end == rest.data() + rest.size() || *end != '.') continue;
    const std::string_view member = rest.substr(static_cast<size_t>(end - rest.data()) + 1);
    if (!folder.to.empty()) return Place{std::string(folder.to) + std::string(member), index};
    if (const auto name = renamed(member, kExpertNames)) return Place{*name, index};
  }
  return std::nullopt;
}

// A tensor of the file, or rows of one that holds several tensors, one behind the other.
struct Stored {
  const GgufTensor* tensor = nullptr;
  int64_t first_row = 0, num_rows = 0;  // num_rows: of all of them together; 0: it holds nothing else
};

Stored find_stored(const GgufFile& file, const ModelConfig& config, const std::string& name) {
  if (const GgufTensor* tensor = file.tensor(name)) return {tensor};
  const int64_t q = config.q_size(), kv = config.kv_size(), up = config.experts.intermediate_size;
  const struct {
    std::string_view name, all;
    int64_t first_row, num_rows;
  } parts[] = {{".attn_q.", ".attn_qkv.", 0, q + 2 * kv},
               {".attn_k.", ".attn_qkv.", q, q + 2 * kv},
               {".attn_v.", ".attn_qkv.", q + kv, q + 2 * kv},
               {".ffn_gate_exps.", ".ffn_gate_up_exps.", 0, 2 * up},
               {".ffn_up_exps.", ".ffn_gate_up_exps.", up, 2 * up}};
  for (const auto& part : parts) {
    const size_t at = name.find(part.name);
    if (at == name.npos) continue;
    std::string all = name;
    return {file.tensor(all.replace(at, part.name.size(), part.all)), part.first_row, part.num_rows};
  }
  return {};
}

// "model.layers.7.mlp.up_proj.weight" → "blk.7.ffn_up.weight".
std::optional<Place> find_place(std::string_view name, const GgufArchitecture& architecture) {
  const auto dense = [](std::optional<std::string> found) {
    return found ? std::optional(Place{*found, {}}) : std::nullopt;
  };
  if (!remove_one_of(kPrefixes, &name)) return dense(renamed(name, kHeadNames));
  if (!remove_one_of(kLayers, &name)) return dense(renamed(name, kModelNames));
  const size_t dot = name.find('.');
  if (dot == name.npos) return std::nullopt;
  const std::string_view part = name.substr(dot + 1);
  const Rename after_attention[] = {
      {"post_attention_layernorm.", architecture.has_post_attention_norm ? "post_attention_norm." : "ffn_norm."}};
  std::optional<Place> found = numbered_place(part);
  if (!found) found = dense(renamed(part, after_attention));
  if (!found) found = dense(renamed(part, kLayerNames));
  if (found) found->name = "blk." + std::string(name.substr(0, dot + 1)) + found->name;
  return found;
}

bool is_of_q_or_k(std::string_view name, std::string_view part) {
  const std::string q = ".self_attn.q_" + std::string(part), k = ".self_attn.k_" + std::string(part);
  return name.find(q) != name.npos || name.find(k) != name.npos;
}

// F16 and BF16 as they are; MXFP4 without loss.
DType loaded_dtype(std::string_view type) {
  return type == "F16" ? DType::kF16 : type == "BF16" || type == "MXFP4" ? DType::kBF16 : DType::kF32;
}

void dequantise_row_bf16(const GgufTensorType& type, const uint8_t* row, int64_t cols, uint16_t* out) {
  constexpr int64_t kChunk = 256;
  float values[kChunk];
  for (int64_t col = 0; col < cols; col += kChunk) {
    const int64_t count = std::min(kChunk, cols - col);
    dequantise_row(type, row + col / type.block_size * type.block_bytes, count, values);
    for (int64_t i = 0; i < count; ++i) out[col + i] = f32_to_bf16(values[i]);
  }
}

// kDataLoss: a block's scale is infinite or NaN.
Status check_scales(BlockFormat format, const uint8_t* data, int64_t rows, int64_t cols, const std::string& tensor,
                    ThreadPool& pool) {
  const BlockSize& block = block_size(format);
  const int64_t num_blocks = cols / block.size;
  const int64_t none = rows * num_blocks;
  std::atomic<int64_t> bad{none};  // the first
  pool.parallel_for(rows, [&](int64_t row, int) {
    const int64_t b = first_bad_block(format, data + row * num_blocks * block.bytes, num_blocks);
    const int64_t here = b < num_blocks ? row * num_blocks + b : none;
    int64_t known = bad.load();
    while (here < known && !bad.compare_exchange_weak(known, here)) continue;
  });
  if (bad.load() == none) return {};
  return data_loss(tensor + ": block " + std::to_string(bad.load() % num_blocks) + " of row " +
                   std::to_string(bad.load() / num_blocks) + " (" + block.name +
                   ") has a scale that is not a finite number; the file is damaged, fetch it again");
}

}  // namespace

std::optional<std::string> gguf_tensor_name(const std::string& name, const GgufArchitecture& architecture) {
  const auto place = find_place(name, architecture);
  return place && !place->index ? std::optional(place->name) : std::nullopt;
}

int64_t gguf_interleaved_row(int64_t row, const ModelConfig& config) {
  const int64_t head_dim = config.head_dim, in_head = row % head_dim;
  const int64_t rotary_dim = config.ropes.empty() ? head_dim : config.rotary_dim(config.ropes[0]), half = rotary_dim / 2;
  return in_head >= rotary_dim ? row : row - in_head + in_head % half * 2 + in_head / half;
}

Status check_gguf_tensors(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors())
    if (!can_dequantise(*tensor.type))
      return unsupported(
          "tensor \"" + std::string(tensor.name) + "\" has type " + tensor.type->name +
          ", which is not supported; supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, "
          "Q6_K, IQ4_NL, IQ4_XS, MXFP4");
  return {};
}

GgufSource::GgufSource(const GgufFile& file, const ModelConfig& config, ThreadPool& pool, WeightAccess access,
                       WeightForm form)
    : file_(file),
      config_(config),
      architecture_(*gguf_architecture(file)),
      pool_(pool),
      access_(access),
      form_(form),
      reads_(file.files()) {}

bool GgufSource::has(const std::string& name) const {
  const auto place = find_place(name, architecture_);
  return place && find_stored(file_, config_, place->name).tensor != nullptr;
}

Result<TensorView> GgufSource::tensor(const std::string& name, std::span<const int64_t> shape) {
  const auto place = find_place(name, architecture_);
  if (!place) return unsupported("tensor \"" + name + "\" has no name in a GGUF file");
  const Stored at = find_stored(file_, config_, place->name);
  const GgufTensor* stored = at.tensor;
  if (stored == nullptr)
    return data_loss("tensor \"" + place->name + "\" is missing, expected shape " + shape_string(shape));
  const std::string quoted = "tensor \"" + std::string(stored->name) + "\"";
  std::span<const int64_t> stored_shape = stored->shape;
  const bool is_slice = place->index && stored_shape.size() == shape.size() + 1 && *place->index < stored_shape[0];
  if (is_slice) stored_shape = stored_shape.subspan(1);
  if (shape.size() == 2 && shape[0] == 1 && stored_shape.size() == 1) shape = shape.subspan(1);  // a row, squeezed
  std::vector<int64_t> expected(shape.begin(), shape.end());
  if (at.num_rows > 0) expected[0] = at.num_rows;
  if (place->index.has_value() != is_slice ||
      !std::equal(expected.begin(), expected.end(), stored_shape.begin(), stored_shape.end()))
    return data_loss(quoted + " has shape " + shape_string(stored->shape) + ", expected " +
                     (place->index ? "matrices of shape " : "") + shape_string(expected));

  const bool is_vector = shape.size() == 1;
  const bool is_norm = is_of_q_or_k(name, "norm.");
  const bool is_permuted = architecture_.is_rope_interleaved && (is_of_q_or_k(name, "proj.") || (is_norm && !is_vector));
  const bool has_plus_one = architecture_.has_norms_plus_one && name.ends_with("norm.weight");
  const GgufTensorType& type = *stored->type;
  // Each number of a bias, and of norms of heads, is a row.
  const bool are_rows = (is_vector && (is_permuted || at.num_rows > 0)) || (is_norm && is_permuted);
  if (are_rows && type.block_size != 1)
    return unsupported(quoted + " is a " + (is_norm ? "norm" : "bias") + " of type " + type.name +
                       ", which is not supported");
  int64_t num_rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) num_rows *= shape[i];
  const int64_t rows = are_rows ? num_rows * shape.back() : num_rows, cols = are_rows ? 1 : shape.back();
  const int64_t stored_row_bytes = cols / type.block_size * type.block_bytes;
  const int64_t rows_before = at.first_row + (is_slice ? *place->index * (at.num_rows > 0 ? at.num_rows : rows) : 0);
  const uint8_t* const data = stored->data.data() + rows_before * stored_row_bytes;
  if (access_ == WeightAccess::kValues) reads_.add(data, rows * stored_row_bytes);
  const BlockFormat format = find_block_format(type.name);
  if (access_ == WeightAccess::kValues && format != BlockFormat::kNone)
    LLMB_RETURN_IF_ERROR(check_scales(format, data, rows, cols, quoted, pool_));
  TensorView view = {data, has_plus_one ? DType::kF32 : loaded_dtype(type.name), num_rows, shape.back()};
  if (form_ == WeightForm::kBlocks && !is_vector && !has_plus_one) view.blocks = format;
  const bool keeps_dtype = (type.block_size == 1 || view.blocks != BlockFormat::kNone) && !has_plus_one;
  if (access_ == WeightAccess::kShapes) view.data = nullptr;
  if (access_ == WeightAccess::kShapes || (keeps_dtype && !is_permuted)) return view;

  const int64_t row_bytes = keeps_dtype ? stored_row_bytes : cols * dtype_bytes(view.dtype);
  auto* const out = static_cast<uint8_t*>(buffers_.take(rows * row_bytes));
  pool_.parallel_for(rows, [&](int64_t row, int) {
    const uint8_t* const from = data + (is_permuted ? gguf_interleaved_row(row, config_) : row) * stored_row_bytes;
    uint8_t* const to = out + row * row_bytes;
    if (keeps_dtype) return static_cast<void>(std::memcpy(to, from, row_bytes));
    if (view.dtype == DType::kBF16) return dequantise_row_bf16(type, from, cols, reinterpret_cast<uint16_t*>(to));
    auto* const floats = reinterpret_cast<float*>(to);
    dequantise_row(type, from, cols, floats);
    if (has_plus_one)
      for (int64_t i = 0; i < cols; ++i) floats[i] -= 1;
  });
  view.data = out;
  return view;
}

}  // namespace llmb
