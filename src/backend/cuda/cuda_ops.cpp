#include "backend/cuda/cuda_ops.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/activate.h"
#include "kernels/cuda/add_embedding.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/gather.h"
#include "kernels/cuda/layer_norm.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/resolve_step.h"
#include "kernels/cuda/rope.h"
#include "model/rope_table.h"

namespace llmb {

using cuda::check;

namespace {

// Both in the activation dtype.
class CudaLinear final : public LinearWeight {
 public:
  CudaLinear(int64_t out_features, int64_t in_features, bool has_bias, DType dtype)
      : weight_(out_features * in_features * dtype_bytes(dtype)),
        bias_(has_bias ? out_features * dtype_bytes(dtype) : 0),
        view_{weight_.data(), bias_.data(), out_features, in_features} {}
  int64_t resident_bytes() const override { return weight_.bytes() + bias_.bytes(); }
  const cuda::LinearView& view() const { return view_; }
  uint8_t* weight() const { return weight_.data<uint8_t>(); }
  uint8_t* bias() const { return bias_.data<uint8_t>(); }

 private:
  const cuda::DeviceMemory weight_, bias_;
  const cuda::LinearView view_;
};

class CudaBuffer final : public DeviceBuffer {
 public:
  CudaBuffer(int64_t rows, int64_t width, DType dtype)
      : memory_(rows * width * dtype_bytes(dtype)), rows_{memory_.data(), dtype, width} {}
  Rows rows() const override { return rows_; }
  int64_t resident_bytes() const override { return memory_.bytes(); }

 private:
  const cuda::DeviceMemory memory_;
  const Rows rows_;
};

// Every weight and buffer here came from make_linear, make_vector or allocate.
const cuda::LinearView& view(const LinearWeight& weight) { return static_cast<const CudaLinear&>(weight).view(); }

template <typename T>
T* data(Rows rows) {
  return static_cast<T*>(rows.data);
}

// Calls body with a value of the C++ type that stands for dtype.
template <typename Body>
void with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float());
    case DType::kF16:
      return body(__half());
    case DType::kBF16:
      return body(__nv_bfloat16());
    case DType::kI8:
      LLMB_CHECK_MSG(false, "activations are floating-point numbers");
  }
}

cuda::AttentionShape attention_shape(const ModelConfig& config, const CudaOpsOptions& options) {
  cuda::AttentionShape shape;
  shape.dtype = options.dtype;
  shape.num_heads = config.num_attention_heads;
  shape.num_kv_heads = config.num_key_value_heads;
  shape.head_dim = config.head_dim;
  shape.block_size = options.block_size;
  shape.deterministic = options.deterministic;
  shape.hopper = options.hopper;
  return shape;
}

