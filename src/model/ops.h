// The narrow set of operations that the forward pass is written over. A backend implements them for its device; every
// op has the same name in kernels/cpu and kernels/cuda.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "core/activation.h"
#include "core/model_config.h"
#include "core/pooling.h"
#include "core/tensor_view.h"
#include "core/types.h"
#include "model/adapted_products.h"

namespace llmb {

// A weight matrix in whatever form a backend keeps it (packed, quantised), with its optional bias.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  virtual int64_t resident_bytes() const = 0;
};

// A matrix for each head.
using HeadWeights = std::span<const std::unique_ptr<LinearWeight>>;

// The experts of one layer, in whatever form a backend keeps them.
class ExpertsWeight {
 public:
  virtual ~ExpertsWeight() = default;
  virtual int64_t resident_bytes() const = 0;
};

// A view of matrix rows in a backend's memory: [any, width], row-major, elements of `dtype`. Owns nothing.
struct Rows {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t width = 0;

  Rows from(int64_t row) const {
    return {data == nullptr ? nullptr : static_cast<char*>(data) + row * width * dtype_bytes(dtype), dtype, width};
  }
};

// Rows that are owned; freed on destruction.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual Rows rows() const = 0;
  virtual int64_t resident_bytes() const = 0;
};

// The use of a weight matrix, which decides whether it may be quantised.
enum class WeightRole {
  kProjection,  // of a layer: multiplied with every token
  kPartialSum,  // the same, of which each rank has some columns: what they give is summed over ranks
  kVocabulary,  // embedding or LM head, or both
  kSmall,       // routers and learned positions: little memory, and much hangs on them
};

// Takes weights while they are loaded.
class WeightMaker {
 public:
  virtual ~WeightMaker() = default;

  // A weight of the rows of `parts` stacked in order (q, k and v; gate and up); `biases` is empty or one vector a part.
  // The views may go away after the call.
  virtual std::unique_ptr<LinearWeight> make_linear(std::span<const TensorView> parts,
                                                    std::span<const TensorView> biases, WeightRole role) = 0;
  // Whether rows of kVocabulary are rounded, each by its largest magnitude. Then columns [first, first + count) of such a
  // weight, whose whole rows `parts` has, are what they are in all of it.
  virtual bool rounds_rows_of_tables() const { return false; }
  virtual std::unique_ptr<LinearWeight> make_table_columns(std::span<const TensorView> parts, int64_t first,
                                                           int64_t count) {
    static_cast<void>(parts), static_cast<void>(first), static_cast<void>(count);
    LLMB_CHECK_MSG(false, "this maker rounds no tables");
  }
  // Expert i is gate_up[i] ([2 * intermediate_size, hidden_size]) and down[i] ([hidden_size, intermediate_size]).
  virtual std::unique_ptr<ExpertsWeight> make_experts(std::vector<std::unique_ptr<LinearWeight>> gate_up,
                                                      std::vector<std::unique_ptr<LinearWeight>> down) = 0;
  virtual std::unique_ptr<DeviceBuffer> make_vector(const TensorView& values) = 0;  // one row, converted to fp32
};

// Calls are queued in order, and one thread makes them. The residual stream, logits and vectors are fp32, every other
// activation is activation_dtype(). The backend that owns the ops tells them which step is in progress: the ops that
// need tokens, positions, slots, block tables or sample rows take them from its plan. Counts of rows may be padded
// beyond the plan's; what is computed for such rows is never looked at.
class Ops : public WeightMaker {
 public:
  virtual DType activation_dtype() const = 0;

  virtual std::unique_ptr<DeviceBuffer> allocate(int64_t rows, int64_t width, DType dtype) = 0;  // zeroed

  // out[i] = table[tokens[i]]
  virtual void embedding(const LinearWeight& table,    // [vocab_size, hidden_size]
                         int64_t rows, Rows out) = 0;  // [rows, hidden_size] fp32

  // residual[i] += table[positions[i]]
  virtual void add_positions(const LinearWeight& table,         // [max_position_embeddings, hidden_size]
                             int64_t rows, Rows residual) = 0;  // [rows, hidden_size] fp32  in and out

