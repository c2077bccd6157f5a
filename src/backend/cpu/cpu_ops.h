// The ops of the forward pass on the CPU: kernels/cpu over one thread pool, the KV pool, and the step in progress.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/cpu/cpu_adapters.h"
#include "backend/cpu/cpu_states.h"
#include "backend/cpu/kv_pool.h"
#include "backend/cpu/kv_slices.h"
#include "backend/cpu/open_groups.h"
#include "backend/cpu/step_rows.h"
#include "backend/cpu/tree_batch.h"
#include "backend/ranks/rank_context.h"
#include "base/thread_pool.h"
#include "core/kept_rows.h"
#include "core/model_config.h"
#include "core/resolve_step.h"
#include "core/score_scales.h"
#include "core/step_plan.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/head_linear.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/sample_parts.h"
#include "model/ops.h"
#include "model/rope_table.h"

namespace llmb {

// Work is done by the time a call returns. Not thread-safe. `pool` must outlive this.
class CpuOps final : public Ops {
 public:
  // num_scratch: blocks of the KV pool beside kv's. max_position: positions of a step are below it. quantization: of
  // the weights that make_linear makes: projections, and the vocabulary's in int8 where they are quantised. activations:
  // kBF16: products over bf16 weights, but for routers', round to bf16 what they take; kI8: those over blocks of few
  // bits to int8. kv_pool: of that layout and so many scratch blocks. Throws std::bad_alloc.
  CpuOps(const ModelConfig& config, const KvLayout& kv, KvPool kv_pool, int32_t num_scratch, int32_t max_position,
         Quantization quantization, DType activations, ThreadPool& pool);

  // The config is that of a rank with this share of the model `whole` (core/rank_part.h): what partial sums give is
  // summed over ranks, and these sample together. `ranks` outlives this.
  void join_ranks(RankContext& ranks, const ModelConfig& whole, const ModelShare& share);

  // Layer 0 of the config is this one of the model `whole`.
  void begin_at_layer(int64_t layer, const ModelConfig& whole) { score_scales_ = score_scales(whole, config_, layer); }

  // Ranks of the channel, which outlives this, have the same part of the model `whole` and share out rows of steps.
  void share_rows(Collectives& context, const ModelConfig& whole) { rows_.emplace(context, whole); }
  // They also divide keys and values: this one's pool has its slices of blocks, and behind these and num_scratch more, from
  // first_row_slice on, those for rows of trees.
  void divide_kv(Collectives& context, BlockId first_row_slice) { slices_.emplace(context, first_row_slice); }

  void add_states(const StateLayout& layout);  // of layers that have one. Throws std::bad_alloc

  // An int4 cache has them. Throws std::bad_alloc
  void add_open_groups(const LoadOptions& options) { open_.emplace(config_, layout_, options); }

  void add_host_pool(int32_t num_blocks);  // that plans swap blocks to. Throws std::bad_alloc
  KvPool& kv() { return kv_; }
  KvPool& host_kv() { return host_kv_; }  // of no blocks before add_host_pool()
  CpuStates* states() { return states_ ? &*states_ : nullptr; }  // null: no layer has one

  // That plans may name. rank: CpuAdapterPacker
  void add_adapters(std::shared_ptr<AdapterLibrary> library, int64_t max_bytes, std::optional<LoraShare> rank);
  // Before a plan names an adapter that is merged (AdapterLibrary::merge).
  void set_merge_base(const ModelWeights& weights) { adapters_->set_merge_base(weights, activations_); }
  AdapterStore* adapters() { return adapters_ ? &adapters_->store() : nullptr; }

  DType activation_dtype() const override { return DType::kF32; }

  std::unique_ptr<LinearWeight> make_linear(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                            WeightRole role) override;
  bool rounds_rows_of_tables() const override { return quantization_ != Quantization::kNone; }
  std::unique_ptr<LinearWeight> make_table_columns(std::span<const TensorView> parts, int64_t first,
                                                   int64_t count) override;
  // As make_linear, of what an earlier one left (kernels/cpu/linear.h).
  std::unique_ptr<LinearWeight> make_linear_from(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                                 WeightRole role, const cpu::PackedLinear::NextBytes& next) const;
  static std::array<std::span<const uint8_t>, 4> packed_bytes(const LinearWeight& weight);
  static const cpu::PackedLinear& packed_linear(const LinearWeight& weight);
  std::unique_ptr<ExpertsWeight> make_experts(std::vector<std::unique_ptr<LinearWeight>> gate_up,
                                              std::vector<std::unique_ptr<LinearWeight>> down) override;
  std::unique_ptr<DeviceBuffer> make_vector(const TensorView& values) override;
  std::unique_ptr<DeviceBuffer> allocate(int64_t rows, int64_t width, DType dtype) override;

