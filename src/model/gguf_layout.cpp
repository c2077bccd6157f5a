#include "model/gguf_layout.h"

namespace llmb {

namespace {

// Value heads in the file's order: all that have the first place beside their key head, then all that have the second.
// Where value heads and key heads are as many, this is the order of the checkpoint.
std::function<int64_t(int64_t)> turned_heads(const StateConfig& s, int64_t first, int64_t width) {
  const int64_t keys = s.num_key_heads, group = s.num_value_heads / keys;
  return [=](int64_t row) {
    if (row < first) return row;
    const int64_t head = (row - first) / width, in_head = (row - first) % width;
    return first + (head % group * keys + head / group) * width + in_head;
  };
}

// Qwen 3 Next's rates and decays in one: for each key head those of its value heads, rates first.
GgufLayout gates_of_both(const StateConfig& s, bool are_decays) {
  const int64_t group = s.num_value_heads / s.num_key_heads, first = are_decays ? group : 0;
  GgufLayout layout;
  layout.stored_rows = 2 * int64_t{s.num_value_heads};
  layout.row = [=](int64_t row) { return row / group * 2 * group + first + row % group; };
  return layout;
}

GgufLayout delta_layout(std::string_view part, const GgufArchitecture& architecture, const StateConfig& s) {
  GgufLayout layout;
  if (part == "A_log") layout.value = GgufLayout::Value::kLogOfNegated;
  if (s.num_key_heads < 1 || s.num_value_heads < s.num_key_heads) return layout;
  const bool is_next = std::string_view(architecture.name) == "qwen3next";
  if (is_next && part.starts_with("in_proj_b.")) return gates_of_both(s, false);
  if (is_next && part.starts_with("in_proj_a.")) return gates_of_both(s, true);
  if (is_next || s.num_value_heads == s.num_key_heads) return layout;
  const int64_t width = s.value_dim;
  if (part.starts_with("in_proj_qkv.") || part.starts_with("conv1d."))
    layout.row = turned_heads(s, 2 * s.keys_size(), width);
  else if (part.starts_with("in_proj_z.")) layout.row = turned_heads(s, 0, width);
  else if (part.starts_with("in_proj_b.") || part.starts_with("in_proj_a.") || part == "A_log" || part == "dt_bias")
    layout.row = turned_heads(s, 0, 1);
  else if (part.starts_with("out_proj.")) layout.piece = turned_heads(s, 0, 1), layout.piece_cols = width;
  return layout;
}

bool is_of_q_or_k(std::string_view name, std::string_view part) {
  const std::string q = ".self_attn.q_" + std::string(part), k = ".self_attn.k_" + std::string(part);
  return name.find(q) != name.npos || name.find(k) != name.npos;
}

}  // namespace

GgufLayout gguf_layout(std::string_view name, std::string_view stored, bool is_vector,
                       const GgufArchitecture& architecture, const ModelConfig& config) {
  constexpr std::string_view kDelta = ".linear_attn.";
  GgufLayout layout;
  const bool is_norm = is_of_q_or_k(name, "norm.") && !is_vector;
  if (architecture.is_rope_interleaved && (is_of_q_or_k(name, "proj.") || is_norm)) {
    layout.row = [&config](int64_t row) { return gguf_interleaved_row(row, config); };
    layout.moves_numbers = is_norm;
  }
  if (const size_t at = name.find(kDelta); at != name.npos)
    layout = delta_layout(name.substr(at + kDelta.size()), architecture, config.state);
  else if (name.ends_with(".A_log")) layout.value = GgufLayout::Value::kLogOfNegated;
  if (architecture.has_norms_plus_one && stored.ends_with("norm.weight") && !stored.ends_with(".ssm_norm.weight"))
    layout.value = GgufLayout::Value::kMinusOne;
  return layout;
}

}  // namespace llmb