template <typename T>
cuda::DeviceMemory upload_array(const std::vector<T>& values, cudaStream_t stream) {
  const size_t bytes = values.size() * sizeof(T);
  cuda::DeviceMemory memory(static_cast<int64_t>(bytes));
  if (bytes == 0) return memory;
  check(cudaMemcpyAsync(memory.data(), values.data(), bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return memory;
}

// The matrices of one kind of all experts, and the addresses of their parts on the device.
class CudaExpertMatrices {
 public:
  CudaExpertMatrices(std::vector<std::unique_ptr<LinearWeight>> matrices, cudaStream_t stream)
      : matrices_(std::move(matrices)) {
    std::vector<const void*> weights, biases;
    for (const auto& matrix : matrices_) {
      weights.push_back(view(*matrix).weight);
      biases.push_back(view(*matrix).bias);
    }
    weights_ = upload_array(weights, stream);
    biases_ = upload_array(biases, stream);
    const cuda::LinearView& first = view(*matrices_[0]);
    grouped_ = {weights_.data<const void*>(), first.bias != nullptr ? biases_.data<const void*>() : nullptr,
                first.out_features, first.in_features};
  }
  const cuda::GroupedWeights& grouped() const { return grouped_; }
  int64_t resident_bytes() const {
    int64_t bytes = 0;
    for (const auto& matrix : matrices_) bytes += matrix->resident_bytes();
    return bytes;
  }

 private:
  const std::vector<std::unique_ptr<LinearWeight>> matrices_;
  cuda::DeviceMemory weights_, biases_;  // [num_experts] addresses
  cuda::GroupedWeights grouped_;
};

class CudaExperts final : public ExpertsWeight {
 public:
  CudaExperts(std::vector<std::unique_ptr<LinearWeight>> gate_up, std::vector<std::unique_ptr<LinearWeight>> down,
              cudaStream_t stream)
      : gate_up_(std::move(gate_up), stream), down_(std::move(down), stream) {}
  int64_t resident_bytes() const override { return gate_up_.resident_bytes() + down_.resident_bytes(); }
  const cuda::GroupedWeights& gate_up() const { return gate_up_.grouped(); }
  const cuda::GroupedWeights& down() const { return down_.grouped(); }

 private:
  const CudaExpertMatrices gate_up_, down_;
};

cuda::DeviceMemory experts_workspace(const ModelConfig& config, const CudaOpsOptions& options) {
  if (config.experts.num_experts == 0) return {};
  const int64_t intermediate = config.experts.intermediate_size;
  const cuda::ExpertsShape shape{options.limits.max_num_tokens, config.hidden_size,
                                 (config.activation.gated ? 2 : 1) * intermediate, intermediate, config.experts};
  return cuda::DeviceMemory(cuda::experts_workspace_bytes(shape, options.dtype));
}

cuda::DeviceMemory zeroed(int64_t bytes, cudaStream_t stream) {
  cuda::DeviceMemory memory(bytes);
  if (bytes > 0) check(cudaMemsetAsync(memory.data(), 0, bytes, stream), "cudaMemsetAsync");
  return memory;
}

}  // namespace

CudaOps::CudaOps(const ModelConfig& config, const CudaDevice& device, const CudaOpsOptions& options,
                 cudaStream_t stream)
    : config_(config),
      options_(options),
      stream_(stream),
      num_ctas_(device.num_sms * cuda::attention_tiling(attention_shape(config, options)).ctas_per_sm),
      attention_shape_(attention_shape(config, options)),
      linear_({options.dtype, options.deterministic, options.hopper, device.num_sms}, stream),
      uploader_(std::make_unique<WeightUploader>(stream)),
      stage_(options.limits, attention_shape_, num_ctas_) {
  for (const RopeConfig& rope : config.ropes) {
    const RopeTable table = make_rope_table(rope, config.rotary_dim(rope), options.max_position);
    ropes_.push_back({config.rotary_dim(rope), upload_array(table.cos, stream), upload_array(table.sin, stream)});
  }
  alibi_slopes_ = upload_array(config.alibi_slopes, stream);
  const cuda::AttentionLimits limits =
      cuda::attention_limits(attention_shape_, num_ctas_, options.limits.max_num_seqs, options.limits.max_num_tokens);
  attention_partials_ = cuda::DeviceMemory(limits.max_partial_rows * config.head_dim * int64_t{sizeof(float)});
  attention_partial_stats_ = cuda::DeviceMemory(limits.max_partial_rows * 2 * int64_t{sizeof(float)});
  attention_counters_ = zeroed(limits.max_splits * int64_t{sizeof(int32_t)}, stream);
  experts_workspace_ = experts_workspace(config, options);
  sample_limits_ = {static_cast<int32_t>(options.max_logit_rows), config.vocab_size, options.limits.max_num_penalties,
                    options.limits.max_num_biases};
  sample_workspace_ = zeroed(cuda::sample_workspace_bytes(sample_limits_), stream);
  lay_out_samples();
}

void CudaOps::lay_out_samples() {
  const int64_t rows = options_.limits.max_num_seqs, top = rows * kMaxTopLogprobs;
  const int64_t finite_bytes = ceil_div(rows, 4) * 4;
  previously_sampled_ = zeroed(rows * int64_t{sizeof(TokenId)}, stream_);
  sampled_bytes_ = rows * 8 + finite_bytes;
  sample_output_ = zeroed(sampled_bytes_ + top * 8, stream_);
  auto* at = sample_output_.data<uint8_t>();
  sampled_.tokens = reinterpret_cast<TokenId*>(at);
  sampled_.logprobs = reinterpret_cast<float*>(at + rows * 4);
  sampled_.is_finite = at + rows * 8;
  sampled_.top_tokens = reinterpret_cast<TokenId*>(at + sampled_bytes_);
  sampled_.top_logprobs = reinterpret_cast<float*>(at + sampled_bytes_ + top * 4);
  sampled_.max_top = kMaxTopLogprobs;
}

std::unique_ptr<LinearWeight> CudaOps::make_linear(std::span<const TensorView> parts,
                                                   std::span<const TensorView> biases, WeightRole /*role*/) {
  int64_t out_features = 0;
  for (const TensorView& part : parts) out_features += part.rows;
  auto linear = std::make_unique<CudaLinear>(out_features, parts[0].cols, !biases.empty(), options_.dtype);
  const auto stack = [&](std::span<const TensorView> views, uint8_t* out) {
    for (const TensorView& values : views) {
      uploader_->upload(values, options_.dtype, out);
      out += values.rows * values.cols * dtype_bytes(options_.dtype);
    }
  };
  stack(parts, linear->weight());
  stack(biases, linear->bias());
  return linear;
}

std::unique_ptr<ExpertsWeight> CudaOps::make_experts(std::vector<std::unique_ptr<LinearWeight>> gate_up,
                                                     std::vector<std::unique_ptr<LinearWeight>> down) {
  return std::make_unique<CudaExperts>(std::move(gate_up), std::move(down), stream_);
}

std::unique_ptr<DeviceBuffer> CudaOps::make_vector(const TensorView& values) {
  auto buffer = std::make_unique<CudaBuffer>(1, values.cols, DType::kF32);
  uploader_->upload(values, DType::kF32, buffer->rows().data);
  return buffer;
}

std::unique_ptr<DeviceBuffer> CudaOps::allocate(int64_t rows, int64_t width, DType dtype) {
  auto buffer = std::make_unique<CudaBuffer>(rows, width, dtype);
  check(cudaMemsetAsync(buffer->rows().data, 0, buffer->resident_bytes(), stream_), "cudaMemsetAsync");
  return buffer;
}

void CudaOps::end_of_weights() {
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  uploader_.reset();
}

KvLayout CudaOps::kv_layout(int32_t num_blocks) const {
  return {config_.num_hidden_layers,
          config_.num_key_value_heads,
          config_.head_dim,
          options_.block_size,
          num_blocks,
          options_.dtype};
}

void CudaOps::set_kv_pool(int32_t num_blocks) {
  kv_pool_ = cuda::DeviceMemory();
  kv_pool_ = cuda::DeviceMemory(kv_layout(num_blocks).bytes_per_block() * num_blocks);
  num_blocks_ = num_blocks;
}

// First the keys of all the layer's blocks, then the values.
template <typename T>
T* CudaOps::kv(int32_t layer, bool values) const {
  const int64_t size = int64_t{num_blocks_} * options_.block_size * config_.kv_size();
  return kv_pool_.data<T>() + (2 * int64_t{layer} + (values ? 1 : 0)) * size;
}

void CudaOps::embedding(const LinearWeight& table, int64_t rows, Rows out) {
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::embedding(static_cast<const T*>(view(table).weight), step_.tokens, sampled_.tokens, rows, out.width,
                    data<float>(out), stream_);
  });
}