  // The step in progress. `plan` must stay unchanged until end_step, which hands out what the step gave. A plan that
  // follows groups follows those of the step before.
  void begin_step(const StepPlan& plan);
  int64_t num_rows() const { return rows_ ? rows_->own().count() : plan_->num_tokens(); }  // that this one computes
  void end_step(StepOutput* output);
  // In a stage before the last: ends a step whose tokens another one draws, and takes what they were where the next
  // step follows them.
  void end_stage();
  void set_given(const GivenTokens& given) { given_ = given; }
  const GivenTokens& given() const { return given_; }

  void embedding(const LinearWeight& table, int64_t rows, Rows out) override;
  void add_positions(const LinearWeight& table, int64_t rows, Rows residual) override;
  void add(Rows residual, Rows delta, float factor, int64_t rows, Rows out) override;
  void add_columns(Rows x, Rows y, int64_t first_column, float factor, int64_t rows) override;
  void add_rms_norm(Rows residual, Rows delta, const DeviceBuffer& weight, float eps, int64_t rows, Rows out) override;
  void add_layer_norm(Rows residual, Rows delta, const DeviceBuffer& weight, const DeviceBuffer* bias, float eps,
                      int64_t rows, Rows out) override;
  void rms_norm_groups(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight, float eps,
                       int64_t rows) override;
  void linear(const LinearWeight& weight, Rows x, int64_t rows, Rows out) override;
  bool has_adapters() const override { return adapters_ && adapters_->has_any(); }
  void adapted_linear(const AdaptedProduct& product, const LinearWeight& weight, Rows x, int64_t rows,
                      Rows out) override;
  void adapted_linear_activate(const AdaptedProduct& product, const LinearWeight& weight, const ActivationSpec& spec,
                               Rows x, int64_t rows, Rows between, Rows out) override;
  void lora_embedding(int64_t rows, Rows out) override;
  void rms_norm_over_ranks(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight, float eps,
                           int64_t rows) override;
  void layer_norm_groups(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight,
                         const DeviceBuffer* bias, float eps, int64_t rows) override;
  void grow_queries(int64_t rows, Rows qkv) override;
  void rope_and_kv_write(int32_t layer, int64_t rows, Rows qkv) override;
  void paged_attention(int32_t layer, Rows qkv, const DeviceBuffer* sinks, Rows out) override;
  void join_latents(HeadWeights heads, Rows queries, Rows latents, int64_t rows, Rows qkv) override;
  void expand_values(HeadWeights heads, Rows gathered, int64_t rows, Rows out) override;
  void activate(const ActivationSpec& spec, Rows x, int64_t rows, Rows out) override;
  void linear_activate(const LinearWeight& weight, const ActivationSpec& spec, Rows x, int64_t rows, Rows between,
                       Rows out) override;
  void activate_times(Activation kind, Rows x, Rows y, int64_t first_column, int64_t rows, Rows out) override;
  void mix_experts(const AdaptedProduct& product, const ExpertsWeight& experts, const ExpertsConfig& config,
                   const ActivationSpec& spec,
                   Rows router_logits, const DeviceBuffer* choice_bias, const DeviceBuffer* scales, Rows x,
                   int64_t rows, Rows out) override;
  void add_gated(Rows x, Rows y, Rows gate, int64_t rows) override;
  void multiply_by_gate(GateKind kind, Rows x, Rows gate, int64_t rows) override;
  void causal_conv(int32_t layer, Rows x, const DeviceBuffer& weight, const DeviceBuffer* bias, Rows out) override;
  void update_states(int32_t layer, Rows qkv, Rows gates, const DeviceBuffer& log_a, const DeviceBuffer& dt_bias,
                     const DeviceBuffer* skip, Rows out) override;
  void scale(Rows x, float factor, int64_t rows) override;
  void add_scaled(Rows residual, Rows delta, const DeviceBuffer& factor, int64_t rows) override;
  void complete_rows(Rows residual, int64_t rows) override;
  void softcap(Rows x, float cap, int64_t rows) override;
  void clamp(Rows x, float limit, int64_t rows) override;
  std::optional<int64_t> narrow_step() override;
  void keep_rows(Rows x) override;
  void gather_sample_rows(Rows x, int64_t num_samples, Rows out) override;
  void add_token_types(const LinearWeight& table, int64_t rows, Rows residual) override;
  void pool_rows(Rows x, PoolingKind kind, int64_t num_samples, Rows out) override;
  void give_vectors(Rows x, int64_t num_samples) override;
  void store_hidden(Rows x, int64_t rows) override;
  void previous_hidden(int64_t rows, Rows out) override;
  void spread_logits(Rows from, std::span<const TokenId> tokens, int64_t rows, Rows to) override;
  void sample(Rows logits, int64_t first_sample, int64_t rows) override;

