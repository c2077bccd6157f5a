// The ops of the forward pass: each calls its kernel with the step in progress. The rest of CudaOps is in cuda_ops.cpp.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_weights.h"
#include "base/check.h"
#include "kernels/cuda/activate.h"
#include "kernels/cuda/add_embedding.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gather.h"
#include "kernels/cuda/int4_pack.h"
#include "kernels/cuda/order_columns.h"
#include "kernels/cuda/layer_norm.h"
#include "kernels/cuda/sparse24_pack.h"
#include "kernels/cuda/w4a8_pack.h"

namespace llmb {

void CudaOps::multiply(const CudaLinear& linear, Rows x, int64_t rows, Rows out) {
  if (linear.is_int8()) return linear_int8(linear.int8_view(), x, rows, out);
  if (linear.is_w4a8()) return linear_w4a8(linear.w4a8_view(), x, rows, out);
  if (linear.is_fp8()) return linear_fp8(linear.fp8_view(), x, rows, out);
  if (linear.has_units()) return linear_int4(linear.int4_view(), in_order_of(linear, x, rows), rows, out);
  if (linear.is_sparse24()) return linear_sparse24(linear.sparse24_view(), x, rows, out);
  if (is_tuning_) linear_.tune(linear.view(), x.data, rows, out.data, out.dtype, stream_);
  linear_.run(linear.view(), x.data, rows, out.data, out.dtype, stream_);
}

cuda::Int8Rows CudaOps::rounded_rows(Rows x, int64_t rows) {
  LLMB_CHECK(rows * int64_t{sizeof(float)} <= x_scales_.bytes());
  auto* const int8 = x_int8_.data<int8_t>();
  auto* const scales = x_scales_.data<float>();
  with_type(x.dtype,
            [&]<typename T>(T) { cuda::quantize_rows(data<const T>(x), rows, x.width, int8, scales, stream_); });
  return {int8, scales};
}

// The same bits either way.
void CudaOps::linear_w4a8(const cuda::W4A8View& weight, Rows x, int64_t rows, Rows out) {
  LLMB_CHECK(x.width == weight.in_features);
  const cuda::Int8Rows rounded = rounded_rows(x, rows);
  if (rows <= cuda::LinearW4A8::kMaxRows)
    return with_type(out.dtype, [&]<typename Out>(Out) {
      linear_w4a8_->run(weight, rounded, rows, data<Out>(out), stream_);
    });
  auto* const numbers = widened_.data<int8_t>();
  cuda::widen_w4a8(weight, numbers, stream_);
  multiply_int8({numbers, weight.scales, weight.bias, weight.out_features, weight.in_features}, rounded, rows, out);
}

void CudaOps::linear_int8(const cuda::Int8View& weight, Rows x, int64_t rows, Rows out) {
  LLMB_CHECK(x.width == weight.in_features);
  multiply_int8(weight, rounded_rows(x, rows), rows, out);
}

void CudaOps::multiply_int8(const cuda::Int8View& weight, const cuda::Int8Rows& rounded, int64_t rows, Rows out) {
  with_type(out.dtype, [&]<typename Out>(Out) {
    if (wgmma8_ && rows >= cuda::tuning::kMinInt8WgmmaRows)
      return wgmma8_->run(weight, rounded, rows, data<Out>(out), stream_);
    if (int8_lt_ && int8_lt_->run(weight, rounded, rows, data<Out>(out), stream_)) return;
    cuda::linear_int8(weight, rounded, rows, data<Out>(out), stream_);
  });
}

// Deterministic: one kernel whatever the number of rows.
void CudaOps::linear_fp8(const cuda::Fp8View& weight, Rows x, int64_t rows, Rows out) {
  LLMB_CHECK(x.width == weight.in_features);
  const auto run = [&]<typename T>(T) {
    const auto multiply = [&]<typename Out>(Out* to) {
      if (fp8_lt_ && cuda::LinearFp8Lt::may_take(weight, rows)) {
        LLMB_CHECK(rows * int64_t{sizeof(float)} <= x_fp8_scales_.bytes());
        const cuda::Fp8Rows rounded{x_fp8_.data<cuda::E4m3>(), x_fp8_scales_.data<float>()};
        cuda::quantize_rows(data<const T>(x), rows, x.width, x_fp8_.data<cuda::E4m3>(), x_fp8_scales_.data<float>(),
                            stream_);
        if (fp8_lt_->run(weight, rounded, rows, x.dtype, to, stream_)) return;
      }
      linear_fp8_->run(weight, data<const T>(x), rows, to, stream_);
    };
    if (out.dtype == DType::kF32) multiply(data<float>(out));
    else multiply(data<T>(out));
  };
  if (x.dtype == DType::kF16) run(__half());
  else run(__nv_bfloat16());
}

// The columns of x in the order of the weight's.
Rows CudaOps::in_order_of(const CudaLinear& linear, Rows x, int64_t rows) {
  if (linear.order() == nullptr) return x;
  LLMB_CHECK(x.width == linear.in_features() && rows * x.width * dtype_bytes(x.dtype) <= x_ordered_.bytes());
  auto* const ordered = x_ordered_.data<uint16_t>();
  cuda::order_columns(data<const uint16_t>(x), linear.order(), rows, x.width, ordered, stream_);
  return {ordered, x.dtype, x.width};
}

template <class T, class View, class Write>
void CudaOps::multiply_numbers(const View& weight, Rows x, int64_t rows, Rows out, const Write& write) {
  write(numbers_.data<T>());
  const cuda::LinearView numbers{numbers_.data(), weight.bias, weight.out_features, weight.in_features};
  if (is_tuning_) linear_.tune(numbers, x.data, rows, out.data, out.dtype, stream_);
  linear_.run(numbers, x.data, rows, out.data, out.dtype, stream_);
}

// As linear_fp8().
void CudaOps::linear_int4(const cuda::Int4View& weight, Rows x, int64_t rows, Rows out) {
  const auto run = [&]<typename T>(T) {
    if (numbers_.bytes() == 0 || rows <= linear_int4_->max_rows()) {
      if (out.dtype == DType::kF32) linear_int4_->run(weight, data<const T>(x), rows, data<float>(out), stream_);
      else linear_int4_->run(weight, data<const T>(x), rows, data<T>(out), stream_);
      return;
    }
    multiply_numbers<T>(weight, x, rows, out, [&](T* to) { cuda::dequantize_int4(weight, to, stream_); });
  };
  if (x.dtype == DType::kF16) run(__half());
  else run(__nv_bfloat16());
}

// The same.
void CudaOps::linear_sparse24(const cuda::Sparse24View& weight, Rows x, int64_t rows, Rows out) {
  const auto run = [&]<typename T>(T) {
    if (numbers_.bytes() == 0 || rows <= cuda::LinearSparse24::kMaxRows) {
      if (out.dtype == DType::kF32) linear_sparse24_->run(weight, data<const T>(x), rows, data<float>(out), stream_);
      else linear_sparse24_->run(weight, data<const T>(x), rows, data<T>(out), stream_);
      return;
    }
    multiply_numbers<T>(weight, x, rows, out, [&](T* to) { cuda::widen_sparse24(weight, to, stream_); });
  };
  if (x.dtype == DType::kF16) run(__half());
  else run(__nv_bfloat16());
}

void CudaOps::activate(const ActivationSpec& spec, Rows x, int64_t rows, Rows out) {
  with_type(options_.dtype,
            [&]<typename T>(T) { cuda::activate(spec, data<const T>(x), rows, out.width, data<T>(out), stream_); });
}

void CudaOps::mix_experts(const AdaptedProduct& product, const ExpertsWeight& experts, const ExpertsConfig& config,
                          const ActivationSpec& spec, Rows router_logits, const DeviceBuffer* choice_bias,
                          const DeviceBuffer* scales, Rows x, int64_t rows, Rows out) {
  const auto floats = [](const DeviceBuffer* buffer) {
    return buffer != nullptr ? data<const float>(buffer->rows()) : nullptr;
  };
  const auto& weights = static_cast<const CudaExperts&>(experts);
  std::optional<cuda::ExpertAdapters> adapters;
  if (adapters_) adapters = adapters_->of_experts(product, product.kind == RowKind::kTokens ? first_row_ : 0);
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::mix_experts(weights.gate_up(), weights.down(), config, spec, data<const float>(router_logits),
                      floats(choice_bias), floats(scales), data<const T>(x), rows, data<T>(out), experts_workspace_.data(),
                      stream_, adapters ? &*adapters : nullptr);
  });
  sum_over_ranks(out, rows);
}

