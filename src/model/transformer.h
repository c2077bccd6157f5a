// The forward pass of a transformer, written once over Ops. What is computed follows from the ModelConfig
// alone: norms and where they sit, positions, attention, MLP or experts (Vaswani et al. 2017, arXiv:1706.03762, and
// what the models since have made of it).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/model_config.h"
#include "model/medusa_heads.h"
#include "model/model_weights.h"
#include "model/ops.h"
#include "model/pooling_head.h"

namespace llmb {

// Hands streams from a stage of layers to the next one.
class StageLink {
 public:
  virtual ~StageLink() = default;
  virtual void receive(Rows stream, int64_t rows) = 0;  // [rows, hidden_size]
  virtual void send(Rows stream, int64_t rows) = 0;
};

// Two parts of a step's rows on their way through the layers, so that one part's attention runs beside the other's
// products. What is called of Ops between two calls of this is about the rows of the part that was named last, whose rows
// stand at the beginning of what it is given.
class StepParts {
 public:
  virtual ~StepParts() = default;
  virtual int64_t second_row() const = 0;  // of the step, with which the second part begins
  virtual void begin() = 0;                // behind all that was queued
  virtual void begin_products(int part) = 0;   // behind the part's attention
  virtual void begin_attention(int part) = 0;  // behind the part's products; recurrent states, too
  virtual void join() = 0;                 // behind both parts; calls are about all rows again
};

// One thread drives it. Invariants:
//  1. A sampled token depends on its sequence's tokens and its SampleRow, not on what else is in the plan, as far as
//     each op keeps that promise.
//  2. Memory is allocated before forward() is first called.
class Transformer {
 public:
  // `ops` must outlive the transformer and hold the KV cache. A step has at most max_num_tokens tokens and
  // max_num_samples sample rows. The LM head is read once for as many rows as fit max_logit_bytes, at least one.
  Transformer(const ModelConfig& config, ModelWeights weights, Ops& ops, int64_t max_num_tokens,
              int64_t max_num_samples, int64_t max_logit_bytes);

  // Queues the work of the step in progress: its KV slots are written, its sample rows sampled. The counts are the
  // plan's, or padded beyond them up to the maxima; what is queued depends on nothing else, so that it can be recorded
  // once and replayed. num_layers: of the model, the first ones, and no other's KV slots are written; 0: all.
  void forward(int64_t num_tokens, int64_t num_samples, int32_t num_layers = 0);
  // The same with the layers' work in two parts: each row has the bits that its row alone would have, where ops keep that
  // promise. No product has more rows than a part, and weights are read twice. REQUIRES: all layers are here, tokens are
  // sampled, and neither mtp.is_used nor a bidirectional model
  void forward_in_parts(int64_t num_tokens, int64_t num_samples, int32_t num_layers, StepParts& parts);

  // Its layers, from the model's `first_layer` on, are one of several stages: but for the first one it begins with what
  // the stage before has sent, and but for the last one it ends with sending. A stage behind the first num_layers of
  // forward() hands on what it has received, the last one samples it. `link` outlives this; null: whoever calls forward()
  // does that, before and behind it, with received() and sent(), as what is recorded is the stage's own work.
  void be_stage(int32_t first_layer, bool is_last, StageLink* link);
  // Each [num_tokens, hidden_size], of a step's tokens: the residual stream in fp32; then of those that entered layers
  // where a layer of EAGLE-3's takes them the ones that earlier stages have kept, or this one and earlier ones; then where
  // layers have inputs of their own the embeddings that these are made of.
  std::vector<Rows> received() const { return streams_before(0); }
  std::vector<Rows> sent() const { return streams_before(config_.num_hidden_layers); }

  // forward() ends behind the last norm, of whose output it hands out vectors in place of sampled tokens.
  void give_vectors(PoolingHead head);

  // With heads forward() keeps the hidden states of its sample rows, where it runs all layers.
  void add_heads(std::vector<MedusaHead> heads);
  // Queues the work of a step of heads (StepPlan::hidden_rows): its sample rows are sampled. REQUIRES: add_heads()
  void forward_heads(int64_t num_tokens, int64_t num_samples);

  // Queues the work of a step of the layer behind the last one (StepPlan::is_mtp): its KV slots are written, its sample
  // rows sampled. With it, forward() runs the last layer for all tokens and leaves what this begins with.
  // REQUIRES: mtp.is_used
  void forward_mtp(int64_t num_tokens, int64_t num_samples);

  // Whether forward() may call Ops::narrow_step().
  bool narrows() const { return first_reader() + 1 < config_.num_hidden_layers; }

  const ModelWeights& weights() const { return weights_; }

