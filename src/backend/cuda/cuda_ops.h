// The ops of the forward pass on a GPU: kernels/cuda on one stream, the KV pool, and the step in progress.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/attention_kinds.h"
#include "backend/cuda/cuda_adapters.h"
#include "backend/cuda/cuda_pooling.h"
#include "backend/cuda/cuda_ranks.h"
#include "backend/cuda/cuda_states.h"
#include "backend/cuda/cuda_weights.h"
#include "backend/cuda/device.h"
#include "backend/cuda/gathered_slices.h"
#include "backend/cuda/hidden_slices.h"
#include "backend/cuda/kv_planes.h"
#include "backend/cuda/slice_states.h"
#include "backend/cuda/split_streams.h"
#include "backend/cuda/step_stage.h"
#include "backend/cuda/weight_uploader.h"
#include "base/check.h"
#include "core/kv_layout.h"
#include "core/model_config.h"
#include "core/request.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_fp8.h"
#include "kernels/cuda/linear_fp8_lt.h"
#include "kernels/cuda/linear_int4.h"
#include "kernels/cuda/linear_int8.h"
#include "kernels/cuda/linear_int8_lt.h"
#include "kernels/cuda/linear_sparse24.h"
#include "kernels/cuda/linear_w4a8.h"
#include "kernels/cuda/linear_wgmma8.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/paged_attention.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/scaled_kv.h"
#include "model/ops.h"
#include "model/transformer.h"

namespace llmb {

// That a sample row asks for at most: a beam looks at as many as there are beams, and at one more for each token that
// may end an answer.
inline constexpr int32_t kMaxBestTokens = kMaxChoices + 32;

struct CudaOpsOptions {
  DType dtype = DType::kBF16;                       // of weights that are not quantised, and of activations
  DType kv_dtype = DType::kBF16;                    // dtype, kI8 or kF8
  Quantization quantization = Quantization::kNone;  // int4, fp8: with a dtype of 16 bits
  StepLimits limits;
  LayerGroups groups;
  int32_t vocab_size = 0;  // of all ranks
  int32_t block_size = 16;     // of this rank's part of a block
  int32_t num_slices = 1;      // ranks with a part of each block, which outnumber one where they divide keys and values
  int32_t max_position = 0;    // positions of a step are below it
  std::vector<float> score_scales;  // [layers]
  int64_t max_logit_rows = 0;  // of one call of sample()
  int32_t num_drafted = 0;     // tokens that a draft model may leave for the next step
  bool deterministic = false;
  bool hopper = false;  // cuda::has_hopper_code()
};

// With one more kind at the end where latents of prompts may be expanded to keys and values.
AttentionKinds with_expanded_kind(AttentionKinds kinds, const ModelConfig& config, int32_t num_sms);
// Blocks of one head that steps expand at most; 0: none do.
int64_t num_expanded_blocks(const ModelConfig& config, const AttentionKinds& kinds, const CudaOpsOptions& options);

// Calls queue work and return. Driven by one thread. Everything throws cuda::CudaError.
class CudaOps final : public Ops, public StepParts {
 public:
  CudaOps(const ModelConfig& config, const CudaDevice& device, const CudaOpsOptions& options, cudaStream_t stream);

  DType activation_dtype() const override { return options_.dtype; }
  std::unique_ptr<LinearWeight> make_linear(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                            WeightRole) override;
  bool rounds_rows_of_tables() const override { return options_.quantization != Quantization::kNone; }
  std::unique_ptr<LinearWeight> make_table_columns(std::span<const TensorView> parts, int64_t first,
                                                   int64_t count) override;
  std::unique_ptr<ExpertsWeight> make_experts(std::vector<std::unique_ptr<LinearWeight>> gate_up,
                                              std::vector<std::unique_ptr<LinearWeight>> down) override;
  std::unique_ptr<DeviceBuffer> make_vector(const TensorView& values) override;
  std::unique_ptr<DeviceBuffer> allocate(int64_t rows, int64_t width, DType dtype) override;
  void end_of_weights();  // frees what only loading needs