void CudaOps::add_rms_norm(Rows residual, Rows delta, const DeviceBuffer& weight, float eps, int64_t rows, Rows out) {
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::add_rms_norm(data<float>(residual), data<const T>(delta), data<const float>(weight.rows()), eps, rows,
                       residual.width, data<T>(out), stream_);
  });
}

void CudaOps::linear(const LinearWeight& weight, Rows x, int64_t rows, Rows out) {
  if (is_tuning_) linear_.tune(view(weight), x.data, rows, out.data, out.dtype, stream_);
  linear_.run(view(weight), x.data, rows, out.data, out.dtype, stream_);
}

void CudaOps::rope_and_kv_write(int32_t layer, int64_t rows, Rows qkv) {
  static const DeviceRope kNone;
  const int32_t index = ropes_.empty() ? -1 : config_.layer(layer).rope;
  const DeviceRope& rope = index < 0 ? kNone : ropes_[index];
  const cuda::RopeShape shape{config_.num_attention_heads, config_.num_key_value_heads, config_.head_dim,
                              rope.rotary_dim, options_.block_size};
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::rope_and_kv_write(data<T>(qkv), step_.positions, step_.slots, rows, shape, rope.cos.data<const float>(),
                            rope.sin.data<const float>(), kv<T>(layer, false), kv<T>(layer, true), stream_);
  });
}

void CudaOps::paged_attention(int32_t layer, Rows qkv, const DeviceBuffer* sinks, Rows out) {
  const cuda::AttentionWork work{num_ctas_,
                                 step_.items,
                                 step_.cta_start,
                                 attention_partials_.data<float>(),
                                 attention_partial_stats_.data<float>(),
                                 attention_counters_.data<int32_t>(),
                                 step_.has_wgmma_items,
                                 num_blocks_};
  cuda::AttentionParams params{attention_shape_, static_cast<float>(config_.score_scale(layer)),
                               static_cast<float>(config_.attention_softcap), alibi_slopes_.data<const float>(),
                               sinks != nullptr ? data<const float>(sinks->rows()) : nullptr};
  params.shape.window = config_.layer(layer).window;
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::paged_attention(data<const T>(qkv), qkv.width, data<T>(out), static_cast<const T*>(kv<T>(layer, false)),
                          static_cast<const T*>(kv<T>(layer, true)), step_.block_ids, work, params, stream_);
  });
}

void CudaOps::activate(const ActivationSpec& spec, Rows x, int64_t rows, Rows out) {
  with_type(options_.dtype,
            [&]<typename T>(T) { cuda::activate(spec, data<const T>(x), rows, out.width, data<T>(out), stream_); });
}

