// Cases of bench_kernels_cuda for texts that become vectors: an encoder's attention, and means of states. Whole models'
// layers, whatever --shape says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/gather.h"
#include "tools/cuda_bench.h"
#include "tools/cuda_bench_attention.h"

namespace llmb::bench {

inline void mean_rows_case(CudaBench& bench, int32_t num_texts, int32_t length, int64_t width) {
  using T = __nv_bfloat16;
  std::vector<int32_t> begins, ends;
  for (int32_t i = 0; i < num_texts; ++i) begins.push_back(i * length), ends.push_back((i + 1) * length);
  const int64_t count = int64_t{num_texts} * length * width;
  const int copies = bench.num_copies(count * 2);
  const Copies x = normal(bench, count, 1, copies), out(num_texts * width * 4), first = upload(begins, bench.stream()),
               last = upload(ends, bench.stream());
  const double seconds = bench.time_s(copies, [&](int c) {
    cuda::mean_rows(x.at<T>(c), first.at<int32_t>(0), last.at<int32_t>(0), num_texts, width, out.at<float>(0),
                    bench.stream());
  });
  bench.report_read("mean_rows",
                    std::to_string(num_texts) + " x " + std::to_string(length) + " of " + std::to_string(width),
                    seconds, static_cast<double>(count * 2));
}

inline void text_cases(CudaBench& bench, bool is_tiny) {
  struct Case {
    AttentionModel model;
    int32_t num_texts, length, reach;
  };
  const AttentionModel bert{"BERT base", 12, 12, 64, false}, gemma{"EmbeddingGemma", 3, 1, 256, false};
  const std::vector<Case> cases =
      is_tiny ? std::vector<Case>{{{"tiny encoder", 2, 2, 64, true}, 3, 20, 0},
                                  {{"tiny encoder", 2, 1, 64, true}, 2, 40, 5}}
              : std::vector<Case>{{bert, 200, 40, 0},  {bert, 16, 512, 0},  {bert, 1, 8192, 0},
                                  {bert, 1, 8192, 64}, {gemma, 16, 512, 0}, {gemma, 4, 2048, 256}};
  for (const Case& c : cases)
    for (const AttentionPath path : {AttentionPath::kMma, AttentionPath::kDeterministic}) {
      AttentionCase one(bench, c.model, even_lengths(c.num_texts, c.length), c.length, path);
      one.set_reach(c.reach);
      bench.report_flops("paged_attention",
                         std::string(c.model.name) + " both ways " + std::to_string(c.num_texts) + " x " +
                             std::to_string(c.length) + (c.reach > 0 ? " reach " + std::to_string(c.reach) : "") +
                             path_name(path),
                         one.time_s(), one.flops());
    }
  if (is_tiny) return mean_rows_case(bench, 3, 20, 64);
  mean_rows_case(bench, 200, 40, 768);
  mean_rows_case(bench, 1, 8192, 768);
}

}  // namespace llmb::bench
