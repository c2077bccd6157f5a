// Cases of bench_kernels_cuda for lora: q, k and v of one layer for rows of one adapter, and of one each.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/lora.h"
#include "tools/cuda_bench.h"
#include "tools/cuda_bench_more_ops.h"

namespace llmb::bench {

// Against one read of the adapters' matrices.
inline void lora_case(CudaBench& bench, const std::string& name, int32_t rows, int32_t num_adapters, int32_t hidden,
                      int32_t q, int32_t kv) {
  constexpr int32_t kRank = 16;
  const int32_t columns[] = {q, kv, kv}, out = q + 2 * kv;
  const int64_t values = int64_t{kRank} * (3 * hidden + out), bytes = values * 2 * num_adapters;
  const int copies = bench.num_copies(bytes);
  const Copies matrices = normal(bench, values, 0.02f, copies * num_adapters),
               x = normal(bench, int64_t{rows} * hidden), y = normal(bench, int64_t{rows} * out),
               t(int64_t{rows} * cuda::kMaxLoraRanks * 4);
  std::vector<cuda::LoraProduct> products(static_cast<size_t>(copies * num_adapters));
  for (size_t i = 0; i < products.size(); ++i) {
    const auto* at = matrices.at<__nv_bfloat16>(static_cast<int>(i));
    for (int p = 0; p < 3; ++p) {
      cuda::LoraPart& part = products[i].parts[p];
      part.a = {at, nullptr, kRank, 1};
      part.b = {at + kRank * hidden, nullptr, kRank, 1};
      part.rank_begin = kRank * p, part.rank_end = kRank * (p + 1);
      part.out_column = p == 0 ? 0 : q + (p - 1) * kv, part.num_columns = columns[p];
      at += kRank * (hidden + columns[p]);
    }
    products[i].num_ranks = 3 * kRank;
  }
  const Copies on_device = upload(products, bench.stream());
  std::vector<cuda::LoraItem> items;
  const int32_t of_one = rows / num_adapters;
  for (int copy = 0; copy < copies; ++copy)
    for (int32_t a = 0; a < num_adapters; ++a)
      for (int32_t row = a * of_one; row < (a + 1) * of_one; row += cuda::kLoraItemRows)
        items.push_back({on_device.at<cuda::LoraProduct>(0) + copy * num_adapters + a, row,
                         std::min(row + cuda::kLoraItemRows, (a + 1) * of_one)});
  const auto num_items = static_cast<int32_t>(items.size()) / copies;
  std::vector<int32_t> ids(static_cast<size_t>(rows));
  std::iota(ids.begin(), ids.end(), 0);
  const Copies on_items = upload(items, bench.stream()), row_ids = upload(ids, bench.stream());
  const double seconds = bench.time_s(copies, [&](int c) {
    const cuda::LoraRows of{on_items.at<cuda::LoraItem>(0) + c * num_items, row_ids.at<int32_t>(0), num_items};
    cuda::lora(of, 0, true, x.at<__nv_bfloat16>(0), hidden, y.at<__nv_bfloat16>(0), out, t.at<float>(0), bench.stream());
  });
  bench.report_read("lora", name + " qkv, " + std::to_string(rows) + " rows, " + std::to_string(num_adapters) + " of rank 16",
                    seconds, static_cast<double>(bytes));
}

inline void lora_cases(CudaBench& bench, const std::string& name, int32_t hidden, int32_t q, int32_t kv, bool is_tiny) {
  for (const int32_t rows : is_tiny ? std::vector<int32_t>{4} : std::vector<int32_t>{64, 2048})
    for (const int32_t num_adapters : {1, is_tiny ? 4 : 64}) lora_case(bench, name, rows, num_adapters, hidden, q, kv);
}

}  // namespace llmb::bench