  // residual += factor * delta (no data: nothing is added); out = residual, rounded (no data: not wanted)
  virtual void add(Rows residual,  // [rows, hidden_size] fp32  in and out
                   Rows delta,     // [rows, hidden_size]
                   float factor, int64_t rows,
                   Rows out) = 0;  // [rows, hidden_size]

  // x += factor * y, of y's columns from first_column on
  virtual void add_columns(Rows x,  // [rows, width] fp32  in and out
                           Rows y,  // [rows, any]
                           int64_t first_column, float factor, int64_t rows) = 0;

  // residual += delta (no data: nothing is added); out = residual / rms(residual) * weight
  virtual void add_rms_norm(Rows residual,               // [rows, hidden_size] fp32  in and out
                            Rows delta,                  // [rows, hidden_size]
                            const DeviceBuffer& weight,  // [hidden_size]
                            float eps, int64_t rows,
                            Rows out) = 0;  // [rows, hidden_size]

  // residual += delta (no data: nothing is added); out = (residual - mean) / stddev * weight + bias
  virtual void add_layer_norm(Rows residual,               // [rows, hidden_size] fp32  in and out
                              Rows delta,                  // [rows, hidden_size]
                              const DeviceBuffer& weight,  // [hidden_size]
                              const DeviceBuffer* bias,    // [hidden_size]  null: none
                              float eps, int64_t rows,
                              Rows out) = 0;  // [rows, hidden_size]  or the residual itself

  // For each of num_groups groups of neighbouring columns from first_column on, each as wide as the weight:
  // group = group / rms(group) * weight
  virtual void rms_norm_groups(Rows x,  // [rows, any]  in and out
                               int64_t first_column, int64_t num_groups,
                               const DeviceBuffer& weight,  // [width of a group]
                               float eps, int64_t rows) = 0;

  // The same for one group, of which each rank has some columns, or for the one of num_groups that this rank has columns
  // of, where equally many neighbours have some of each. As many groups as ranks, or more: this one has all of a group.
  virtual void rms_norm_over_ranks(Rows x,  // [rows, any]  in and out
                                   int64_t first_column, int64_t /*num_groups*/,
                                   const DeviceBuffer& weight,  // [width of this rank's columns]
                                   float eps, int64_t rows) {
    rms_norm_groups(x, first_column, 1, weight, eps, rows);
  }

  // rms_norm_groups with LayerNorm, by a weight for each group: group = (group - mean) / stddev * weight + bias
  virtual void layer_norm_groups(Rows x,  // [rows, any]  in and out
                                 int64_t first_column, int64_t num_groups,
                                 const DeviceBuffer& weight,  // [num_groups * width of a group]
                                 const DeviceBuffer* bias,    // [num_groups * width of a group]  null: none
                                 float eps, int64_t rows) = 0;

  // out = x · weightᵀ + bias
  virtual void linear(const LinearWeight& weight,  // [out_features, in_features], with its optional bias
                      Rows x,                      // [rows, in_features]
                      int64_t rows,
                      Rows out) = 0;  // [rows, out_features]  of activation_dtype(), or fp32

  // Whether rows of the step in progress have adapters. Where none has, the ops behind this one need not be called.
  virtual bool has_adapters() const { return false; }
  // out += scale * B (A x) for each row that has an adapter with such matrices for this product
  virtual void lora(const AdaptedProduct& product,
                    Rows x,  // [rows, in_features]  what the weight was multiplied with
                    int64_t rows,
                    Rows out) {  // [rows, out_features]  in and out
    static_cast<void>(product), static_cast<void>(x), static_cast<void>(rows), static_cast<void>(out);
    LLMB_CHECK_MSG(false, "this backend has no adapters");
  }
  // linear and lora in turn.
  virtual void adapted_linear(const AdaptedProduct& product, const LinearWeight& weight, Rows x, int64_t rows,
                              Rows out) {
    linear(weight, x, rows, out);
    lora(product, x, rows, out);
  }
  // adapted_linear and activate in turn; `between` is written or not.
  virtual void adapted_linear_activate(const AdaptedProduct& product, const LinearWeight& weight,
                                       const ActivationSpec& spec, Rows x, int64_t rows,
                                       Rows between,  // [rows, out_features]
                                       Rows out) {    // [rows, intermediate_size]
    adapted_linear(product, weight, x, rows, between);
    activate(spec, between, rows, out);
  }