  KvLayout kv_layout(int32_t num_blocks) const;
  void set_kv_pool(int32_t num_blocks);  // 0: frees it; recorded steps hold its address
  // The pool will lie in the memory of another one's, which stays and outlives this.
  void borrow_from(const CudaOps& lending);
  // The host's pool that plans swap blocks to, in pinned memory, and how fast that is, to `info`; none where there is
  // no memory for it. REQUIRES: the KV pool is there, and nothing in it
  void add_host_pool(const LoadOptions& load, BackendInfo* info);
  // The pool of recurrent states, where the model has any, and what plans may ask of it to `info`. kResourceExhausted
  // where it does not fit what is free.
  Status add_states(const LoadOptions& load, BackendInfo* info);
  // The config is that of a rank with a share of the model: partial sums are summed over ranks from now on. They
  // outlive this.
  void join_ranks(CudaRanks* ranks);
  // Where ranks divide keys and values: the plan with tables for attention, which uploads and the step's calls get, until
  // the next one; else, and of heads, the plan.
  const StepPlan& in_slices(const StepPlan& plan);
  // Memory that each block of the pool takes beside it.
  int64_t beside_block_bytes() const { return slices_ ? slices_->block_bytes() : 0; }
  // That plans may name. rank: PackerForDevice
  void add_adapters(std::shared_ptr<AdapterLibrary> library, int64_t max_bytes, std::optional<LoraShare> rank);
  CudaAdapters* adapters() { return adapters_ ? &*adapters_ : nullptr; }  // null: no plan names any
  AdapterUse adapter_use(const StepPlan& plan) { return adapters_ ? adapters_->use_of(plan) : AdapterUse::kNone; }
  void add_pooling(const Pooling& pooling) {                                      // steps give vectors
    pooling_.emplace(config_, pooling, options_.dtype, options_.limits, stream_);
  }
  CudaPooling* pooling() { return pooling_ ? &*pooling_ : nullptr; }  // null: they give tokens
  // Steps may be in two parts from now on; REQUIRES: limits.part_sms is what these streams give attention.
  void add_split_streams(std::unique_ptr<SplitStreams> streams) { split_ = std::move(streams); }
  StepStage& stage() { return stage_; }
  // Which rows of a plan that is queued op by op, in one part, this rank computes, and which are left in the layers behind
  // the last one with keys and values of its own, where there are such (`narrows`). For the next upload().
  void choose_rows(const StepPlan& plan, bool narrows, StepShape* shape);
  const StepLimits& limits() const { return options_.limits; }