void CudaOps::add_gated(Rows x, Rows y, Rows gate, int64_t rows) {
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::add_gated(data<T>(x), data<const T>(y), data<const float>(gate), rows, x.width, stream_);
  });
}

void CudaOps::multiply_by_gate(GateKind kind, Rows x, Rows gate, int64_t rows) {
  LLMB_CHECK(x.width == gate.width);
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::multiply_by_gate(kind, data<T>(x), data<const T>(gate), rows * x.width, stream_);
  });
}

void CudaOps::grow_queries(int64_t rows, Rows qkv) {
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::grow_queries(data<T>(qkv), step_.positions + first_row_, config_.query_growth, rows, config_.q_size(), qkv.width, stream_);
  });
}

void CudaOps::add_positions(const LinearWeight& table, int64_t rows, Rows residual) {
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::add_embedding(static_cast<const T*>(view(table).weight), step_.positions + first_row_, rows, residual.width,
                        data<float>(residual), stream_);
  });
}

void CudaOps::rms_norm_groups(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight, float eps,
                              int64_t rows) {
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::rms_norm_groups(data<T>(x) + first_column, x.width, num_groups, data<const float>(weight.rows()),
                          weight.rows().width, eps, rows, stream_);
  });
}

void CudaOps::layer_norm_groups(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight,
                                const DeviceBuffer* bias, float eps, int64_t rows) {
  const auto* const b = bias != nullptr ? data<const float>(bias->rows()) : nullptr;
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::layer_norm_groups(data<T>(x) + first_column, x.width, num_groups, data<const float>(weight.rows()), b,
                            weight.rows().width / num_groups, eps, rows, stream_);
  });
}

