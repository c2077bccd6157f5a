// Attention cases of bench_kernels_cuda: decode at several contexts, even and skewed, over shared prefixes and within
// windows, and causal prefill.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/paged_attention.h"
#include "kernels/cuda/paged_attention_shared.h"
#include "tools/cuda_bench.h"

namespace llmb::bench {

struct AttentionModel {
  const char* name;
  int32_t heads, kv_heads, head_dim;
  bool is_tiny;
  int32_t latent_dim = 0;  // > 0: the values are the last so many channels of the keys
};

// kHopper is what an engine takes on such a device, kMma elsewhere; kInt8, kFp8: over keys and values in 8 bits.
enum class AttentionPath { kMma, kHopper, kDeterministic, kInt8, kFp8 };

inline const char* path_name(AttentionPath path) {
  if (path == AttentionPath::kInt8) return ", int8 KV";
  if (path == AttentionPath::kFp8) return ", fp8 KV";
  return path == AttentionPath::kMma ? ", mma" : path == AttentionPath::kHopper ? ", Hopper" : ", det.";
}

// How a step's sequences begin: each with blocks of its own, or all with the same ones, read row by row or together.
enum class Beginning { kOwn, kSameBlocks, kShared };

// One step: `query_len` new tokens of each sequence, the last of them at the end of its context. They begin with
// `num_same` positions in the same blocks.
class AttentionCase {
 public:
  using T = __nv_bfloat16;

  AttentionCase(CudaBench& bench, const AttentionModel& model, std::vector<int32_t> context_len, int32_t query_len,
                AttentionPath path)
      : bench_(bench), context_len_(std::move(context_len)), query_len_(query_len) {
    params_.shape = {DType::kBF16, model.heads, model.kv_heads, model.head_dim, kBlockSize};
    params_.shape.deterministic = path == AttentionPath::kDeterministic;
    params_.shape.hopper = path == AttentionPath::kHopper;
    params_.shape.latent_dim = model.latent_dim;
    params_.shape.kv_code = path == AttentionPath::kInt8  ? cuda::KvCode::kInt8
                            : path == AttentionPath::kFp8 ? cuda::KvCode::kFp8
                                                          : cuda::KvCode::kNone;
    params_.scale = 1 / std::sqrt(static_cast<float>(model.head_dim));
  }

  void set_beginning(Beginning beginning, int32_t num_same) { beginning_ = beginning, num_same_ = num_same; }
  void set_window(int32_t window) { params_.shape.window = window; }
  // An encoder's: tokens see so many on either side; 0: all. REQUIRES: query_len is the whole context
  void set_reach(int32_t reach) {
    params_.shape.later = reach > 0 ? reach : cuda::AttentionShape::kAllLater;
    params_.shape.window = reach > 0 ? 2 * reach + 1 : 0;
  }