  // out[i] += scale * B A[tokens[i]] for each row that has an adapter of the embedding
  virtual void lora_embedding(int64_t rows, Rows out) {  // [rows, hidden_size] fp32  in and out
    static_cast<void>(rows), static_cast<void>(out);
    LLMB_CHECK_MSG(false, "this backend has no adapters");
  }

  // q grows with its position: config.query_growth.
  virtual void grow_queries(int64_t rows,
                            Rows qkv) = 0;  // [rows, q_size + 2 * kv_size]  in and out

  // Rotates q by its positions, as the layer's rope says; stores rotated k, and v, into the layer's KV slots. Sizes are
  // the layer's: without keys and values of its own there is only q, with latents there is no v.
  virtual void rope_and_kv_write(int32_t layer, int64_t rows,
                                 Rows qkv) = 0;  // [rows, q_size + 2 * kv_size]  q is rotated in place

  // Attention of each new token over its sequence's cached context, through block tables, as the config says: causal or
  // an encoder's, scale, window, softcap, ALiBi.
  virtual void paged_attention(int32_t layer,
                               Rows qkv,                   // [num_tokens, qkv_size]  the q part is read
                               const DeviceBuffer* sinks,  // [num_heads]  a further score whose value is 0; null: none
                               Rows out) = 0;              // [num_tokens, gathered_size]

  // Latent attention (LatentConfig). Of each row: every head's query as long as a latent key, its rotated channels
  // first, then its others times the head's matrix; behind them the latent key itself.
  virtual void join_latents(HeadWeights heads,  // [num_heads] of [rank, key_dim]
                            Rows queries,       // [rows, num_heads * query_dim]  of a head: key_dim, then rope_dim
                            Rows latents,       // [rows, head_dim]
                            int64_t rows,
                            Rows qkv) {  // [rows, (num_heads + 1) * head_dim]
    static_cast<void>(heads), static_cast<void>(queries), static_cast<void>(latents), static_cast<void>(rows);
    static_cast<void>(qkv);
    LLMB_CHECK_MSG(false, "this backend has no latents");
  }
  // Each head's value, of what it gathered of the latents.
  virtual void expand_values(HeadWeights heads,  // [num_heads] of [value_dim, rank]
                             Rows gathered,      // [rows, num_heads * rank]
                             int64_t rows,
                             Rows out) {  // [rows, num_heads * value_dim]
    static_cast<void>(heads), static_cast<void>(gathered), static_cast<void>(rows), static_cast<void>(out);
    LLMB_CHECK_MSG(false, "this backend has no latents");
  }
  // Attention and values at once, of prompts whose latents a backend expands to keys and values of every head; the two
  // ops above then leave these rows alone, and so does paged_attention. Most backends expand none.
  virtual void expanded_attention(int32_t layer, HeadWeights key_heads, HeadWeights value_heads,
                                  Rows queries,  // [num_tokens, num_heads * query_dim]  clobbered
                                  Rows qkv,      // [num_tokens, (num_heads + 1) * head_dim]  with rotated channels
                                  Rows out) {    // [num_tokens, num_heads * value_dim]
    static_cast<void>(layer), static_cast<void>(key_heads), static_cast<void>(value_heads), static_cast<void>(queries);
    static_cast<void>(qkv), static_cast<void>(out);
  }