  // The step that following calls are about, what its sample rows need at most, and how many of the best tokens.
  void set_step(const StepArrays& arrays, const cuda::SampleNeeds& needs, int32_t max_top = kMaxTopLogprobs) {
    step_ = arrays, needs_ = needs, sampled_.max_top = max_top;
    stream_ = main_stream_;
    gathered_layer_ = -1;
    set_part(-1, arrays.shape.own.begin);
  }
  // The tokens that the head of a layer behind the last one knows, which spread_logits() is then called with.
  void set_head_tokens(std::span<const TokenId> tokens);
  // Ordered as Backend says of functions with these names. REQUIRES: info.block_bytes > 0 behind add_host_pool()
  bool read_blocks(std::span<const BlockId> blocks, int32_t state, uint8_t* bytes);
  void write_host_blocks(std::span<const BlockId> blocks, int32_t state, std::span<const uint8_t> bytes);
  // Work before the forward pass: copies of blocks and states, penalties of unseen tokens, and places of rows and
  // tokens, where they go on from what the step before gave; and behind it, what this one gives. resolve_step and give_tokens can be
  // recorded with the forward pass.
  void copy_blocks(const StepPlan& plan);
  void count_unseen_tokens(const StepPlan& plan);
  void resolve_step();
  void give_tokens();
  // Steps that draft go on from each other, and leave alone what steps that do not draft gave. From set_step() on.
  void set_drafting(bool is_drafting) { is_drafting_ = is_drafting; }
  // The next step that drafts goes on from what the target's newest step gave. REQUIRES: as many groups at most
  void follow(const CudaOps& target);
  // The step goes on from what is there, and leaves there what it gives.
  const cuda::GivenOnDevice& given() const { return is_drafting_ ? given_by_drafts_ : given_; }
  const cuda::GivenOnDevice& given_by_drafts() const { return given_by_drafts_; }
  // Where a draft model leaves tokens, behind what groups gave: to a step they are groups, too.
  TokenId* drafted() const { return given_.before_last + options_.limits.max_num_samples; }  // [num_drafted()]
  int32_t num_drafted() const { return options_.num_drafted; }
  int32_t vocab_size() const { return options_.vocab_size; }
  // While on, linear() times its candidates for shapes it has not seen and keeps the best. It waits for the device.
  void set_tuning(bool on) { is_tuning_ = on; }
  // The tokens that the last step sampled: arrays for max_num_samples rows, one behind the other from tokens on.
  const cuda::SampleResult& sampled() const { return sampled_; }
  // Bytes from sampled().tokens to the end of what every step sets, and to the end of the best tokens' log
  // probabilities, for max_num_samples rows of kMaxBestTokens.
  int64_t sampled_bytes() const { return sampled_bytes_; }
  int64_t sampled_bytes_with_top() const { return sample_output_.bytes(); }

  int64_t second_row() const override { return step_.shape.second.row; }
  void begin() override;
  void begin_products(int part) override;
  void begin_attention(int part) override;
  void join() override;

  void embedding(const LinearWeight& table, int64_t rows, Rows out) override;
  void add_positions(const LinearWeight& table, int64_t rows, Rows residual) override;
  void add(Rows residual, Rows delta, float factor, int64_t rows, Rows out) override;
  void add_columns(Rows x, Rows y, int64_t first_column, float factor, int64_t rows) override;
  void add_rms_norm(Rows residual, Rows delta, const DeviceBuffer& weight, float eps, int64_t rows, Rows out) override;
  void add_layer_norm(Rows residual, Rows delta, const DeviceBuffer& weight, const DeviceBuffer* bias, float eps,
                      int64_t rows, Rows out) override;
  void complete_rows(Rows residual, int64_t rows) override;
  void rms_norm_groups(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight, float eps,
                       int64_t rows) override;
  void linear(const LinearWeight& weight, Rows x, int64_t rows, Rows out) override;
  bool has_adapters() const override { return adapters_ && adapters_->has_any(); }
  void lora(const AdaptedProduct& product, Rows x, int64_t rows, Rows out) override {
    const bool is_of_part = product.kind == RowKind::kTokens;
    adapters_->lora(product, is_of_part ? from_step_begin(x) : x, rows, is_of_part ? from_step_begin(out) : out, stream_);
  }
  void adapted_linear(const AdaptedProduct& product, const LinearWeight& weight, Rows x, int64_t rows,
                      Rows out) override;
  void lora_embedding(int64_t, Rows out) override { adapters_->lora_embedding(step_.tokens, out); }
  void rms_norm_over_ranks(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight, float eps,
                           int64_t rows) override;
  void layer_norm_groups(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight,
                         const DeviceBuffer* bias, float eps, int64_t rows) override;
  void grow_queries(int64_t rows, Rows qkv) override;
  void rope_and_kv_write(int32_t layer, int64_t rows, Rows qkv) override;
  void paged_attention(int32_t layer, Rows qkv, const DeviceBuffer* sinks, Rows out) override;
  void activate(const ActivationSpec& spec, Rows x, int64_t rows, Rows out) override;
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
  void softcap(Rows x, float cap, int64_t rows) override;
  void clamp(Rows x, float limit, int64_t rows) override;
  std::optional<int64_t> narrow_step() override;
  void keep_rows(Rows x) override;
  void gather_sample_rows(Rows x, int64_t num_samples, Rows out) override;
  void join_latents(HeadWeights heads, Rows queries, Rows latents, int64_t rows, Rows qkv) override;
  void expand_values(HeadWeights heads, Rows gathered, int64_t rows, Rows out) override;
  void expanded_attention(int32_t layer, HeadWeights key_heads, HeadWeights value_heads, Rows queries, Rows qkv,
                          Rows out) override;
  void activate_times(Activation kind, Rows x, Rows y, int64_t first_column, int64_t rows, Rows out) override;
  void add_scaled(Rows residual, Rows delta, const DeviceBuffer& factor, int64_t rows) override;
  void add_token_types(const LinearWeight& table, int64_t rows, Rows residual) override {
    pooling_->add_token_types(table, step_, rows, residual);
  }
  void pool_rows(Rows x, PoolingKind kind, int64_t num_samples, Rows out) override {
    pooling_->pool_rows(step_, x, kind, num_samples, out);
  }
  void give_vectors(Rows x, int64_t num_samples) override { pooling_->give_vectors(x, num_samples); }
  void store_hidden(Rows x, int64_t rows) override;
  void previous_hidden(int64_t rows, Rows out) override;
  void spread_logits(Rows from, std::span<const TokenId> tokens, int64_t rows, Rows to) override;
  void sample(Rows logits, int64_t first_sample, int64_t rows) override;

