#include "backend/cuda/split_streams.h"

#include <algorithm>

#include "base/check.h"

namespace llmb {

using cuda::check;

namespace {

// A third: not fitted. On an H200 halves gained nothing with it (data/measurements), as each multiprocessor brings its
// part of the memory's rate. Green contexts on Hopper come in eights.
constexpr int32_t kAttentionShare = 3, kGranularity = 8;

void wait(cudaStream_t stream, const cuda::Event& event) {
  check(cudaStreamWaitEvent(stream, event.get(), 0), "cudaStreamWaitEvent");
}

}  // namespace

int32_t SplitStreams::attention_sms(const CudaDevice& device) {
  const int32_t third = std::max(device.num_sms / kAttentionShare, 1);
  return third < kGranularity ? third : third / kGranularity * kGranularity;
}

SplitStreams::SplitStreams(const CudaDevice& device)
    : device_(device.index, device.num_sms, attention_sms(device)) {}

cudaStream_t SplitStreams::begin(cudaStream_t main) {
  main_ = main;
  attending_ = -1;
  has_attended_[0] = has_attended_[1] = false;
  forked_.record(main);
  wait(device_.stream(kProducts), forked_);
  wait(device_.stream(kAttention), forked_);
  return device_.stream(kProducts);
}

void SplitStreams::end_attention() {
  if (attending_ < 0) return;
  attended_[attending_].record(device_.stream(kAttention));
  has_attended_[attending_] = true;
  attending_ = -1;
}

cudaStream_t SplitStreams::begin_products(int part) {
  end_attention();
  if (has_attended_[part]) wait(device_.stream(kProducts), attended_[part]);
  has_attended_[part] = false;
  return device_.stream(kProducts);
}

cudaStream_t SplitStreams::begin_attention(int part) {
  LLMB_CHECK(attending_ < 0);
  ready_[part].record(device_.stream(kProducts));
  wait(device_.stream(kAttention), ready_[part]);
  attending_ = part;
  return device_.stream(kAttention);
}

cudaStream_t SplitStreams::join() {
  end_attention();
  products_done_.record(device_.stream(kProducts));
  attention_done_.record(device_.stream(kAttention));
  wait(main_, products_done_);
  wait(main_, attention_done_);
  return main_;
}

}  // namespace llmb