 private:
  bool is_first_stage() const { return first_layer_ == 0; }
  std::vector<Rows> streams_before(int32_t layer) const;
  void forward_and_send(int64_t num_tokens, int32_t num_layers);
  void sample_received(int64_t num_tokens, int64_t num_samples);
  // The layer from which on none has keys and values of its own, or a state; the last one where it has.
  int32_t first_reader() const;
  // Before that layer: what is left of the step's rows, none where nothing is sampled.
  int64_t narrow(int64_t num_tokens, int64_t num_samples);
  void embed(int64_t num_tokens);
  // The inputs of this stage's layers, of what embedded() has.
  void embed_layer_inputs(int64_t num_tokens);
  Rows embedded() const { return (embedded_ ? embedded_ : normed_)->rows(); }
  // The last norm of all tokens, whose sample rows are sampled; then the layer behind the last one's keys and values.
  void sample_and_remember(int64_t num_tokens, int64_t num_samples, Rows hidden);
  // That layer's input -> residual_ and delta_: of each token and of the hidden state before it.
  void join_previous_hidden(int64_t num_tokens);
  // EAGLE-3's: keeps the residual stream that enters a layer where it is wanted; makes a state of those of a step, -> out;
  // and the layer's q, k and v -> qkv_ and its KV slots, with the state before each token -> residual_.
  void keep_state(int32_t layer, int64_t num_tokens);
  void join_states(int64_t num_tokens, Rows out);
  void write_joined_kv(int64_t num_tokens);
  // Behind the last layer's attention: its other half and the head, for the rows that are sampled.
  void sample_behind(int32_t last, int64_t num_tokens, int64_t num_samples, Rows hidden);
  // All rows up to the attention's weighted values: residual_ and the layer before's delta_ -> attention_, and the
  // layer's KV slots. Of a layer that is an MLP alone: the sum.
  void attend(int32_t layer, int64_t num_tokens);
  // Its three phases (transformer_mixers.cpp): up to the layer's KV slots, or what a state takes; attention alone, or the
  // state; and what follows it.
  void prepare_mixing(int32_t layer, int64_t num_tokens);
  void mix(int32_t layer);
  void finish_mixing(int32_t layer, int64_t num_tokens);
  void write_kv(int32_t layer, int64_t num_tokens);
  void write_latents(int32_t layer, int64_t num_tokens);
  void prepare_state(int32_t layer, int64_t num_tokens);
  void finish_state(int32_t layer, int64_t num_tokens);
  // How wide a layer's rows of attention_ are.
  int64_t mixed_size(int32_t layer) const {
    return config_.layer(layer).has_state ? config_.state.values_size() : config_.o_size_of(layer);
  }
  // A buffer's rows from the first one of the part in progress on.
  Rows part(const std::unique_ptr<DeviceBuffer>& buffer) const { return buffer->rows().from(first_row_); }
  // The same, so wide in the memory of wider ones: rows of the two parts lie apart whichever layers these are in.
  Rows part(const std::unique_ptr<DeviceBuffer>& buffer, int64_t width) const {
    return {part(buffer).data, buffer->rows().dtype, width};
  }
  // The output of a layer's attention or state: of the last layer those of both parts lie one behind the other.
  Rows mixed(int32_t layer) const {
    if (layer != last_in_parts_) return part(attention_, mixed_size(layer));
    const Rows all = attention_->rows();
    return Rows{all.data, all.dtype, mixed_size(layer)}.from(first_row_);
  }
  // The rest of the layer, as far as it has one, for `rows` rows: attention and residual -> residual and delta_, yet to
  // be added.
  void project_and_mlp(int32_t layer, RowKind kind, Rows attention, Rows residual, int64_t rows);
  // Norms of q, k and v, in qkv, that come in front of the rotation.
  void norm_heads(int32_t layer, Rows qkv, int64_t rows);
  // Behind the MLP: what the layer's input of each token adds, and the layer's scalar. Without a buffer there are no
  // such inputs.
  void end_layer(int32_t layer, const std::unique_ptr<DeviceBuffer>& inputs, Rows residual, int64_t rows);
  void mlp(int32_t layer, RowKind kind, Rows residual, int64_t rows);          // normed_, of residual -> delta_
  // normed_ -> out; also the expert that all tokens go through
  void dense_mlp(int32_t layer, RowKind kind, int64_t rows, Rows out);
  void linear(const AdaptedProduct& product, const LinearWeight& weight, Rows x, int64_t rows, Rows out);
  void add_shared_expert(int32_t layer, RowKind kind, int64_t rows);
  // Samples what the last norm gave.
  void sample(Rows hidden, int64_t num_samples, const LinearWeight& lm_head);
  // Makes vectors of the last layer's output, of all tokens or of sample rows alone.
  void pool(Rows residual, int64_t num_rows, int64_t num_samples);
  // The part that a layer has yet to add to the residual.
  Rows pending() const {
    return config_.residual == ResidualKind::kNormedSum || config_.layer_scalars ? Rows() : part(delta_);
  }

