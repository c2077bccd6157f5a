// Cases of bench_kernels_cuda for latent attention and for heads of more than 256 channels: whole models' layers, whatever
// --shape says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

inline void wide_cases(CudaBench& bench, bool is_tiny) {
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
      const int32_t length = is_tiny ? 20 : 2048;
      AttentionCase prefill(bench, model, {length}, length, path);
      bench.report_flops("paged_attention", std::string(model.name) + " prefill " + std::to_string(length) + path_name(path),
                         prefill.time_s(), prefill.flops());
    }
    for (const int64_t rows : is_tiny ? std::vector<int64_t>{3} : std::vector<int64_t>{1, 64, 2048}) {
      if (key_dim == 0) continue;
      head_linear_case(bench, rows, model.heads, model.latent_dim, key_dim);
      head_linear_case(bench, rows, model.heads, key_dim, model.latent_dim);
    }
  }
}

}  // namespace llmb::bench