 private:
  Quantization quantization_of(WeightRole role) const;
  void lay_out_trees();
  void sum_over_ranks(Rows x, int64_t rows);
  // cpu_ops_rows.cpp: what follows leaves each rank its rows alone, where divides_rows(), until make_rows() shares them.
  struct Turn;
  bool divides_rows(int64_t rows) const;
  int64_t rows_at_once(int64_t rows, int64_t width) const;
  template <typename Body>
  void for_each_turn(int64_t rows, int64_t width, const Body& body);
  float* room_for(int64_t rows, int64_t width);
  void linear_over_ranks(const cpu::PackedLinear& weight, Rows x, int64_t rows, Rows out);
  void sum_rows(Rows x, int64_t rows);
  void sum_turn(const Turn& turn, Rows out);
  template <typename Make>
  void make_rows(int64_t rows, Rows out, const Make& make);
  void embed_part(const cpu::PackedLinear& table, int64_t rows, Rows out);
  bool has_part_of_rows() const { return rows_ && rows_->are_divided() && kept_.rows.empty(); }
  const int32_t* positions() const { return (kept_.rows.empty() ? step_.positions : kept_positions_).data(); }
  int64_t first_row() const { return has_part_of_rows() ? rows_->own().begin : 0; }
  void write_kv(int32_t layer, int64_t first_row, int64_t rows, int32_t num_heads, float* qkv);
  void share_kv(int32_t layer, int64_t rows, Rows qkv);
  const float* all_rows(Rows own);  // of the step: [num_tokens, own.width]
  void move_own_rows(Rows x);
  void attend_to_slices(int32_t layer, Rows qkv, const cpu::AttentionParams& params, Rows out);
  int64_t query_width(int32_t layer);  // columns of qkv
  DType activations_of(WeightRole role) const { return role == WeightRole::kSmall ? DType::kF32 : activations_; }
  const ModelConfig config_;
  const Quantization quantization_;
  const DType activations_;
  ThreadPool& pool_;
  KvLayout layout_;
  KvPool kv_, host_kv_;
  std::optional<CpuAdapters> adapters_;  // none: no plan names any
  std::optional<CpuStates> states_;      // none: no layer has one
  std::optional<OpenGroups> open_;       // of an int4 cache
  const LayerGroups groups_;
  const std::vector<RopeTable> ropes_;  // of config_.ropes
  std::vector<float> score_scales_;     // [layers]  of config_
  const StepPlan* plan_ = nullptr;      // of the step in progress
  ResolvedStep step_;                   // of plan_
  // For each layer group of plan_.
  std::vector<std::vector<int32_t>> block_start_;  // [num_entries]
  std::vector<TreeBatch> tree_batches_;            // where it has trees
  GivenTokens given_;                   // by the step before
  std::vector<int32_t> sample_rows_;    // [num_samples]  token rows, or hidden rows
  KeptRows kept_;                       // behind narrow_step(), else empty
  std::vector<int32_t> kept_positions_;
  std::vector<int32_t> token_types_;    // [num_tokens], or empty: the model has none
  std::vector<int32_t> first_rows_, end_rows_;  // [num_samples]  scratch: of their entries
  std::vector<int32_t> previous_slots_;         // [num_tokens]  scratch
  SampledRows sampled_;                 // of plan_, so far
  std::vector<float> vectors_;  // of the step in progress
  cpu::ExpertsScratch experts_scratch_;
  cpu::HeadLinearScratch heads_scratch_;
  RankContext* ranks_ = nullptr;  // null: this one computes all
  std::optional<StepRows> rows_;  // none: all rows of each step
  std::optional<KvSlices> slices_;  // none: keys and values of all positions
  std::vector<float> foreign_rows_;  // scratch
  cpu::VocabPart vocab_ = {};     // of this rank
  int32_t head_group_ = 0;        // its query heads: AttentionParams
  int32_t first_absent_ = 0;
  std::vector<float> square_sums_;    // [num_tokens + 1]  scratch
  std::vector<const void*> part_rows_;  // [ranks]  scratch
  std::vector<TokenId> part_tokens_;  // [num_tokens]  scratch: in this rank's part of the vocabulary
};

}  // namespace llmb