  // out = f(gate) * up, or f(x)
  virtual void activate(const ActivationSpec& spec,
                        Rows x,  // [rows, 2 * intermediate_size] gate first, or [rows, intermediate_size]
                        int64_t rows,
                        Rows out) = 0;  // [rows, intermediate_size]
  // out[i] = f(x[i]) * y[i], of y's columns from first_column on
  virtual void activate_times(Activation kind,
                              Rows x,  // [rows, width]
                              Rows y,  // [rows, any] fp32
                              int64_t first_column, int64_t rows,
                              Rows out) = 0;  // [rows, width]
  // linear and activate in turn; `between` is written or not.
  virtual void linear_activate(const LinearWeight& weight, const ActivationSpec& spec, Rows x, int64_t rows,
                               Rows between,  // [rows, out_features]
                               Rows out) {
    linear(weight, x, rows, between);
    activate(spec, between, rows, out);
  }

  // out = sum over the experts that `config` chooses by the logits of weight * expert(x), in order of experts; rows may
  // have adapters of these. product: of the layer's experts, any one
  virtual void mix_experts(const AdaptedProduct& product, const ExpertsWeight& experts, const ExpertsConfig& config,
                           const ActivationSpec& spec,
                           Rows router_logits,               // [rows, num_experts] fp32
                           const DeviceBuffer* choice_bias,  // [num_experts]  null: none
                           const DeviceBuffer* scales,       // [num_experts]  of their weights; null: none
                           Rows x,                           // [rows, hidden_size]
                           int64_t rows,
                           Rows out) = 0;  // [rows, hidden_size]

  // x += e(gate) * y, e the logistic function; without data in gate x += y
  virtual void add_gated(Rows x,     // [rows, width]  in and out
                         Rows y,     // [rows, width]
                         Rows gate,  // [rows, 1] fp32
                         int64_t rows) = 0;

  // x = x * f(gate)
  virtual void multiply_by_gate(GateKind kind,
                                Rows x,     // [rows, width]  in and out
                                Rows gate,  // [rows, width]
                                int64_t rows) {
    static_cast<void>(kind), static_cast<void>(x), static_cast<void>(gate), static_cast<void>(rows);
    LLMB_CHECK_MSG(false, "this backend has no gates");
  }

  // Layers with a recurrent state, of which a step's entries name the slots (core/state_layout.h). A short convolution
  // of each channel over its sequence's newest tokens; then SiLU, but for StateKind::kShortConv.
  virtual void causal_conv(int32_t layer, Rows x,       // [num_tokens, channels]
                           const DeviceBuffer& weight,  // [width * channels]  the newest token's last
                           const DeviceBuffer* bias,    // [channels]  null: none
                           Rows out) {                  // [num_tokens, channels]
    static_cast<void>(layer), static_cast<void>(x), static_cast<void>(weight), static_cast<void>(bias);
    static_cast<void>(out);
    LLMB_CHECK_MSG(false, "this backend has no states");
  }
  // Each token's keys and values enter its sequence's state, and its queries read it (kernels/cpu/update_states.h).
  virtual void update_states(int32_t layer,
                             Rows qkv,                     // [num_tokens, conv_channels]
                             Rows gates,                   // [num_tokens, gates_size] fp32
                             const DeviceBuffer& log_a,    // [num_value_heads]
                             const DeviceBuffer& dt_bias,  // [num_value_heads]
                             const DeviceBuffer* skip,     // [num_value_heads]  null: none
                             Rows out) {                   // [num_tokens, num_value_heads * value_dim]
    static_cast<void>(layer), static_cast<void>(qkv), static_cast<void>(gates), static_cast<void>(log_a);
    static_cast<void>(dt_bias), static_cast<void>(skip), static_cast<void>(out);
    LLMB_CHECK_MSG(false, "this backend has no states");
  }

  // x = factor * x
  virtual void scale(Rows x,  // [rows, any] fp32  in and out
                     float factor, int64_t rows) = 0;

  // residual = factor * (residual + delta)
  virtual void add_scaled(Rows residual,               // [rows, hidden_size] fp32  in and out
                          Rows delta,                  // [rows, hidden_size]
                          const DeviceBuffer& factor,  // [1]
                          int64_t rows) = 0;

  // Ranks may each add a part of the rows of sums over ranks to a residual stream, and norm these (sequence parallel):
  // what add() and the norms give is whole, a residual that had a sum added to it is so behind this call. A rank goes on
  // with its own rows in the next stage of layers, which need not be whole for that.
  virtual void complete_rows(Rows residual,  // [rows, hidden_size] fp32  in and out
                             int64_t rows) {
    static_cast<void>(residual), static_cast<void>(rows);
  }

