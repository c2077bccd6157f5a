#include "backend/cuda/sampled_output.h"

#include <algorithm>

#include "core/drafted_tokens.h"

namespace llmb {

int32_t max_top_of(const StepPlan& plan) {
  const auto is_long = [](const SampleRow& row) { return row.num_logprobs > kMaxTopLogprobs; };
  return std::any_of(plan.sample_rows.begin(), plan.sample_rows.end(), is_long) ? kMaxBestTokens : kMaxTopLogprobs;
}

void download_sampled(const CudaOps& ops, const StepPlan& plan, bool with_top, uint8_t* host, cudaStream_t stream) {
  const cuda::SampleResult& on_device = ops.sampled();
  const auto* const base = reinterpret_cast<const uint8_t*>(on_device.tokens);
  const auto download = [&](const void* from, int64_t bytes) {
    cuda::check(cudaMemcpyAsync(host + (static_cast<const uint8_t*>(from) - base), from, static_cast<size_t>(bytes),
                                cudaMemcpyDeviceToHost, stream),
                "cudaMemcpyAsync");
  };
  download(base, ops.sampled_bytes());
  if (!with_top) return;
  const int64_t num_top = int64_t{plan.num_samples()} * on_device.max_top;
  download(on_device.top_tokens, num_top * int64_t{sizeof(TokenId)});
  download(on_device.top_logprobs, num_top * int64_t{sizeof(float)});
}

void StepReader::read_rows(const CudaOps& ops, const StepPlan& plan, const uint8_t* host) {
  const cuda::SampleResult& on_device = ops.sampled();
  const auto* const base = reinterpret_cast<const uint8_t*>(on_device.tokens);
  const auto mirror = [&]<typename T>(const T* address) {
    return reinterpret_cast<const T*>(host + (reinterpret_cast<const uint8_t*>(address) - base));
  };
  const int32_t count = plan.num_samples(), max_top = max_top_of(plan);
  rows_.clear();
  rows_.tokens.assign(mirror(on_device.tokens), mirror(on_device.tokens) + count);
  rows_.is_finite.assign(mirror(on_device.is_finite), mirror(on_device.is_finite) + count);
  rows_.logprobs.assign(count, 0);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t wanted = plan.sample_rows[i].num_logprobs;
    if (wanted >= 0) rows_.logprobs[i] = mirror(on_device.logprobs)[i];
    const int32_t num_top = std::clamp(wanted, 0, ops.vocab_size());
    const TokenId* const tokens = mirror(on_device.top_tokens) + int64_t{i} * max_top;
    const float* const logprobs = mirror(on_device.top_logprobs) + int64_t{i} * max_top;
    if (rows_.is_finite[i] != 0) {
      rows_.top_tokens.insert(rows_.top_tokens.end(), tokens, tokens + num_top);
      rows_.top_logprobs.insert(rows_.top_logprobs.end(), logprobs, logprobs + num_top);
    }
    rows_.top_start.push_back(static_cast<int32_t>(rows_.top_tokens.size()));
  }
}

void download_tokens(const StepPlan& plan, const TokenId* resolved, TokenId* host, cudaStream_t stream) {
  if (!has_drafted(plan)) return;
  cuda::check(cudaMemcpyAsync(host, resolved, plan.tokens.size() * sizeof(TokenId), cudaMemcpyDeviceToHost, stream),
              "cudaMemcpyAsync");
}

void StepReader::read_tokens(const StepPlan& plan, const GivenTokens& before, const TokenId* host) {
  tokens_ = plan.tokens;
  if (plan.num_samples() == plan.num_groups()) return;  // nobody compares them with what was drawn
  for (size_t row = 0; row < tokens_.size(); ++row) {
    TokenId& token = tokens_[row];
    if (is_drafted(token)) token = host[row];
    else if (token < 0) token = before.last.at(static_cast<size_t>(-1 - token));
  }
}

void StepReader::read(CudaOps& ops, int64_t step, const StepFlight& flight, GivenTokens* given, StepOutput* output) {
  const StepPlan& plan = *flight.plan;
  const CudaPooling* const pooling = ops.pooling();
  if (pooling != nullptr) CudaPooling::stand_for_vectors(plan.num_samples(), &rows_);
  else read_rows(ops, plan, flight.host.data<uint8_t>());
  read_tokens(plan, *given, flight.tokens.data<TokenId>());
  give_tokens(plan, tokens_, rows_, output, given);
  if (pooling != nullptr) pooling->read(step, plan.num_samples(), &output->hidden);
}

}  // namespace llmb
