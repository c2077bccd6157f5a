#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cpu/cpu_weights.h"
#include "base/check.h"
#include "core/shared_prefixes.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/row_chunks.h"
#include "kernels/cpu/sample.h"

namespace llmb {

namespace {

std::vector<const cpu::PackedLinear*> packed_heads(HeadWeights heads) {
  std::vector<const cpu::PackedLinear*> weights;
  for (const auto& head : heads) weights.push_back(&packed(*head));
  return weights;
}

bool is_partial_sum(const LinearWeight& weight) { return static_cast<const CpuLinear&>(weight).is_partial_sum(); }

// Whether a product and its activation run together: with few rows, what is between stays in a cache, and each thread
// reads weights from front to back.
bool activates_with(const LinearWeight& weight, const ActivationSpec& spec, int64_t rows) {
  constexpr int64_t kMinRows = 16;
  return rows >= kMinRows && cpu::can_activate(packed(weight), spec);
}

std::vector<RopeTable> make_rope_tables(const ModelConfig& config, int32_t max_position) {
  std::vector<RopeTable> tables;
  for (const RopeConfig& rope : config.ropes)
    tables.push_back(make_rope_table(rope, config.rotary_dim(rope), max_position));
  return tables;
}

}  // namespace

CpuOps::CpuOps(const ModelConfig& config, const KvLayout& kv, KvPool kv_pool, int32_t num_scratch, int32_t max_position,
               Quantization quantization, DType activations, ThreadPool& pool)
    : config_(config),
      quantization_(quantization),
      activations_(activations),
      pool_(pool),
      layout_(kv),
      kv_(std::move(kv_pool)),
      groups_(kv.groups),
      ropes_(make_rope_tables(config, max_position)),
      score_scales_(score_scales(config, config, 0)),
      block_start_(groups_.windows.size()),
      tree_batches_(groups_.windows.size(), TreeBatch(kv.num_blocks, num_scratch)) {}

void CpuOps::add_states(const StateLayout& layout) { states_.emplace(config_, layout); }

void CpuOps::add_host_pool(int32_t num_blocks) {
  KvLayout layout = layout_;
  layout.num_blocks = num_blocks;
  host_kv_ = KvPool(layout);
}

void CpuOps::add_adapters(std::shared_ptr<AdapterLibrary> library, int64_t max_bytes, std::optional<LoraShare> rank) {
  adapters_.emplace(std::move(library), config_.num_hidden_layers, config_.experts.num_experts, max_bytes,
                    std::move(rank));
}

Quantization CpuOps::quantization_of(WeightRole role) const {
  if (role == WeightRole::kSmall) return Quantization::kNone;
  if (role == WeightRole::kVocabulary && quantization_ != Quantization::kNone) return Quantization::kInt8;
  return quantization_;
}

std::unique_ptr<LinearWeight> CpuOps::make_linear(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                                  WeightRole role) {
  return std::make_unique<CpuLinear>(
      cpu::PackedLinear::pack(parts, biases, pool_, quantization_of(role), activations_of(role)), role);
}

std::unique_ptr<LinearWeight> CpuOps::make_table_columns(std::span<const TensorView> parts, int64_t first,
                                                         int64_t count) {
  return std::make_unique<CpuLinear>(cpu::PackedLinear::pack_int8_columns(parts, first, count, pool_),
                                     WeightRole::kVocabulary);
}

std::unique_ptr<LinearWeight> CpuOps::make_linear_from(std::span<const TensorView> parts,
                                                       std::span<const TensorView> biases, WeightRole role,
                                                       const cpu::PackedLinear::NextBytes& next) const {
  return std::make_unique<CpuLinear>(
      cpu::PackedLinear::from_packed(parts, biases, quantization_of(role), activations_of(role), next), role);
}

std::array<std::span<const uint8_t>, 4> CpuOps::packed_bytes(const LinearWeight& weight) {
  return packed(weight).packed_bytes();
}

const cpu::PackedLinear& CpuOps::packed_linear(const LinearWeight& weight) { return packed(weight); }

std::unique_ptr<ExpertsWeight> CpuOps::make_experts(std::vector<std::unique_ptr<LinearWeight>> gate_up,
                                                    std::vector<std::unique_ptr<LinearWeight>> down) {
  return std::make_unique<CpuExperts>(std::move(gate_up), std::move(down));
}

std::unique_ptr<DeviceBuffer> CpuOps::make_vector(const TensorView& values) {
  auto buffer = std::make_unique<CpuBuffer>(1, values.cols);
  // A table of one row, looked up: the kernels own the conversion from the stored dtype.
  const TensorView row{values.data, values.dtype, 1, values.cols};
  const TokenId first = 0;
  cpu::embedding(cpu::PackedLinear::pack({&row, 1}, {}, pool_), &first, 1, floats(buffer->rows()), pool_);
  return buffer;
}

std::unique_ptr<DeviceBuffer> CpuOps::allocate(int64_t rows, int64_t width, DType dtype) {
  LLMB_CHECK(dtype == DType::kF32);
  return std::make_unique<CpuBuffer>(rows, width);
}

void CpuOps::begin_step(const StepPlan& plan) {
  plan_ = &plan;
  resolve_step(plan, given_, &step_);
  kv_.copy_blocks_to(host_kv_, plan.swaps_out, pool_);
  kv_.copy_blocks_to(kv_, plan.block_copies, pool_);
  host_kv_.copy_blocks_to(kv_, plan.swaps_in, pool_);
  for (int32_t g = 0; g < groups_.num_groups(); ++g) {
    block_start_[g].clear();
    for (int32_t e = 0; e < plan.num_entries(); ++e)
      block_start_[g].push_back(plan.block_start[e * plan.num_layer_groups + g]);
  }
  if (adapters_) adapters_->begin_step(plan);
  if (states_) states_->begin_step(plan, step_.positions, pool_);
  if (open_) open_->begin_step(plan, step_, pool_);
  if (rows_) rows_->begin_step(plan, step_);
  if (slices_) slices_->begin_step(plan, step_);
  if (!plan.parent_rows.empty()) lay_out_trees();
  sample_rows_.clear();
  for (const SampleRow& row : plan.sample_rows)
    sample_rows_.push_back(plan.hidden_rows.empty() ? row.token_row : plan.hidden_rows[row.token_row]);
  token_types_.clear();
  for (int32_t e = 0; config_.num_token_types > 0 && e < plan.num_entries(); ++e)
    for (int32_t row = plan.query_start[e]; row < plan.query_start[e + 1]; ++row)
      token_types_.push_back(config_.num_token_types > 1 && step_.positions[row] >= plan.entries[e].second_text);
  sampled_.clear();
  kept_.rows.clear();
}

void CpuOps::lay_out_trees() {
  for (int32_t g = 0; g < groups_.num_groups(); ++g) {
    const TreeBatch::Tables whole = {plan_->block_size, plan_->block_ids.data(), block_start_[g].data(),
                                     &step_.slots[int64_t{g} * plan_->num_tokens()]};
    tree_batches_[g].lay_out(*plan_, step_.positions, slices_ ? slices_->tables(g) : whole);
  }
}

void CpuOps::end_step(StepOutput* output) {
  give_tokens(*plan_, step_.tokens, sampled_, output, &given_);
  output->hidden = std::move(vectors_);
  vectors_.clear();
  plan_ = nullptr;
  if (adapters_) adapters_->end_step();
}

void CpuOps::embedding(const LinearWeight& table, int64_t rows, Rows out) {
  if (ranks_ != nullptr) return embed_part(packed(table), rows, out);
  cpu::embedding(packed(table), step_.tokens.data() + first_row(), rows, floats(out), pool_);
}

void CpuOps::add_positions(const LinearWeight& table, int64_t rows, Rows residual) {
  cpu::add_embedding(packed(table), step_.positions.data() + first_row(), rows, floats(residual), pool_);
}

void CpuOps::rms_norm_groups(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight, float eps,
                             int64_t rows) {
  cpu::rms_norm_groups(floats(x) + first_column, x.width, num_groups, floats(weight.rows()), weight.rows().width, eps,
                       rows, pool_);
}

void CpuOps::layer_norm_groups(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight,
                               const DeviceBuffer* bias, float eps, int64_t rows) {
  cpu::layer_norm_groups(floats(x) + first_column, x.width, num_groups, floats(weight.rows()),
                         bias != nullptr ? floats(bias->rows()) : nullptr, weight.rows().width / num_groups, eps, rows,
                         pool_);
}

void CpuOps::linear(const LinearWeight& weight, Rows x, int64_t rows, Rows out) {
  if (is_partial_sum(weight) && ranks_ != nullptr) return linear_over_ranks(packed(weight), x, rows, out);
  cpu::linear(packed(weight), floats(x), rows, floats(out), pool_);
}

void CpuOps::adapted_linear(const AdaptedProduct& product, const LinearWeight& weight, Rows x, int64_t rows, Rows out) {
  if (const cpu::PackedLinear* const merged = adapters_->merged_for_all(product, rows)) {
    cpu::linear(*merged, floats(x), rows, floats(out), pool_);
  } else {
    const cpu::LoraWork* const lora = adapters_->shrink(product, floats(x), x.width, rows, pool_);
    cpu::linear(packed(weight), floats(x), rows, floats(out), pool_, lora);
    adapters_->compute_merged_rows(product, floats(x), floats(out), pool_);
  }
  if (is_partial_sum(weight) && ranks_ != nullptr) sum_rows(out, rows);
}

void CpuOps::lora_embedding(int64_t rows, Rows out) {
  adapters_->add_embedding(step_.tokens.data(), rows, floats(out), out.width, pool_);
}

void CpuOps::grow_queries(int64_t rows, Rows qkv) {
  cpu::grow_queries(floats(qkv), positions() + first_row(), config_.query_growth, rows, config_.q_size(),
                    qkv.width, pool_);
}

// Stores the keys and values of so many rows of the step and rotates their queries. qkv: [rows, (num_heads + 2 * KV
// heads) * head_dim]
void CpuOps::write_kv(int32_t layer, int64_t first_row, int64_t rows, int32_t num_heads, float* qkv) {
  static const RopeTable kNone;
  const int32_t rope = config_.ropes.empty() ? -1 : config_.layer(layer).rope;
  const RopeTable& table = rope < 0 ? kNone : ropes_[rope];
  const int32_t group = groups_.group(layer), kv_layer = config_.kv_layer_of(layer);
  const bool has_own = config_.has_own_kv(layer);
  const int32_t* const slots = open_ && has_own ? open_->slots().data()
                               : slices_        ? slices_->kv_slots(group)
                                                : &step_.slots[group * int64_t{plan_->num_tokens()}];
  cpu::KvCacheView kv = open_ ? open_->view(kv_layer) : kv_.layer(kv_layer);
  if (!has_own) kv.num_kv_heads = 0;  // nothing is written
  cpu::rope_and_kv_write(qkv, positions() + first_row, slots + first_row, rows, num_heads, kv.num_kv_heads,
                         kv.head_dim, rope < 0 ? 0 : config_.rotary_dim(config_.ropes[rope]), table.cos.data(),
                         table.sin.data(), kv, pool_);
}

void CpuOps::paged_attention(int32_t layer, Rows qkv, const DeviceBuffer* sinks, Rows out) {
  const cpu::AttentionParams params{config_.num_attention_heads,
                                    score_scales_[static_cast<size_t>(layer)],
                                    config_.layer(layer).window,
                                    static_cast<float>(config_.attention_softcap),
                                    config_.alibi_slopes.empty() ? nullptr : config_.alibi_slopes.data(),
                                    sinks != nullptr ? floats(sinks->rows()) : nullptr,
                                    config_.layer(layer).chunk,
                                    config_.is_encoder,
                                    config_.layer(layer).reach,
                                    config_.layer(layer).first_position,
                                    head_group_,
                                    first_absent_};
  if (slices_) return attend_to_slices(layer, qkv, params, out);
  const int32_t kv_layer = config_.kv_layer_of(layer), group = groups_.group(layer);
  const cpu::KvCacheView kv = kv_.layer(kv_layer), open = open_ ? open_->view(kv_layer) : cpu::KvCacheView();
  const auto attend = [&](cpu::AttentionBatch batch) {
    if (open_) batch.open = &open, batch.open_blocks = open_->blocks(kv_layer) + first_row();
    cpu::paged_attention(floats(qkv), qkv.width, floats(out), batch, params, kv, pool_);
  };
  if (has_part_of_rows()) return attend(rows_->batch(*plan_, group));
  if (plan_->parent_rows.empty())
    return attend({plan_->num_entries(), (kept_.rows.empty() ? plan_->query_start : kept_.start).data(),
                   step_.context_len.data(), block_start_[group].data(), plan_->block_ids.data(),
                   shared_prefixes(*plan_, group), plan_->shared_entries.data()});
  const TreeBatch& tree_batch = tree_batches_[group];
  for (const TreeBatch::Part& part : tree_batch.parts()) {
    tree_batch.gather(part, kv, pool_);
    attend(tree_batch.batch(part));
  }
}

void CpuOps::join_latents(HeadWeights heads, Rows queries, Rows latents, int64_t rows, Rows qkv) {
  const LatentConfig& l = config_.latent;
  const int64_t num_heads = config_.num_attention_heads, dim = config_.head_dim, query = l.query_dim();
  const size_t rope_bytes = static_cast<size_t>(l.rope_dim) * sizeof(float);
  cpu::for_each_row(pool_, rows, num_heads * l.rope_dim + dim, [&](int64_t row, int) {
    const float* const from = floats(queries.from(row));
    float* const to = floats(qkv.from(row));
    for (int64_t h = 0; h < num_heads; ++h) std::memcpy(to + h * dim, from + h * query + l.key_dim, rope_bytes);
    std::copy_n(floats(latents.from(row)), dim, to + num_heads * dim);
  });
  cpu::head_linear(packed_heads(heads), floats(queries), {queries.width, 0, query}, rows, floats(qkv),
                   {qkv.width, l.rope_dim, dim}, &heads_scratch_, pool_);
}

void CpuOps::expand_values(HeadWeights heads, Rows gathered, int64_t rows, Rows out) {
  cpu::head_linear(packed_heads(heads), floats(gathered), {gathered.width, 0, config_.latent.rank}, rows, floats(out),
                   {out.width, 0, config_.latent.value_dim}, &heads_scratch_, pool_);
}

void CpuOps::activate(const ActivationSpec& spec, Rows x, int64_t rows, Rows out) {
  cpu::activate(spec, floats(x), rows, out.width, floats(out), pool_);
}

void CpuOps::linear_activate(const LinearWeight& weight, const ActivationSpec& spec, Rows x, int64_t rows, Rows between,
                             Rows out) {
  if (!activates_with(weight, spec, rows)) return Ops::linear_activate(weight, spec, x, rows, between, out);
  cpu::linear_activate(packed(weight), spec, floats(x), rows, floats(out), pool_);
}

void CpuOps::adapted_linear_activate(const AdaptedProduct& product, const LinearWeight& weight,
                                     const ActivationSpec& spec, Rows x, int64_t rows, Rows between, Rows out) {
  if (!activates_with(weight, spec, rows) || adapters_->has_merged())
    return Ops::adapted_linear_activate(product, weight, spec, x, rows, between, out);
  const cpu::LoraWork* const lora = adapters_->shrink(product, floats(x), x.width, rows, pool_);
  cpu::linear_activate(packed(weight), spec, floats(x), rows, floats(out), pool_, lora);
}

void CpuOps::activate_times(Activation kind, Rows x, Rows y, int64_t first_column, int64_t rows, Rows out) {
  cpu::activate_times(kind, floats(x), floats(y) + first_column, y.width, rows, x.width, floats(out), pool_);
}

void CpuOps::mix_experts(const AdaptedProduct& product, const ExpertsWeight& experts, const ExpertsConfig& config,
                         const ActivationSpec& spec, Rows router_logits, const DeviceBuffer* choice_bias,
                         const DeviceBuffer* scales, Rows x, int64_t rows, Rows out) {
  const bool may_be_adapted = has_adapters() && product.layer < config_.num_hidden_layers;
  cpu::mix_experts(static_cast<const CpuExperts&>(experts).views(), config, spec, floats(router_logits),
                   choice_bias != nullptr ? floats(choice_bias->rows()) : nullptr,
                   scales != nullptr ? floats(scales->rows()) : nullptr, floats(x), rows, x.width, floats(out),
                   &experts_scratch_, pool_, may_be_adapted ? adapters_->of_experts(product, rows) : nullptr);
  if (ranks_ != nullptr) sum_rows(out, rows);
}

void CpuOps::add_gated(Rows x, Rows y, Rows gate, int64_t rows) {
  cpu::add_gated(floats(x), floats(y), floats(gate), rows, x.width, pool_);
}

void CpuOps::multiply_by_gate(GateKind kind, Rows x, Rows gate, int64_t rows) {
  LLMB_CHECK(x.width == gate.width);
  cpu::multiply_by_gate(kind, floats(x), floats(gate), rows * x.width, pool_);
}

// Where ranks share out rows each keeps all states, and gets what these take of all rows.
void CpuOps::causal_conv(int32_t layer, Rows x, const DeviceBuffer& weight, const DeviceBuffer* bias, Rows out) {
  states_->causal_conv(layer, has_part_of_rows() ? all_rows(x) : floats(x), floats(weight.rows()),
                       bias != nullptr ? floats(bias->rows()) : nullptr, floats(out), pool_);
  if (has_part_of_rows() && config_.state.kind == StateKind::kShortConv) move_own_rows(out);
}

void CpuOps::update_states(int32_t layer, Rows qkv, Rows gates, const DeviceBuffer& log_a, const DeviceBuffer& dt_bias,
                           const DeviceBuffer* skip, Rows out) {
  const cpu::StateWeights weights = {floats(log_a.rows()), floats(dt_bias.rows()),
                                     skip != nullptr ? floats(skip->rows()) : nullptr};
  states_->update_states(layer, floats(qkv), has_part_of_rows() ? all_rows(gates) : floats(gates), weights,
                         floats(out), pool_);
  if (has_part_of_rows()) move_own_rows(out);
}

void CpuOps::scale(Rows x, float factor, int64_t rows) { cpu::scale(floats(x), factor, rows * x.width, pool_); }

void CpuOps::add_scaled(Rows residual, Rows delta, const DeviceBuffer& factor, int64_t rows) {
  cpu::add(floats(residual), floats(delta), 1, rows * residual.width, pool_);
  cpu::scale(floats(residual), *floats(factor.rows()), rows * residual.width, pool_);
}

void CpuOps::softcap(Rows x, float cap, int64_t rows) { cpu::softcap(floats(x), cap, rows * x.width, pool_); }

void CpuOps::clamp(Rows x, float limit, int64_t rows) { cpu::clamp(floats(x), limit, rows * x.width, pool_); }

void CpuOps::gather_sample_rows(Rows x, int64_t num_samples, Rows out) {
  const std::span<const int32_t> sampled(sample_rows_.data(), static_cast<size_t>(num_samples));
  if (has_part_of_rows()) return rows_->gather(floats(x), x.width, sampled, floats(out));
  cpu::gather_rows(floats(x), sampled.data(), num_samples, x.width, floats(out), pool_);
}

void CpuOps::add_token_types(const LinearWeight& table, int64_t rows, Rows residual) {
  cpu::add_embedding(packed(table), token_types_.data(), rows, floats(residual), pool_);
}

void CpuOps::pool_rows(Rows x, PoolingKind kind, int64_t num_samples, Rows out) {
  first_rows_.clear();
  end_rows_.clear();
  for (const SampleRow& row : std::span(plan_->sample_rows).first(num_samples)) {
    const int32_t entry = plan_->groups[row.group].entry;
    first_rows_.push_back(plan_->query_start[entry]);
    end_rows_.push_back(plan_->query_start[entry + 1]);
  }
  if (kind == PoolingKind::kMean)
    return cpu::mean_rows(floats(x), first_rows_.data(), end_rows_.data(), num_samples, x.width, floats(out), pool_);
  LLMB_CHECK(kind == PoolingKind::kFirst);
  cpu::gather_rows(floats(x), first_rows_.data(), num_samples, x.width, floats(out), pool_);
}

// Every row counts as finite, so that a group gives a token and a token has a row; whoever takes a row looks at it.
void CpuOps::give_vectors(Rows x, int64_t num_samples) {
  const auto count = static_cast<size_t>(num_samples);
  sampled_.tokens.assign(count, 0);
  sampled_.logprobs.assign(count, 0);
  sampled_.is_finite.assign(count, 1);
  sampled_.top_start.assign(count + 1, 0);
  vectors_.assign(floats(x), floats(x) + num_samples * x.width);
}

void CpuOps::sample(Rows logits, int64_t first_sample, int64_t rows) {
  const cpu::SampleInput in{std::span(step_.sample_rows).subspan(first_sample, rows), plan_->bias, step_.penalty,
                            plan_->masks, plan_->mask_words};
  if (ranks_ != nullptr) cpu::sample_parts(floats(logits), vocab_, in, &sampled_, *ranks_->tensor, pool_);
  else cpu::sample(floats(logits), config_.vocab_size, in, &sampled_, pool_);
}

}  // namespace llmb