void CudaOps::mix_experts(const ExpertsWeight& experts, const ExpertsConfig& config, const ActivationSpec& spec,
                          Rows router_logits, Rows x, int64_t rows, Rows out) {
  const auto& weights = static_cast<const CudaExperts&>(experts);
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::mix_experts(weights.gate_up(), weights.down(), config, spec, data<const float>(router_logits),
                      data<const T>(x), rows, data<T>(out), experts_workspace_.data(), stream_);
  });
}

void CudaOps::add_positions(const LinearWeight& table, int64_t rows, Rows residual) {
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::add_embedding(static_cast<const T*>(view(table).weight), step_.positions, rows, residual.width,
                        data<float>(residual), stream_);
  });
}

void CudaOps::add(Rows residual, Rows delta, float factor, int64_t rows, Rows out) {
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::add(data<float>(residual), data<const T>(delta), factor, rows * residual.width, data<T>(out), stream_);
  });
}

void CudaOps::add_layer_norm(Rows residual, Rows delta, const DeviceBuffer& weight, const DeviceBuffer* bias, float eps,
                             int64_t rows, Rows out) {
  const auto* const b = bias != nullptr ? data<const float>(bias->rows()) : nullptr;
  with_type(options_.dtype, [&]<typename T>(T) {
    const auto run = [&](auto* to) {
      cuda::add_layer_norm(data<float>(residual), data<const T>(delta), data<const float>(weight.rows()), b, eps, rows,
                           residual.width, to, stream_);
    };
    if (out.dtype == DType::kF32) run(data<float>(out));
    else run(data<T>(out));
  });
}

void CudaOps::rms_norm_groups(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight, float eps,
                              int64_t rows) {
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::rms_norm_groups(data<T>(x) + first_column, x.width, num_groups, data<const float>(weight.rows()),
                          weight.rows().width, eps, rows, stream_);
  });
}

void CudaOps::scale(Rows x, float factor, int64_t rows) {
  cuda::scale(data<float>(x), factor, rows * x.width, stream_);
}

void CudaOps::softcap(Rows x, float cap, int64_t rows) { cuda::softcap(data<float>(x), cap, rows * x.width, stream_); }

void CudaOps::clamp(Rows x, float limit, int64_t rows) {
  with_type(options_.dtype, [&]<typename T>(T) { cuda::clamp(data<T>(x), limit, rows * x.width, stream_); });
}

void CudaOps::gather_sample_rows(Rows x, int64_t num_samples, Rows out) {
  with_type(x.dtype, [&]<typename T>(T) {
    cuda::gather_rows(data<const T>(x), step_.sample_rows, num_samples, x.width, data<T>(out), stream_);
  });
}

void CudaOps::sample(Rows logits, int64_t first_sample, int64_t rows) {
  if (step_.parts.empty()) return sample_rows(logits, first_sample, rows);
  // Padded rows are of no part: nobody looks at what they give.
  for (const SamplePart& part : step_.parts) {
    const auto begin = std::max<int64_t>(part.begin, first_sample);
    const auto end = std::min<int64_t>(part.end, first_sample + rows);
    if (begin >= end) continue;
    // Calls are in order of their rows: one that begins within a part finds its tables in place.
    if (begin == part.begin) {
      stage_.upload_tables(part, stream_);
      cuda::count_unseen_tokens(step_.samples + part.begin, part.end - part.begin, step_.penalty,
                                previously_sampled_.data<const TokenId>(), stream_);
    }
    sample_rows(logits.from(begin - first_sample), begin, end - begin);
  }
}

void CudaOps::sample_rows(Rows logits, int64_t first_sample, int64_t rows) {
  const cuda::SampleInput input{data<float>(logits), step_.samples + first_sample, step_.bias,
                                step_.penalty,       static_cast<int32_t>(rows),   config_.vocab_size};
  cuda::SampleResult result = sampled_;
  result.tokens += first_sample;
  result.logprobs += first_sample;
  result.is_finite += first_sample;
  result.top_tokens += first_sample * kMaxTopLogprobs;
  result.top_logprobs += first_sample * kMaxTopLogprobs;
  cuda::sample(input, needs_, result, sample_limits_, sample_workspace_.data(), stream_);
}

void CudaOps::count_unseen_tokens(const StepArrays& arrays, int32_t num_samples) {
  if (arrays.parts.empty())
    return cuda::count_unseen_tokens(arrays.samples, num_samples, arrays.penalty, sampled_.tokens, stream_);
  // The first part's tokens take the place of those that the last part's penalties count.
  check(cudaMemcpyAsync(previously_sampled_.data(), sampled_.tokens, previously_sampled_.bytes(),
                        cudaMemcpyDeviceToDevice, stream_),
        "cudaMemcpyAsync");
}

}  // namespace llmb
