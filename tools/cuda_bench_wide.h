// Cases of bench_kernels_cuda for latent attention and for heads of more than 256 channels: whole models' layers, whatever
// --shape says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/expand_latents.h"
#include "kernels/cuda/head_linear.h"
#include "tools/cuda_bench.h"
#include "tools/cuda_bench_attention.h"

namespace llmb::bench {

// Products of a layer's heads, against the bytes of their matrices or the arithmetic.
inline void head_linear_case(CudaBench& bench, int64_t rows, int64_t num_heads, int64_t out_features,
                             int64_t in_features) {
  using T = __nv_bfloat16;
  const auto copies = static_cast<int>(num_heads);
  const Copies weights = normal(bench, out_features * in_features, 0.02f, copies),
               x = normal(bench, rows * num_heads * in_features), out(rows * num_heads * out_features * 2);
  std::vector<const void*> addresses;
  for (int h = 0; h < copies; ++h) addresses.push_back(weights.at<void>(h));
  const double seconds = bench.time_s(1, [&](int) {
    cuda::head_linear({addresses, out_features, in_features}, x.at<T>(0), {num_heads * in_features, 0, in_features}, rows,
                      out.at<T>(0), {num_heads * out_features, 0, out_features}, bench.stream());
  });
  const auto numbers = static_cast<double>(num_heads * out_features * in_features);
  bench.report_either("head_linear",
                      std::to_string(rows) + " rows, " + std::to_string(num_heads) + " heads of " +
                          std::to_string(out_features) + "x" + std::to_string(in_features),
                      seconds, 2 * numbers, 2 * numbers * static_cast<double>(rows));
}

struct ExpandedModel {
  const char* name;
  int32_t heads;
  cuda::ExpandedShape shape;  // of the cache: nothing yet
};

// The last `rows` of `context` positions, expanded to keys and values, and attention over these, each by itself. The
// latter counts as prefill over latents does: 320 multiply-adds a pair and head where that has 1,088.
inline void expanded_case(CudaBench& bench, const ExpandedModel& model, int32_t rows, int32_t context, bool is_hopper) {
  using T = __nv_bfloat16;
  constexpr int32_t kBlockSize = 16;
  const int32_t num_blocks = static_cast<int32_t>(ceil_div(context, cuda::kExpandedBlock));
  const int32_t num_cached = num_blocks * cuda::kExpandedBlock / kBlockSize;
  const int64_t latent_dim = model.shape.rope_dim + model.shape.rank, query_dim = model.shape.key_dim + model.shape.rope_dim;
  cuda::ExpandedShape shape = model.shape;
  shape.block_size = kBlockSize, shape.block_stride = kBlockSize * latent_dim;
  std::vector<cuda::ExpandedBlock> blocks;
  for (int32_t i = 0; i < num_blocks; ++i)
    blocks.push_back({0, i * cuda::kExpandedBlock, std::min(cuda::kExpandedBlock, context - i * cuda::kExpandedBlock)});
  std::vector<BlockId> ids(static_cast<size_t>(num_cached));
  std::iota(ids.begin(), ids.end(), 0);
  const Copies block_list = upload(blocks, bench.stream()), block_ids = upload(ids, bench.stream());
  const Copies latents = normal(bench, num_cached * shape.block_stride), matrices(cuda::expansion_workspace(shape, model.heads) * 2),
               keys = normal(bench, int64_t{shape.rank} * shape.key_dim, 0.05f, model.heads),
               values = normal(bench, int64_t{shape.rank} * shape.value_dim, 0.05f, model.heads),
               pool(int64_t{num_blocks} * model.heads * cuda::kExpandedBlock * shape.row_dim() * 2),
               queries = normal(bench, rows * model.heads * query_dim), out(int64_t{rows} * model.heads * shape.value_dim * 2);
  std::vector<const void*> key_heads, value_heads;
  for (int h = 0; h < model.heads; ++h) key_heads.push_back(keys.at<void>(h)), value_heads.push_back(values.at<void>(h));
  const std::string name = std::string(model.name) + " " + std::to_string(rows) + " of " + std::to_string(context) +
                           (is_hopper ? ", Hopper" : "");
  const double expansion_s = bench.time_s(1, [&](int) {
    cuda::expand_latents<T>(shape, key_heads, value_heads, latents.at<T>(0), block_ids.at<BlockId>(0),
                            block_list.at<cuda::ExpandedBlock>(0), num_blocks, matrices.at<T>(0), pool.at<T>(0),
                            bench.stream());
  });
  bench.report_flops("expand_latents", name, expansion_s,
                     2.0 * context * model.heads * shape.rank * (shape.key_dim + shape.value_dim));
  cuda::AttentionShape attention;
  attention.dtype = DType::kBF16;
  attention.num_heads = attention.num_kv_heads = model.heads;
  attention.head_dim = static_cast<int32_t>(query_dim), attention.joined_value_dim = shape.value_dim;
  attention.block_size = cuda::kExpandedBlock, attention.hopper = is_hopper;
  const int32_t num_ctas = bench.num_sms() * cuda::attention_tiling(attention).ctas_per_sm;
  const int32_t query_start[] = {0, rows}, block_start = 0;
  cuda::AttentionSchedule schedule;
  cuda::schedule_attention({1, query_start, &context, &block_start}, attention, num_ctas, &schedule);
  const cuda::AttentionLimits limits = cuda::attention_limits(attention, num_ctas, 1, rows);
  const Copies items = upload(schedule.items, bench.stream()), cta_start = upload(schedule.cta_start, bench.stream()),
               partials(limits.max_partial_rows * shape.value_dim * 4), stats(limits.max_partial_rows * 8),
               counters(limits.max_splits * 4);
  check(cudaMemsetAsync(counters.at<void>(0), 0, static_cast<size_t>(counters.bytes()), bench.stream()), "cudaMemset");
  cuda::AttentionWork work{};
  work.num_ctas = num_ctas, work.items = items.at<cuda::AttentionItem>(0), work.cta_start = cta_start.at<int32_t>(0);
  work.partials = partials.at<float>(0), work.partial_stats = stats.at<float>(0), work.counters = counters.at<int32_t>(0);
  work.num_blocks = num_blocks;
  const double attention_s = bench.time_s(1, [&](int) {
    cuda::expanded_attention<T>(queries.at<T>(0), model.heads * query_dim, out.at<T>(0), int64_t{model.heads} * shape.value_dim,
                                pool.at<T>(0), block_ids.at<BlockId>(0), work, {attention, 0.1f}, bench.stream());
  });
  const double pairs = rows * (context - (rows - 1) / 2.0);
  bench.report_flops("expanded_attention", name, attention_s,
                     2 * pairs * model.heads * static_cast<double>(query_dim + shape.value_dim));
}

inline void expanded_cases(CudaBench& bench, bool is_tiny) {
  const std::vector<ExpandedModel> models =
      is_tiny ? std::vector<ExpandedModel>{{"tiny latents", 2, {16, 8, 8, 8}}, {"tiny DeepSeek", 1, {64, 64, 128, 128}}}
              : std::vector<ExpandedModel>{{"DeepSeek-V3", 128, {512, 64, 128, 128}}, {"DeepSeek-V2-Lite", 16, {512, 64, 128, 128}}};
  const bool has_hopper = cuda::has_hopper_code(bench.stream());
  for (const ExpandedModel& model : models)
    for (const bool is_hopper : {false, true}) {
      if (is_hopper && (!has_hopper || model.shape.key_dim != 128)) continue;
      if (is_tiny) {
        expanded_case(bench, model, 20, 30, is_hopper);
        continue;
      }
      for (const auto& [rows, context] : {std::pair{256, 256}, {2048, 2048}, {512, 4096}})
        expanded_case(bench, model, rows, context, is_hopper);
    }
}

inline void wide_cases(CudaBench& bench, bool is_tiny) {
  expanded_cases(bench, is_tiny);
  struct Model {
    AttentionModel attention;
    int64_t key_dim;  // of a head's query before its matrix; 0: no latents
  };
  const std::vector<Model> models =
      is_tiny ? std::vector<Model>{{{"tiny latents", 2, 1, 80, true, 16}, 8}, {{"tiny wide", 2, 1, 264, true}, 0}}
              : std::vector<Model>{{{"DeepSeek-V3", 128, 1, 576, false, 512}, 128},
                                   {{"DeepSeek-V2-Lite", 16, 1, 576, false, 512}, 128},
                                   {{"Gemma 4 E2B", 8, 1, 512, false}, 0}};
  for (const auto& [model, key_dim] : models) {
    for (const AttentionPath path : {AttentionPath::kMma, AttentionPath::kDeterministic}) {
      for (const int32_t context : is_tiny ? std::vector<int32_t>{40} : std::vector<int32_t>{1024, 8192}) {
        const int32_t num_seqs = is_tiny ? 2 : 64;
        AttentionCase decode(bench, model, even_lengths(num_seqs, context), 1, path);
        bench.report_read("paged_attention",
                          std::string(model.name) + " decode " + std::to_string(num_seqs) + " x " +
                              std::to_string(context) + path_name(path),
                          decode.time_s(), decode.kv_bytes());
      }
      for (const int32_t length : is_tiny ? std::vector<int32_t>{20} : std::vector<int32_t>{256, 2048}) {
        AttentionCase prefill(bench, model, {length}, length, path);
        bench.report_flops("paged_attention", std::string(model.name) + " prefill " + std::to_string(length) + path_name(path),
                           prefill.time_s(), prefill.flops());
      }
    }
    for (const int64_t rows : is_tiny ? std::vector<int64_t>{3} : std::vector<int64_t>{1, 64, 2048}) {
      if (key_dim == 0) continue;
      head_linear_case(bench, rows, model.heads, model.latent_dim, key_dim);
      head_linear_case(bench, rows, model.heads, key_dim, model.latent_dim);
    }
  }
}

}  // namespace llmb::bench