  // x = cap * tanh(x / cap)
  virtual void softcap(Rows x,  // [rows, any] fp32  in and out
                       float cap, int64_t rows) = 0;

  // x = min(max(x, -limit), limit)
  virtual void clamp(Rows x,  // [rows, any]  in and out
                     float limit, int64_t rows) = 0;

  // To the step's end there are only rows that what is sampled depends on, where the layers that follow have no keys and
  // values of their own: the last row of each entry, and those from its first sampled one on. How many; none: all stay.
  virtual std::optional<int64_t> narrow_step() { return std::nullopt; }
  // Moves them to the front.
  virtual void keep_rows(Rows x) {  // [num_tokens, any]  in and out
    static_cast<void>(x);
    LLMB_CHECK_MSG(false, "this backend keeps all rows");
  }

  // out[i] = x[sample_rows[i].token_row]
  virtual void gather_sample_rows(Rows x,  // [num_tokens, width]
                                  int64_t num_samples,
                                  Rows out) = 0;  // [num_samples, width]

  // residual[i] += table[type], 1 for a token of the second of two texts (StepEntry::second_text), else 0. This and the
  // next two: of backends that pool (LoadOptions::pooling).
  virtual void add_token_types(const LinearWeight& table,  // [num_token_types, hidden_size]
                               int64_t rows,
                               Rows residual) {  // [rows, hidden_size] fp32  in and out
    static_cast<void>(table), static_cast<void>(rows), static_cast<void>(residual);
    LLMB_CHECK_MSG(false, "this backend has no token types");
  }

  // out[i] = of the rows of the entry that sample row i is of, the first, or the mean
  virtual void pool_rows(Rows x,  // [num_tokens, width]
                         PoolingKind kind, int64_t num_samples,
                         Rows out) {  // [num_samples, width]  of activation_dtype(), or fp32
    static_cast<void>(x), static_cast<void>(kind), static_cast<void>(num_samples), static_cast<void>(out);
    LLMB_CHECK_MSG(false, "this backend does not pool");
  }

  // Hands out rows in place of tokens, for all sample rows of the plan.
  virtual void give_vectors(Rows x,  // [num_samples, width]  of activation_dtype(), or fp32
                            int64_t num_samples) {
    static_cast<void>(x), static_cast<void>(num_samples);
    LLMB_CHECK_MSG(false, "this backend gives no vectors");
  }

  // For a layer behind the last one (MtpConfig). Keeps each row's hidden state in its slot; gives each row that of the
  // slot before its own, in a tree its parent's, zeros for a sequence's first token.
  virtual void store_hidden(Rows x, int64_t rows) {  // [rows, hidden_size]
    static_cast<void>(x), static_cast<void>(rows);
    LLMB_CHECK_MSG(false, "this backend keeps no hidden states");
  }
  virtual void previous_hidden(int64_t rows, Rows out) {  // [rows, hidden_size] fp32
    static_cast<void>(rows), static_cast<void>(out);
    LLMB_CHECK_MSG(false, "this backend keeps no hidden states");
  }
  // For a head that knows some tokens alone: to[tokens[i]] = from[i] in each row, and elsewhere -1e30, which no token has.
  virtual void spread_logits(Rows from,  // [rows, tokens.size()] fp32
                             std::span<const TokenId> tokens, int64_t rows,
                             Rows to) {  // [rows, vocab_size] fp32
    static_cast<void>(from), static_cast<void>(tokens), static_cast<void>(rows), static_cast<void>(to);
    LLMB_CHECK_MSG(false, "this backend spreads no logits");
  }

  // Chooses tokens for the plan's sample rows [first_sample, first_sample + rows). The chunks of a step come in order.
  virtual void sample(Rows logits,  // [rows, vocab_size] fp32  clobbered
                      int64_t first_sample, int64_t rows) = 0;
};

}  // namespace llmb