  // The sum over all sequences and KV heads; positions in the same blocks count once.
  double kv_bytes() const {
    const int32_t num_same = beginning_ == Beginning::kOwn ? 0 : num_same_;
    int64_t tokens = 0, most_same = 0;
    for (const int32_t n : context_len_) {
      const int32_t first = window() > 0 ? std::max(0, n - window()) : 0;
      most_same = std::max<int64_t>(most_same, num_same - first);
      tokens += n - std::max(first, num_same);
    }
    tokens += most_same;
    const int64_t vector_bytes = has_scales() ? params_.shape.head_dim + 4 : params_.shape.head_dim * 2;
    const int64_t num_vectors = params_.shape.latent_dim > 0 ? 1 : 2;
    return static_cast<double>(tokens * params_.shape.num_kv_heads * vector_bytes * num_vectors);
  }
  double flops() const {
    double pairs = 0;
    for (const int32_t n : context_len_)
      pairs += query_len_ * (params_.shape.later == 0 ? n - (query_len_ - 1) / 2.0
                             : window() == 0          ? n
                                                      : std::min(n, window()));
    return 2 * pairs * params_.shape.num_heads * (params_.shape.head_dim + params_.shape.value_dim());
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
    cuda::AttentionBatch batch{num_seqs, query_start.data(), context_len_.data(), block_start.data()};
    const SharedLaunch shared(bench_, batch, shape, num_ctas, beginning_ == Beginning::kShared ? num_same_ : 0);
    if (shared.work().stats != nullptr) batch.shared = shared.states();
    cuda::AttentionSchedule schedule;
    cuda::schedule_attention(batch, full_shape(), num_ctas, &schedule);
    const cuda::AttentionLimits limits = cuda::attention_limits(shape, num_ctas, num_seqs, query_start.back());

    // Copies have blocks of their own in one pool, in random order.
    const int64_t block_elements = int64_t{shape.num_kv_heads} * kBlockSize * shape.head_dim;
    const int32_t num_blocks = block_start.back();
    const int copies = bench_.num_copies(num_blocks * block_elements * 4);
    const Copies k(copies * num_blocks * block_elements * 2), v(k.bytes());  // of 8 bits any bytes do
    const Copies scales(has_scales() ? copies * num_blocks * block_elements / shape.head_dim * 4 : 1);
    cuda::fill_normal(scales.at<void>(0), DType::kF32, scales.bytes() / 4, 0.01f, 4, bench_.stream());
    for (const Copies* pool : {&k, &v})
      cuda::fill_normal(pool->at<void>(0), DType::kBF16, copies * num_blocks * block_elements, 1, pool == &k ? 1 : 2,
                        bench_.stream());
    std::vector<BlockId> ids(static_cast<size_t>(copies) * static_cast<size_t>(num_blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    if (beginning_ != Beginning::kOwn) begin_alike(copies, block_start, &ids);
    const Copies block_ids = upload(ids, bench_.stream()), items = upload(schedule.items, bench_.stream()),
                 cta_start = upload(schedule.cta_start, bench_.stream());

    const int64_t rows = query_start.back(), q = int64_t{shape.num_heads} * shape.head_dim;
    const int64_t stride = q + 2 * int64_t{shape.num_kv_heads} * shape.head_dim;
    const Copies qkv(rows * stride * 2), out(rows * q * 2, 1), partials(limits.max_partial_rows * shape.head_dim * 4),
        stats(limits.max_partial_rows * 8, 1), counters(limits.max_splits * 4);
    cuda::fill_normal(qkv.at<void>(0), DType::kBF16, rows * stride, 1, 3, bench_.stream());
    check(cudaMemsetAsync(counters.at<void>(0), 0, static_cast<size_t>(counters.bytes()), bench_.stream()),
          "cudaMemset");
    const cuda::AttentionWork work{num_ctas,
                                   items.at<cuda::AttentionItem>(0),
                                   cta_start.at<int32_t>(0),
                                   partials.at<float>(0),
                                   stats.at<float>(0),
                                   counters.at<int32_t>(0),
                                   query_len_ * shape.group() > cuda::AttentionTiling::kTileRows,
                                   copies * num_blocks,
                                   {},
                                   shared.work()};
    return bench_.time_s(copies, [&](int copy) {
      const auto attend = [&](const auto&... pools) {
        cuda::paged_attention(qkv.at<T>(0), stride, out.at<T>(0), pools...,
                              block_ids.at<BlockId>(0) + int64_t{copy} * num_blocks, work, params_, bench_.stream());
      };
      const Copies& values = shape.latent_dim > 0 ? k : v;
      const auto attend_codes = [&]<class Code>(Code) {
        attend(cuda::ScaledKv<Code>{k.at<Code>(0), v.at<Code>(0), scales.at<float>(0), scales.at<float>(0)});
      };
      if (shape.kv_code == cuda::KvCode::kInt8) return attend_codes(int8_t());
      if (shape.kv_code == cuda::KvCode::kFp8) return attend_codes(cuda::E4m3());
      attend(k.at<const T>(0), values.at<const T>(0));
    });
  }

 private:
  static constexpr int32_t kBlockSize = 16;

  // The launch over a prefix of all sequences, where there are positions of it.
  class SharedLaunch {
   public:
    SharedLaunch(CudaBench& bench, const cuda::AttentionBatch& batch, const cuda::AttentionShape& shape,
                 int32_t num_ctas, int32_t num_positions) {
      if (num_positions == 0) return;
      const int32_t num_tokens = batch.query_start[batch.num_seqs];
      std::vector<int32_t> seqs(static_cast<size_t>(batch.num_seqs)), positions;
      std::iota(seqs.begin(), seqs.end(), 0);
      for (int32_t s = 0; s < batch.num_seqs; ++s)
        for (int32_t row = batch.query_start[s + 1]; row > batch.query_start[s]; --row)
          positions.push_back(batch.context_len[s] - (row - batch.query_start[s]));
      const cuda::SharedPositions prefix{num_positions, 0, batch.num_seqs};
      const cuda::SharedAttentionBatch shared{{&prefix, 1}, seqs, nullptr, /*least_gain_tiles=*/0, /*state_positions=*/0};
      cuda::schedule_shared_attention(batch, shared, shape, num_ctas, num_tokens, &schedule_);
      if (schedule_.items.empty()) return;
      const cuda::SharedAttentionLimits limits =
          cuda::shared_attention_limits(shape, num_ctas, batch.num_seqs, num_tokens);
      memory_.push_back(upload(schedule_.items, bench.stream()));
      memory_.push_back(upload(schedule_.cta_start, bench.stream()));
      memory_.push_back(upload(schedule_.tokens, bench.stream()));
      memory_.push_back(upload(positions, bench.stream()));
      memory_.emplace_back(limits.max_states * shape.head_dim * 4);
      memory_.emplace_back(limits.max_states * cuda::kStateStats * 4);
    }
    const cuda::SharedStates* states() const { return schedule_.states.data(); }
    cuda::SharedAttentionWork work() const {
      if (memory_.empty()) return {};
      return {static_cast<int32_t>(schedule_.cta_start.size()) - 1,
              memory_[0].at<cuda::AttentionItem>(0),
              memory_[1].at<int32_t>(0),
              memory_[2].at<int32_t>(0),
              memory_[3].at<int32_t>(0),
              memory_[4].at<float>(0),
              memory_[5].at<float>(0),
              schedule_.uses_wgmma};
    }

   private:
    cuda::SharedAttentionSchedule schedule_;
    std::vector<Copies> memory_;
  };

  int32_t window() const { return params_.shape.window; }
  bool has_scales() const { return params_.shape.kv_code != cuda::KvCode::kNone; }
  // Lists are made without windows, and serve layers with them too.
  cuda::AttentionShape full_shape() const {
    cuda::AttentionShape shape = params_.shape;
    shape.window = 0;
    if (shape.later > 0) shape.later = cuda::AttentionShape::kAllLater;
    return shape;
  }
  void begin_alike(int copies, const std::vector<int32_t>& block_start, std::vector<BlockId>* ids) const {
    for (int copy = 0; copy < copies; ++copy)
      for (size_t s = 1; s < context_len_.size(); ++s)
        for (int32_t block = 0; block < num_same_ / kBlockSize; ++block) {
          BlockId* const table = ids->data() + int64_t{copy} * block_start.back();
          table[block_start[s] + block] = table[block];
        }
  }

  CudaBench& bench_;
  const std::vector<int32_t> context_len_;
  const int32_t query_len_;
  cuda::AttentionParams params_;
  Beginning beginning_ = Beginning::kOwn;
  int32_t num_same_ = 0;
};

inline std::vector<int32_t> even_lengths(int32_t num_seqs, int32_t context) {
  return std::vector<int32_t>(static_cast<size_t>(num_seqs), context);
}

// A mean of `context`: most sequences are short, a few are many times as long.
inline std::vector<int32_t> skewed_lengths(int32_t num_seqs, int32_t context) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < num_seqs; ++i) lengths.push_back(i % 16 == 0 ? 9 * context : std::max(1, context * 7 / 15));
  return lengths;
}

inline void attention_cases(CudaBench& bench, const AttentionModel& model) {
  const std::string name = std::string(model.name) + " ";
  const auto decode = [&](const std::string& what, const std::vector<int32_t>& context_len, AttentionPath path) {
    AttentionCase one(bench, model, context_len, 1, path);
    bench.report_read("paged_attention", name + "decode " + what + path_name(path), one.time_s(), one.kv_bytes());
  };
  const auto prefill = [&](const std::string& what, const std::vector<int32_t>& context_len, int32_t query_len,
                           AttentionPath path) {
    AttentionCase one(bench, model, context_len, query_len, path);
    bench.report_flops("paged_attention", name + what + path_name(path), one.time_s(), one.flops());
  };
  // 64 rows over 2,048 shared positions and 64 of their own: with own blocks, row by row over the same, together.
  const auto shared = [&](int32_t num_seqs, int32_t num_same, int32_t own, AttentionPath path, int32_t window = 0) {
    for (const auto& [what, beginning] : {std::pair{" own", Beginning::kOwn},
                                          {" same blocks", Beginning::kSameBlocks},
                                          {" shared", Beginning::kShared}}) {
      AttentionCase one(bench, model, even_lengths(num_seqs, num_same + own), 1, path);
      one.set_beginning(beginning, num_same);
      one.set_window(window);
      bench.report_read("paged_attention",
                        name + "decode " + std::to_string(num_seqs) + " x " + std::to_string(num_same) + " + " +
                            std::to_string(own) + (window > 0 ? " window " + std::to_string(window) : "") + what +
                            path_name(path),
                        one.time_s(), one.kv_bytes());
    }
  };
  const auto windowed = [&](int32_t num_seqs, int32_t context, int32_t window, AttentionPath path) {
    AttentionCase one(bench, model, even_lengths(num_seqs, context), 1, path);
    one.set_window(window);
    bench.report_read("paged_attention",
                      name + "decode " + std::to_string(num_seqs) + " x " + std::to_string(context) + " window " +
                          std::to_string(window) + path_name(path),
                      one.time_s(), one.kv_bytes());
  };
  const bool has_hopper = cuda::has_hopper_code(bench.stream());
  if (model.is_tiny) {
    decode("3 x 40", even_lengths(3, 40), AttentionPath::kMma);
    decode("skewed", skewed_lengths(17, 20), AttentionPath::kDeterministic);
    decode("3 x 40", even_lengths(3, 40), AttentionPath::kInt8);
    decode("3 x 40", even_lengths(3, 40), AttentionPath::kFp8);
    prefill("prefill 50", {50}, 50, AttentionPath::kMma);
    shared(16, 256, 5, AttentionPath::kMma);
    shared(16, 256, 5, AttentionPath::kMma, 200);
    windowed(2, 80, 20, AttentionPath::kMma);
    if (!has_hopper) return;
    const AttentionModel wide{model.name, model.heads, model.kv_heads, 64, true};
    AttentionCase one(bench, wide, {150, 70}, 70, AttentionPath::kHopper);
    bench.report_flops("paged_attention", "tiny prefill 70, Hopper", one.time_s(), one.flops());
    return;
  }
  if (has_hopper) shared(64, 2048, 64, AttentionPath::kHopper);
  for (const AttentionPath path :
       {AttentionPath::kMma, AttentionPath::kDeterministic, AttentionPath::kInt8, AttentionPath::kFp8}) {
    for (const int32_t context : {1024, 4096, 8192})
      decode("64 x " + std::to_string(context), even_lengths(64, context), path);
    for (const int32_t context : {1024, 4096})
      decode("64 skewed, mean " + std::to_string(context), skewed_lengths(64, context), path);
    for (const int32_t num_seqs : {1, 32, 256})
      decode(std::to_string(num_seqs) + " x 1024", even_lengths(num_seqs, 1024), path);
    decode("1 x 32768", even_lengths(1, 32768), path);
    shared(64, 2048, 64, path);
    shared(64, 2048, 64, path, 1024);
    shared(16, 1024, 128, path);
    windowed(64, 8192, 1024, path);
  }
  for (const AttentionPath path :
       {AttentionPath::kMma, AttentionPath::kHopper, AttentionPath::kDeterministic, AttentionPath::kInt8,
        AttentionPath::kFp8}) {
    if (path == AttentionPath::kHopper && !has_hopper) continue;
    for (const int32_t length : {2048, 4096, 8192, 16384})
      prefill("prefill " + std::to_string(length), {length}, length, path);
    prefill("chunk 4 x 512 of 8192", even_lengths(4, 8192), 512, path);
  }
}

}  // namespace llmb::bench