void CudaOps::activate_times(Activation kind, Rows x, Rows y, int64_t first_column, int64_t rows, Rows out) {
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::activate_times(kind, data<const T>(x), data<const float>(y) + first_column, y.width, rows, x.width,
                         data<T>(out), stream_);
  });
}

void CudaOps::add_scaled(Rows residual, Rows delta, const DeviceBuffer& factor, int64_t rows) {
  with_type(options_.dtype, [&]<typename T>(T) {
    cuda::add_scaled(data<float>(residual), data<const T>(delta), data<const float>(factor.rows()),
                     rows * residual.width, stream_);
  });
}

void CudaOps::gather_sample_rows(Rows x, int64_t num_samples, Rows out) {
  if (step_.shape.is_shared_out()) return context_rows()->gather_sampled(x, step_, out);
  with_type(x.dtype, [&]<typename T>(T) {
    cuda::gather_rows(data<const T>(x), step_.sample_rows, num_samples, x.width, data<T>(out), stream_);
  });
}

void CudaOps::scale(Rows x, float factor, int64_t rows) {
  cuda::scale(data<float>(x), factor, rows * x.width, stream_);
}

void CudaOps::softcap(Rows x, float cap, int64_t rows) { cuda::softcap(data<float>(x), cap, rows * x.width, stream_); }

void CudaOps::clamp(Rows x, float limit, int64_t rows) {
  with_type(options_.dtype, [&]<typename T>(T) { cuda::clamp(data<T>(x), limit, rows * x.width, stream_); });
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
      cuda::count_unseen_tokens(step_.samples + part.begin, part.end - part.begin, step_.penalty, given().last, stream_);
    }
    sample_rows(logits.from(begin - first_sample), begin, end - begin);
  }
}

void CudaOps::sample_rows(Rows logits, int64_t first_sample, int64_t rows) {
  const cuda::SampleInput input{data<float>(logits),        step_.samples + first_sample, step_.bias, step_.penalty,
                                static_cast<int32_t>(rows), config_.vocab_size,           step_.masks};
  cuda::SampleResult result = sampled_;
  result.tokens += first_sample;
  result.logprobs += first_sample;
  result.is_finite += first_sample;
  result.top_tokens += first_sample * sampled_.max_top;
  result.top_logprobs += first_sample * sampled_.max_top;
  void* const workspace = sample_workspace_.data();
  if (ranks_ != nullptr)
    return cuda::sample_parts(input, needs_, result, sample_limits_, workspace, ranks_->sampling(), stream_);
  cuda::sample(input, needs_, result, sample_limits_, workspace, stream_);
}

}  // namespace llmb