  // residual += delta; out = norm(residual). Without delta's data nothing is added, without a norm out is residual.
  void add_norm(Rows residual, Rows delta, const NormWeights& norm, int64_t rows, Rows out);
  void post_norm(Rows x, const NormWeights& norm, int64_t rows);

  const ModelConfig config_;
  const ModelWeights weights_;
  Ops& ops_;
  const float eps_;
  const int64_t max_num_tokens_, max_num_samples_;
  const int64_t max_logit_rows_;
  std::unique_ptr<DeviceBuffer> residual_;           // [max_num_tokens, hidden_size] fp32  the running sum
  std::unique_ptr<DeviceBuffer> normed_;             // [max_rows, hidden_size]
  std::unique_ptr<DeviceBuffer> delta_;              // [max_rows, hidden_size]  what a sublayer adds to residual_
  std::unique_ptr<DeviceBuffer> qkv_;                // [max_num_tokens, qkv_size], or conv_channels if more
  std::unique_ptr<DeviceBuffer> attention_;          // [max_num_tokens, mixed_size]
  // With latents:
  std::unique_ptr<DeviceBuffer> queries_;        // [max_num_tokens, num_heads * query_dim]
  std::unique_ptr<DeviceBuffer> short_queries_;  // [max_num_tokens, query_rank], or null
  std::unique_ptr<DeviceBuffer> latents_;        // [max_num_tokens, head_dim]
  std::unique_ptr<DeviceBuffer> gathered_;       // [max_num_tokens, gathered_size]

  std::unique_ptr<DeviceBuffer> mixed_gate_;         // [max_num_tokens, mixed_size], or null
  std::unique_ptr<DeviceBuffer> convolved_;          // [max_num_tokens, conv_channels], or null
  std::unique_ptr<DeviceBuffer> state_gates_;        // [max_num_tokens, gates_size] fp32, or null
  std::unique_ptr<DeviceBuffer> gate_up_;            // [max_rows, 2 * intermediate_size], or half as wide
  std::unique_ptr<DeviceBuffer> activated_;          // [max_rows, intermediate_size]
  std::unique_ptr<DeviceBuffer> router_logits_;      // [max_rows, num_experts] fp32, or null
  std::unique_ptr<DeviceBuffer> shared_;             // [max_rows, hidden_size], or null
  std::unique_ptr<DeviceBuffer> shared_gates_;       // [max_rows, 1] fp32, or null
  std::unique_ptr<DeviceBuffer> logits_;             // [max_logit_rows, vocab_size] fp32
  std::unique_ptr<DeviceBuffer> sampled_residual_;   // [max_num_samples, hidden_size] fp32
  std::unique_ptr<DeviceBuffer> sampled_attention_;  // [max_num_samples, mixed_size]
  // Where layers have inputs of their own:
  std::unique_ptr<DeviceBuffer> layer_inputs_;      // [max_num_tokens, num_layers * hidden_size_per_layer_input] fp32
  std::unique_ptr<DeviceBuffer> projected_inputs_;  // [max_num_tokens, … of all stages' layers]
  std::unique_ptr<DeviceBuffer> embedded_;          // [max_num_tokens, hidden_size], of a stage, or null
  std::unique_ptr<DeviceBuffer> sampled_inputs_;    // [max_num_samples, …] fp32
  std::unique_ptr<DeviceBuffer> input_gates_, gated_inputs_;  // [max_rows, hidden_size_per_layer_input]
  std::unique_ptr<DeviceBuffer> hidden_;             // [max_num_tokens, hidden_size], with mtp.is_used
  // EAGLE-3's:
  std::array<std::unique_ptr<DeviceBuffer>, 3> states_;  // [max_num_tokens, hidden_size]
  std::unique_ptr<DeviceBuffer> hidden_qkv_;             // [max_num_tokens, qkv_size]
  std::unique_ptr<DeviceBuffer> head_logits_;            // [max_logit_rows, tokens of its head] fp32, or null
  std::unique_ptr<MedusaHeads> heads_;               // null: none
  std::optional<PoolingHead> pooling_;               // none: tokens are sampled
  StageLink* link_ = nullptr;                        // null: all layers are here
  int64_t first_row_ = 0;                            // of the part in progress; 0: all rows
  int32_t last_in_parts_ = -1;                       // layer up to which there are parts; -1: none are in progress
  int32_t first_layer_ = 0;  // of the model's; > 0: a stage behind others
  bool is_last_stage_ = true;
};

}  // namespace llmb