 private:
  struct Region;
  struct HostWrite;
  template <typename Body>
  void for_each_region(const Body& body) const;
  void write_now(const HostWrite& write);
  // This rank's rows alone, where ranks divide so many; nothing where there are none.
  void sum_over_ranks(Rows x, int64_t rows);
  template <typename Body>
  void make_rows(int64_t rows, Rows out, const Body& body);
  double measure_swap_bytes_per_s();
  CudaForm form_of(WeightRole role, std::span<const TensorView> parts, int64_t out_features) const;
  void upload_rows(const TensorView& part, int64_t first_row, CudaLinear* linear);
  std::unique_ptr<LinearWeight> widened(const CudaLinear& packed);
  void make_forms_equal(std::vector<std::unique_ptr<LinearWeight>>* experts);
  void multiply(const CudaLinear& linear, Rows x, int64_t rows, Rows out);
  cuda::Int8Rows rounded_rows(Rows x, int64_t rows);
  void linear_int8(const cuda::Int8View& weight, Rows x, int64_t rows, Rows out);
  void multiply_int8(const cuda::Int8View& weight, const cuda::Int8Rows& rounded, int64_t rows, Rows out);
  void linear_w4a8(const cuda::W4A8View& weight, Rows x, int64_t rows, Rows out);
  void linear_int4(const cuda::Int4View& weight, Rows x, int64_t rows, Rows out);
  Rows in_order_of(const CudaLinear& linear, Rows x, int64_t rows);
  void linear_sparse24(const cuda::Sparse24View& weight, Rows x, int64_t rows, Rows out);
  // By the 16-bit numbers of a weight, which write(T*) writes first; to memory that all weights share.
  template <class T, class View, class Write>
  void multiply_numbers(const View& weight, Rows x, int64_t rows, Rows out, const Write& write);
  void linear_fp8(const cuda::Fp8View& weight, Rows x, int64_t rows, Rows out);
  void allocate_attention();
  void allocate_expansion();
  // Ranges of rows whose attention is over latents.
  template <typename Body>
  void for_absorbed(int64_t rows, const Body& body) const;
  void lay_out_samples();
  void sample_rows(Rows logits, int64_t first_sample, int64_t rows);  // whose tables are in place
  bool has_scaled_kv() const { return options_.kv_dtype == DType::kI8 || options_.kv_dtype == DType::kF8; }
  template <typename T>
  T* kv(int32_t layer, bool values) const {  // block 0's
    const KvPlanes::Place place = planes_.place(config_.kv_layer_of(layer), num_blocks_);
    uint8_t* const pool = (lending_ != nullptr ? lending_->kv_pool_ : kv_pool_).data<uint8_t>();
    return reinterpret_cast<T*>(pool + (values ? place.values : place.keys));
  }
  template <typename Code>
  cuda::ScaledKv<Code> scaled_kv(int32_t layer) const;
  // A layer's keys and values as attention reads them, and new rows are written for it: the pool's, or all ranks' slices.
  template <typename T>
  T* seen_kv(int32_t layer, bool values) const {
    if (!slices_) return kv<T>(layer, values);
    const int64_t before = values && !config_.has_latent() ? num_seen_blocks(layer) * slice_bytes(layer) : 0;
    return reinterpret_cast<T*>(slices_->memory() + before);
  }
  template <typename Code>
  cuda::ScaledKv<Code> seen_scaled_kv(int32_t layer) const;
  int32_t num_seen_blocks(int32_t layer) const;
  int64_t seen_block_stride() const { return slices_ ? 0 : planes_.block_stride(); }
  // The keys of a block of this rank's pool, and its values, have so many.
  int64_t slice_bytes(int32_t layer) const { return planes_.half_bytes(config_.kv_layer_of(layer)); }
  // The scales of its keys, and of its values.
  int64_t scales_bytes() const {
    return int64_t{options_.block_size} * config_.num_key_value_heads * int64_t{sizeof(float)};
  }
  void gather_slices(int32_t layer);
  // Whether ranks attend to their own slices in a layer, and exchange states of rows.
  bool exchanges_states(int32_t layer) const;
  void attend_to_slices(int32_t layer, Rows qkv, const cuda::AttentionParams& params, Rows out);
  // Bytes from a pool's begin to its hidden states, and those of a block.
  int64_t hidden_begin(int64_t num_blocks) const;
  int64_t hidden_block_bytes() const;
  template <typename Body>
  void with_hidden(const Body& body) const;
  int32_t num_kept(const StepPlan& plan);  // 0: all
  Range share_out(const StepPlan& plan);   // none: all
  void write_kv(int32_t layer, int64_t first_row, int64_t rows, int32_t num_heads, Rows qkv);
  // write(T*, pools…) to the pool of a layer, or as attention sees it.
  template <typename Write>
  void with_pools(int32_t layer, bool is_seen, const Write& write) const;
  ContextRows* context_rows() const { return all_ranks_ != nullptr ? all_ranks_->context_rows() : nullptr; }
  void set_part(int part, int64_t first_row);  // -1: all rows of the step, or all that are this rank's
  // The rows of a part of the step as those of a matrix of all its rows: kernels that find rows by the plan get these.
  Rows from_step_begin(Rows rows) const { return rows.from(-first_row_); }
  // [num_tokens]  all rows of the step
  int32_t* slots_of(int32_t layer) const {
    return step_.slots + int64_t{groups_.group(layer)} * step_.shape.num_tokens;
  }

