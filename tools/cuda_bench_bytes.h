// Cases of bench_kernels_cuda: products of weights of eight bits in groups, and of int4 whose columns are in another
// order, beside the same ones of bf16.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/int4_pack.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_int4.h"
#include "kernels/cuda/order_columns.h"
#include "tools/cuda_bench.h"
#include "tools/cuda_bench_int4.h"

namespace llmb::bench {

// Blocks of random codes, of integers of a checkpoint, for the features of a tile.
inline std::vector<uint8_t> random_blocks(int64_t k, int64_t code_bytes) {
  std::mt19937 rng(1);
  std::vector<uint8_t> blocks(static_cast<size_t>(cuda::int4::kTileFeatures * k / 32 * (3 + code_bytes)));
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(rng());
  for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(3 + code_bytes)) {
    const uint16_t scale = 0x3980;  // 2^-12
    std::memcpy(blocks.data() + at, &scale, 2);
    blocks[at + 2] = code_bytes == 32 ? 128 : 8;
  }
  return blocks;
}

// linear_int8_groups: weights of bytes as a run has them, of codes or of the numbers that they mean. int4_ordered: int4
// with the columns of x brought into the weight's order before. order_columns: that alone.
inline void bytes_cases(CudaBench& bench, cuda::Linear* linear, bool hopper, const ProductShape& shape, const Copies& x,
                        const Copies& out) {
  using T = __nv_bfloat16;
  const auto& [what, n, k, rows] = shape;
  if (k % 32 != 0) return;
  const Copies numbers(n * k * 2), ordered(rows * k * 2);
  std::vector<int32_t> order(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) order[i] = static_cast<int32_t>(i);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  const cuda::DeviceMemory columns(k * int64_t{sizeof(int32_t)});
  check(cudaMemcpy(columns.data(), order.data(), order.size() * sizeof(int32_t), cudaMemcpyHostToDevice), "cudaMemcpy");
  const auto order_x = [&] {
    cuda::order_columns(x.at<uint16_t>(0), columns.data<int32_t>(), rows, k, ordered.at<uint16_t>(0), bench.stream());
  };
  bench.report_either("order_columns", what, bench.time_s(1, [&](int) { order_x(); }),
                      static_cast<double>(rows * k * 4 + k * 4), 0);
  cuda::LinearInt4Options options{bench.num_sms()};
  options.hopper = hopper, options.deterministic = false;
  cuda::LinearInt4 product(options, bench.stream());
  for (const auto& [op, meaning, is_ordered] : {std::tuple{"linear_int8_groups", cuda::int4::Meaning::kBytes, false},
                                                {"int4_ordered", cuda::int4::Meaning::kFromEight, true}}) {
    const std::vector<uint8_t> host = random_blocks(k, cuda::int4::has_bytes(meaning) ? 32 : 16);
    const cuda::DeviceMemory blocks(static_cast<int64_t>(host.size()));
    check(cudaMemcpy(blocks.data(), host.data(), host.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
    const int64_t bytes = cuda::int4::bytes(n, k, meaning);
    const int copies = bench.num_copies(bytes);
    const Copies units(bytes, copies);
    for (int c = 0; c < copies; ++c) {
      check(cudaMemsetAsync(units.at<void>(c), 0, static_cast<size_t>(bytes), bench.stream()), "cudaMemsetAsync");
      for (int64_t f = 0; f < n; f += cuda::int4::kTileFeatures)
        cuda::pack_int4_blocks<T>(blocks.data<uint8_t>(), std::min<int64_t>(cuda::int4::kTileFeatures, n - f), k, f,
                                  meaning, units.at<uint8_t>(c), bench.stream());
    }
    const cuda::LinearView dequantized{numbers.at<void>(0), nullptr, n, k};
    const bool takes_codes = rows <= product.max_rows();
    if (!takes_codes) linear->tune(dequantized, x.at<T>(0), rows, out.at<void>(0), DType::kBF16, bench.stream());
    const T* const from = is_ordered ? ordered.at<T>(0) : x.at<T>(0);
    const double time = bench.time_s(copies, [&](int c) {
      const cuda::Int4View view{units.at<uint8_t>(c), nullptr, n, k, meaning};
      if (is_ordered) order_x();
      if (takes_codes) return product.run(view, from, rows, out.at<T>(0), bench.stream());
      cuda::dequantize_int4(view, numbers.at<T>(0), bench.stream());
      linear->run(dequantized, from, rows, out.at<void>(0), DType::kBF16, bench.stream());
    });
    bench.report_either(op, what, time, static_cast<double>(bytes + rows * (n + k) * 2),
                        2.0 * static_cast<double>(rows * n) * static_cast<double>(k));
  }
}

}  // namespace llmb::bench
