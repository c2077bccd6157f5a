#include "backend/cuda/cuda_pooling.h"

#include "backend/cuda/cuda_weights.h"
#include "base/check.h"
#include "kernels/cuda/add_embedding.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/gather.h"
#include "kernels/cuda/text_rows.h"

namespace llmb {

namespace {

int64_t vector_width(const ModelConfig& config, const Pooling& pooling) {
  if (pooling.layers.empty()) return config.hidden_size;
  const PoolingLayer& last = pooling.layers.back();
  return last.rows.empty() ? last.out_features : static_cast<int64_t>(last.rows.size());
}

cuda::TextStep text_step(const StepArrays& step) {
  return {step.shape.num_tokens, step.shape.num_samples, step.rows, step.entries, step.positions, step.samples};
}

}  // namespace

CudaPooling::CudaPooling(const ModelConfig& config, const Pooling& pooling, DType dtype, const StepLimits& limits,
                         cudaStream_t stream)
    : has_second_texts_(config.num_token_types > 1),
      dtype_(dtype),
      width_(vector_width(config, pooling)),
      stream_(stream),
      types_(limits.max_num_tokens * int64_t{sizeof(int32_t)}),
      begins_(limits.max_num_samples * int64_t{sizeof(int32_t)}),
      ends_(limits.max_num_samples * int64_t{sizeof(int32_t)}),
      vectors_(limits.max_num_samples * width_ * int64_t{sizeof(float)}) {
  cuda::check(cudaMemsetAsync(types_.data(), 0, static_cast<size_t>(types_.bytes()), stream), "cudaMemsetAsync");
  for (int32_t i = 0; i < limits.max_plans_in_flight; ++i) host_.emplace_back(vectors_.bytes());
}

void CudaPooling::add_token_types(const LinearWeight& table, const StepArrays& step, int64_t rows, Rows residual) {
  if (has_second_texts_) cuda::find_token_types(text_step(step), types_.data<int32_t>(), stream_);
  with_type(dtype_, [&]<typename T>(T) {
    cuda::add_embedding(static_cast<const T*>(view(table).weight), types_.data<const int32_t>(), rows, residual.width,
                        data<float>(residual), stream_);
  });
}

void CudaPooling::pool_rows(const StepArrays& step, Rows x, PoolingKind kind, int64_t num_samples, Rows out) {
  LLMB_CHECK(kind == PoolingKind::kFirst || kind == PoolingKind::kMean);
  auto *const begins = begins_.data<int32_t>(), *const ends = ends_.data<int32_t>();
  cuda::find_text_rows(text_step(step), kind == PoolingKind::kFirst, begins, ends, stream_);
  with_type(x.dtype, [&]<typename T>(T) {
    const auto run = [&](auto* to) {
      cuda::mean_rows(data<const T>(x), begins, ends, num_samples, x.width, to, stream_);
    };
    if (out.dtype == DType::kF32) run(data<float>(out));
    else run(data<T>(out));
  });
}

void CudaPooling::give_vectors(Rows x, int64_t num_samples) {
  LLMB_CHECK(x.width == width_);
  cuda::convert(x.data, x.dtype, vectors_.data(), DType::kF32, num_samples * width_, stream_);
}

void CudaPooling::download(int64_t flight, int64_t num_samples) {
  if (num_samples == 0) return;
  cuda::check(
      cudaMemcpyAsync(host_[static_cast<size_t>(flight) % host_.size()].data(), vectors_.data(),
                      static_cast<size_t>(num_samples * width_) * sizeof(float), cudaMemcpyDeviceToHost, stream_),
      "cudaMemcpyAsync");
}

void CudaPooling::stand_for_vectors(int64_t num_samples, SampledRows* rows) {
  const auto count = static_cast<size_t>(num_samples);
  rows->clear();
  rows->tokens.assign(count, 0);
  rows->logprobs.assign(count, 0);
  rows->is_finite.assign(count, 1);
  rows->top_start.assign(count + 1, 0);
}

void CudaPooling::read(int64_t flight, int64_t num_samples, std::vector<float>* vectors) const {
  const float* const from = host_[static_cast<size_t>(flight) % host_.size()].data<float>();
  vectors->assign(from, from + num_samples * width_);
}

}  // namespace llmb
