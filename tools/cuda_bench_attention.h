// Attention cases of bench_kernels_cuda: decode at several contexts, even and skewed, and causal prefill.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/paged_attention.h"
#include "tools/cuda_bench.h"

namespace llmb::bench {

struct AttentionModel {
  const char* name;
  int32_t heads, kv_heads, head_dim;
  bool is_tiny;
};

// One step: `query_len` new tokens of each sequence, the last of them at the end of its context.
class AttentionCase {
 public:
  using T = __nv_bfloat16;

  AttentionCase(CudaBench& bench, const AttentionModel& model, std::vector<int32_t> context_len, int32_t query_len,
                bool deterministic)
      : bench_(bench), context_len_(std::move(context_len)), query_len_(query_len) {
    params_.shape = {DType::kBF16, model.heads, model.kv_heads, model.head_dim, kBlockSize, 0, deterministic};
    params_.scale = 1 / std::sqrt(static_cast<float>(model.head_dim));
  }

  // Of all sequences and KV heads.
  double kv_bytes() const {
    const auto tokens = std::accumulate(context_len_.begin(), context_len_.end(), int64_t{0});
    return static_cast<double>(tokens * params_.shape.num_kv_heads * params_.shape.head_dim * 2 * 2);
  }
  double flops() const {
    double pairs = 0;
    for (const int32_t n : context_len_) pairs += query_len_ * (n - (query_len_ - 1) / 2.0);
    return 4 * pairs * params_.shape.num_heads * params_.shape.head_dim;
  }

  double time_s() {
    const cuda::AttentionShape& shape = params_.shape;
    std::vector<int32_t> query_start = {0}, block_start = {0};
    for (const int32_t n : context_len_) {
      query_start.push_back(query_start.back() + query_len_);
      block_start.push_back(block_start.back() + static_cast<int32_t>(ceil_div(n, kBlockSize)));
    }
    const auto num_seqs = static_cast<int32_t>(context_len_.size());
    const int32_t num_ctas = bench_.num_sms() * cuda::attention_tiling(shape).ctas_per_sm;
    cuda::AttentionSchedule schedule;
    cuda::schedule_attention({num_seqs, query_start.data(), context_len_.data(), block_start.data()}, shape, num_ctas,
                             &schedule);
    const cuda::AttentionLimits limits = cuda::attention_limits(shape, num_ctas, num_seqs, query_start.back());

    // Copies have blocks of their own in one pool, in random order.
    const int64_t block_elements = int64_t{shape.num_kv_heads} * kBlockSize * shape.head_dim;
    const int32_t num_blocks = block_start.back();
    const int copies = bench_.num_copies(num_blocks * block_elements * 4);
    const Copies k(copies * num_blocks * block_elements * 2), v(k.bytes());
    for (const Copies* pool : {&k, &v})
      cuda::fill_normal(pool->at<void>(0), DType::kBF16, copies * num_blocks * block_elements, 1, pool == &k ? 1 : 2,
                        bench_.stream());
    std::vector<BlockId> ids(static_cast<size_t>(copies) * static_cast<size_t>(num_blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    const Copies block_ids = upload(ids, bench_.stream()), items = upload(schedule.items, bench_.stream()),
                 cta_start = upload(schedule.cta_start, bench_.stream());

    const int64_t rows = query_start.back(), q = int64_t{shape.num_heads} * shape.head_dim;
    const int64_t stride = q + 2 * int64_t{shape.num_kv_heads} * shape.head_dim;
    const Copies qkv(rows * stride * 2), out(rows * q * 2, 1), partials(limits.max_partial_rows * shape.head_dim * 4),
        stats(limits.max_partial_rows * 8, 1), counters(limits.max_splits * 4);
    cuda::fill_normal(qkv.at<void>(0), DType::kBF16, rows * stride, 1, 3, bench_.stream());
    check(cudaMemsetAsync(counters.at<void>(0), 0, static_cast<size_t>(counters.bytes()), bench_.stream()),
          "cudaMemset");
    const cuda::AttentionWork work{
        num_ctas,           items.at<cuda::AttentionItem>(0), cta_start.at<int32_t>(0), partials.at<float>(0),
        stats.at<float>(0), counters.at<int32_t>(0)};
    return bench_.time_s(copies, [&](int copy) {
      cuda::paged_attention(qkv.at<T>(0), stride, out.at<T>(0), k.at<T>(0), v.at<T>(0),
                            block_ids.at<BlockId>(0) + int64_t{copy} * num_blocks, work, params_, bench_.stream());
    });
  }

 private:
  static constexpr int32_t kBlockSize = 16;

  CudaBench& bench_;
  const std::vector<int32_t> context_len_;
  const int32_t query_len_;
  cuda::AttentionParams params_;
};

inline void attention_cases(CudaBench& bench, const AttentionModel& model) {
  const auto decode = [&](const std::string& what, const std::vector<int32_t>& context_len, bool deterministic) {
    AttentionCase one(bench, model, context_len, 1, deterministic);
    bench.report_read("paged_attention", std::string(model.name) + " decode " + what + (deterministic ? ", det." : ""),
                      one.time_s(), one.kv_bytes());
  };
  const auto even = [](int32_t num_seqs, int32_t context) {
    return std::vector<int32_t>(static_cast<size_t>(num_seqs), context);
  };
  // A mean of `context`: most sequences are short, a few are many times as long.
  const auto skewed = [](int32_t num_seqs, int32_t context) {
    std::vector<int32_t> lengths;
    for (int32_t i = 0; i < num_seqs; ++i) lengths.push_back(i % 16 == 0 ? 9 * context : std::max(1, context * 7 / 15));
    return lengths;
  };
  if (model.is_tiny) {
    decode("3 x 40", even(3, 40), false);
    decode("skewed", skewed(17, 20), true);
    AttentionCase prefill(bench, model, {50}, 50, false);
    bench.report_flops("paged_attention", "tiny prefill 50", prefill.time_s(), prefill.flops());
    return;
  }
  for (const bool deterministic : {false, true}) {
    for (const int32_t context : {1024, 4096, 8192})
      decode("64 x " + std::to_string(context), even(64, context), deterministic);
    for (const int32_t context : {1024, 4096})
      decode("64 skewed, mean " + std::to_string(context), skewed(64, context), deterministic);
    for (const int32_t num_seqs : {1, 32, 256})
      decode(std::to_string(num_seqs) + " x 1024", even(num_seqs, 1024), deterministic);
    decode("1 x 32768", even(1, 32768), deterministic);
    for (const int32_t length : {2048, 4096, 8192, 16384}) {
      AttentionCase prefill(bench, model, {length}, length, deterministic);
      bench.report_flops(
          "paged_attention",
          std::string(model.name) + " prefill " + std::to_string(length) + (deterministic ? ", det." : ""),
          prefill.time_s(), prefill.flops());
    }
    AttentionCase chunk(bench, model, even(4, 8192), 512, deterministic);
    bench.report_flops("paged_attention",
                       std::string(model.name) + " chunk 4 x 512 of 8192" + (deterministic ? ", det." : ""),
                       chunk.time_s(), chunk.flops());
  }
}

}  // namespace llmb::bench
