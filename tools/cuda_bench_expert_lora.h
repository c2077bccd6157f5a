// Cases of bench_kernels_cuda for expert_lora: both products of a layer's chosen experts, for rows of one adapter, and of
// one each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/expert_lora.h"
#include "tools/cuda_bench.h"
#include "tools/cuda_bench_more_ops.h"

namespace llmb::bench {

struct ExpertLoraShape {
  int32_t num_experts, top_k, hidden, intermediate;
  int64_t values_of_pair(int32_t rank) const {  // A and B of gate, of up, and of down
    return int64_t{rank} * (2 * (hidden + intermediate) + intermediate + hidden);
  }
};

// An expert's gate_up and down, at `at`.
inline void add_products(const ExpertLoraShape& s, int32_t rank, const __nv_bfloat16* at, cuda::LoraProduct* products) {
  const auto add = [&](cuda::LoraProduct* product, int p, int32_t in, int32_t columns) {
    cuda::LoraPart& part = product->parts[p];
    part.a = {at, nullptr, rank, 1};
    part.b = {at + int64_t{rank} * in, nullptr, rank, 1};
    part.rank_begin = rank * p, part.rank_end = rank * (p + 1);
    part.out_column = columns * p, part.num_columns = columns;
    product->num_ranks += rank;
    at += int64_t{rank} * (in + columns);
  };
  for (const int p : {0, 1}) add(&products[0], p, s.hidden, s.intermediate);
  add(&products[1], 0, s.intermediate, s.hidden);
}

// Against one read of the matrices that rows use: an expert's of each adapter once.
inline void expert_lora_case(CudaBench& bench, const ExpertLoraShape& s, int32_t rows, int32_t num_adapters) {
  constexpr int32_t kRank = 16;
  const int32_t pairs = rows * s.top_k;
  std::vector<int32_t> chosen, slot_of_pair(static_cast<size_t>(pairs)), row_of_slot;
  for (int32_t pair = 0; pair < pairs; ++pair) chosen.push_back((pair / s.top_k * 37 + pair % s.top_k * 16) % s.num_experts);
  std::vector<cuda::LoraProduct> products(static_cast<size_t>(2 * num_adapters * s.num_experts));
  const int64_t values = s.values_of_pair(kRank);
  const Copies matrices = normal(bench, values * std::min(pairs, num_adapters * s.num_experts), 0.02f);
  int64_t num_used = 0;
  for (int32_t e = 0; e < s.num_experts; ++e)
    for (int32_t pair = 0; pair < pairs; ++pair) {
      if (chosen[static_cast<size_t>(pair)] != e) continue;
      slot_of_pair[static_cast<size_t>(pair)] = static_cast<int32_t>(row_of_slot.size());
      row_of_slot.push_back(pair / s.top_k);
      const int32_t adapter = pair / s.top_k * num_adapters / rows;
      cuda::LoraProduct* const own = &products[static_cast<size_t>(2 * (adapter * s.num_experts + e))];
      if (own->num_ranks == 0) add_products(s, kRank, matrices.at<__nv_bfloat16>(0) + values * num_used++, own);
    }
  const Copies on_device = upload(products, bench.stream());
  std::vector<const cuda::LoraProduct*> tables;  // of one layer
  for (int32_t a = 0; a < num_adapters; ++a)
    tables.push_back(on_device.at<cuda::LoraProduct>(0) + 2 * a * s.num_experts);
  const Copies tables_on_device = upload(tables, bench.stream());
  std::vector<cuda::ExpertLoraTables> of_row;
  for (int32_t row = 0; row < rows; ++row)
    of_row.push_back(tables_on_device.at<const cuda::LoraProduct*>(0) + row * num_adapters / rows);
  const int32_t turn = ceil_div(rows, cuda::kLoraItemRows) * cuda::kLoraItemRows;
  const Copies rows_on_device = upload(of_row, bench.stream()), experts = upload(chosen, bench.stream()),
               slots = upload(slot_of_pair, bench.stream()), row_ids = upload(row_of_slot, bench.stream()),
               x = normal(bench, int64_t{rows} * s.hidden), wide = normal(bench, int64_t{pairs} * 2 * s.intermediate),
               y = normal(bench, int64_t{pairs} * s.hidden), of_slot(int64_t{pairs} * 8),
               items(int64_t{pairs} * int64_t{sizeof(cuda::LoraItem)}), t(int64_t{turn} * cuda::kMaxLoraRanks * 4);
  const cuda::ExpertAdapters adapters{rows_on_device.at<cuda::ExpertLoraTables>(0), 0, true,
                                      of_slot.at<const cuda::LoraProduct*>(0), items.at<cuda::LoraItem>(0),
                                      t.at<float>(0), turn};
  const cuda::ExpertSlots sorted{experts.at<int32_t>(0), slots.at<int32_t>(0), row_ids.at<int32_t>(0), pairs, s.top_k};
  const double seconds = bench.time_s(1, [&](int) {
    auto* const first = wide.at<__nv_bfloat16>(0);
    cuda::cut_expert_items(adapters, sorted, bench.stream());
    cuda::add_expert_lora<__nv_bfloat16>(adapters, sorted, false, x.at<__nv_bfloat16>(0), row_ids.at<int32_t>(0),
                                         s.hidden, first, 2 * s.intermediate, bench.stream());
    cuda::add_expert_lora<__nv_bfloat16>(adapters, sorted, true, first, nullptr, s.intermediate,
                                         y.at<__nv_bfloat16>(0), s.hidden, bench.stream());
  });
  bench.report_read("expert_lora",
                    std::to_string(rows) + " rows, " + std::to_string(s.top_k) + " of " + std::to_string(s.num_experts) +
                        " experts, " + std::to_string(num_adapters) + " of rank 16",
                    seconds, static_cast<double>(2 * values * num_used));
}

// The experts are those of Qwen3-30B-A3B.
inline void expert_lora_cases(CudaBench& bench, bool is_tiny) {
  const ExpertLoraShape shape = is_tiny ? ExpertLoraShape{32, 2, 64, 48} : ExpertLoraShape{128, 8, 2048, 768};
  for (const int32_t rows : is_tiny ? std::vector<int32_t>{4} : std::vector<int32_t>{64, 2048})
    for (const int32_t num_adapters : {1, is_tiny ? 4 : 64}) expert_lora_case(bench, shape, rows, num_adapters);
}

}  // namespace llmb::bench
