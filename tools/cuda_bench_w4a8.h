// Cases of bench_kernels_cuda: products of w4a8 weights, with the rounding of their rows, beside the same ones of bf16.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear_w4a8.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/w4a8_pack.h"
#include "tools/cuda_bench.h"
#include "tools/cuda_bench_int4.h"

namespace llmb::bench {

// linear_w4a8 as a run has it: of codes, or with many rows of the numbers that they mean, written before. w4a8_numbers:
// this where a run does not. multiply_int8(weight, rows of x): the product of int8, as a run has it
template <typename MultiplyInt8>
void w4a8_cases(CudaBench& bench, const ProductShape& shape, const Copies& x, const Copies& out,
                const MultiplyInt8& multiply_int8) {
  using T = __nv_bfloat16;
  const auto& [what, n, k, rows] = shape;
  if (!cuda::LinearW4A8::takes(n, k)) return;
  const int64_t bytes = cuda::w4a8::bytes(n, k), row_bytes = cuda::int8_row_bytes(k);
  const int copies = bench.num_copies(bytes);
  const Copies units(bytes, copies), scales(n * 4, copies), x_int8(rows * row_bytes), x_scales(rows * 4);
  const Copies floats = normal(bench, n * k, 0.02f, 1, DType::kF32);
  for (int c = 0; c < copies; ++c) {
    check(cudaMemsetAsync(units.at<void>(c), 0, static_cast<size_t>(bytes), bench.stream()), "cudaMemsetAsync");
    cuda::quantize_w4a8(floats.at<float>(0), n, k, 0, units.at<uint8_t>(c), scales.at<float>(c), bench.stream());
  }
  cuda::LinearW4A8 product({bench.num_sms()}, bench.stream());
  const auto view = [&](int c) { return cuda::W4A8View{units.at<uint8_t>(c), scales.at<float>(c), nullptr, n, k}; };
  const auto report = [&](const char* op, const auto& multiply) {
    const auto body = [&](int c) {
      cuda::quantize_rows(x.at<T>(0), rows, k, x_int8.at<int8_t>(0), x_scales.at<float>(0), bench.stream());
      multiply(view(c), cuda::Int8Rows{x_int8.at<int8_t>(0), x_scales.at<float>(0)});
    };
    bench.report_either(op, what, bench.time_s(copies, body),
                        static_cast<double>(bytes + rows * row_bytes + rows * (n + k) * 2),
                        2.0 * static_cast<double>(rows * n) * static_cast<double>(k));
  };
  const bool is_few = rows <= cuda::LinearW4A8::kMaxRows;
  if (is_few)
    report("linear_w4a8", [&](const cuda::W4A8View& weight, const cuda::Int8Rows& rounded) {
      product.run(weight, rounded, rows, out.at<T>(0), bench.stream());
    });
  if (rows <= 16) return;
  const Copies numbers(n * row_bytes);
  report(is_few ? "w4a8_numbers" : "linear_w4a8", [&](const cuda::W4A8View& weight, const cuda::Int8Rows& rounded) {
    cuda::widen_w4a8(weight, numbers.at<int8_t>(0), bench.stream());
    multiply_int8(cuda::Int8View{numbers.at<int8_t>(0), weight.scales, nullptr, n, k}, rounded);
  });
}

}  // namespace llmb::bench