  const ModelConfig config_;
  const CudaOpsOptions options_;
  const cudaStream_t main_stream_;
  cudaStream_t stream_;  // for what is queued next
  const LayerGroups groups_;
  const KvPlanes planes_;
  const AttentionKinds attention_;
  const int32_t num_sms_;
  cuda::Linear linear_;
  bool has_int4_ = false, has_sparse24_ = false;
  std::optional<cuda::LinearInt4> linear_int4_;          // once there are weights in its units
  std::optional<cuda::LinearSparse24> linear_sparse24_;  // once there are 2:4 sparse ones
  int64_t max_numbers_ = 0;                              // of such a weight
  cuda::DeviceMemory numbers_;                           // of the weight in use, where rows are many
  int64_t max_ordered_features_ = 0;                     // of a weight whose columns are in another order
  cuda::DeviceMemory x_ordered_;                         // what its product takes
  int64_t max_int8_features_ = 0;                // of int8 weights, each row of x as int8_row_bytes says
  cuda::DeviceMemory x_int8_, x_scales_;         // what an int8 product takes
  int64_t max_int8_out_ = 0;
  int64_t max_w4a8_bytes_ = 0;                     // of the largest of these weights as int8
  std::optional<cuda::LinearW4A8> linear_w4a8_;  // once there are any
  cuda::DeviceMemory widened_;                   // numbers of one, where rows can be many
  std::optional<cuda::LinearInt8Lt> int8_lt_;  // where rows can be many, but on Hopper
  std::optional<cuda::LinearWgmma8> wgmma8_;   // for int8 weights on Hopper
  int64_t max_fp8_features_ = 0;               // of e4m3 weights
  std::optional<cuda::LinearFp8> linear_fp8_;  // once there are e4m3 weights
  std::optional<cuda::LinearFp8Lt> fp8_lt_;    // where rows can be many, and the run is not deterministic
  cuda::DeviceMemory x_fp8_, x_fp8_scales_;    // what its products take
  std::unique_ptr<WeightUploader> uploader_;   // while weights are loaded
  struct DeviceRope {
    int32_t rotary_dim = 0;
    cuda::DeviceMemory cos, sin;  // [max_position, rotary_dim / 2]
  };
  std::vector<DeviceRope> ropes_;         // of config_.ropes
  cuda::DeviceMemory alibi_slopes_;       // [num_heads], or empty
  cuda::DeviceMemory experts_workspace_;  // where the model has experts
  cuda::DeviceMemory attention_partials_, attention_partial_stats_, attention_counters_;
  // Latents as keys and values of heads, the matrices that make keys, and the blocks' numbers; or empty.
  cuda::DeviceMemory expanded_, expansion_matrices_, expanded_ids_;
  cuda::DeviceMemory shared_values_, shared_stats_;  // states of attention over shared prefixes
  cuda::SampleLimits sample_limits_;
  cuda::DeviceMemory sample_workspace_, sample_output_;
  cuda::SampleResult sampled_;  // in sample_output_
  cuda::DeviceMemory given_memory_;
  cuda::GivenOnDevice given_, given_by_drafts_;  // by the last steps that draft, or do not; in given_memory_
  bool is_drafting_ = false;
  int64_t sampled_bytes_ = 0;
  StepStage stage_;
  int32_t num_blocks_ = 0;
  // planes_; then, for int8 and fp8, scales [num_planes, 2, num_blocks, num_kv_heads, block_size]; then, for a layer behind
  // the last one, hidden states [num_blocks, block_size, hidden_size]; then adapters' pages.
  cuda::DeviceMemory kv_pool_;
  const CudaOps* lending_ = nullptr;  // in whose pool planes_ lie; null: in its own
  cuda::PinnedMemory host_pool_, host_state_;  // of one slot, that is being written
  int32_t num_host_blocks_ = 0;
  std::optional<cuda::Stream> block_reads_;  // once blocks were read
  std::optional<CudaAdapters> adapters_;
  std::optional<CudaPooling> pooling_;  // none: steps give tokens
  std::optional<CudaStates> states_;  // none: no layer has one
  cuda::DeviceMemory known_as_;       // [vocab_size]  columns of a head that knows some tokens alone; or empty
  CudaRanks* ranks_ = nullptr;        // that have parts of the same layers; null: this one has all of its layers
  CudaRanks* all_ranks_ = nullptr;    // null: there are no others
  std::optional<GatheredSlices> slices_;  // none: this one has keys and values of all positions
  std::optional<HiddenSlices> hidden_slices_;  // none: there are no hidden states, or of all positions
  int32_t gathered_layer_ = -1;           // whose slices are gathered in the step in progress
  std::optional<SliceStates> slice_states_;  // none: all attention goes over gathered slices
  bool exchanges_states_ = false;            // in the step in progress, where layers allow it
  std::unique_ptr<SplitStreams> split_;  // null: steps are in one part
  int part_ = 0;                         // in progress
  int64_t first_row_ = 0;                // of the part
  StepArrays step_;
  cuda::SampleNeeds needs_;
  bool is_tuning_ = false;
};

}  // namespace llmb
