// Cases of bench_kernels_cuda: products of e4m3 weights beside the same ones of bf16.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/linear_fp8.h"
#include "kernels/cuda/linear_fp8_lt.h"
#include "kernels/cuda/linear_wgmma8.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/tuning.h"
#include "tools/cuda_bench.h"

namespace llmb::bench {

// linear_fp8 as a run has it: few rows by our own kernel, many by cuBLASLt with the rounding of their rows before it;
// linear_fp8_own: of many rows, our own; linear_fp8_wgmma: with the rounding of their rows by `wgmma8`, where not null.
// bf16: copies of the weight, of which those of e4m3, more of them, are made.
inline void fp8_cases(CudaBench& bench, cuda::LinearWgmma8* wgmma8, const std::string& what, int64_t n, int64_t k,
                      int64_t rows, const Copies& bf16, const Copies& x, const Copies& out) {
  using T = __nv_bfloat16;
  using cuda::E4m3;
  const int64_t row_bytes = cuda::fp8::row_bytes(k);
  const int copies = bench.num_copies(n * row_bytes), bf16_copies = static_cast<int>(bf16.bytes() / bf16.stride());
  const Copies weight(n * row_bytes, copies), scales(n * 4, copies), x_fp8(rows * row_bytes), x_scales(rows * 4);
  for (int c = 0; c < copies; ++c)
    cuda::quantize_rows(bf16.at<T>(c % bf16_copies), n, k, weight.at<E4m3>(c), scales.at<float>(c), bench.stream());
  cuda::LinearFp8Lt lt;
  cuda::LinearFp8 own({bench.num_sms()}, bench.stream());
  const auto bytes = static_cast<double>(n * row_bytes + rows * (n + k) * 2);
  const double flops = 2.0 * static_cast<double>(rows * n) * static_cast<double>(k);
  if (wgmma8 != nullptr) {
    const auto product = [&](int c) {
      const cuda::Fp8View view{weight.at<E4m3>(c), scales.at<float>(c), nullptr, n, k};
      cuda::quantize_rows(x.at<T>(0), rows, k, x_fp8.at<E4m3>(0), x_scales.at<float>(0), bench.stream());
      wgmma8->run(view, cuda::Fp8Rows{x_fp8.at<E4m3>(0), x_scales.at<float>(0)}, rows, DType::kBF16, out.at<T>(0),
                  bench.stream());
    };
    bench.report_either("linear_fp8_wgmma", what, bench.time_s(copies, product), bytes, flops);
  }
  for (const bool by_lt : {true, false}) {
    const auto product = [&](int c) {
      const cuda::Fp8View view{weight.at<E4m3>(c), scales.at<float>(c), nullptr, n, k};
      if (by_lt && cuda::LinearFp8Lt::may_take(view, rows)) {
        cuda::quantize_rows(x.at<T>(0), rows, k, x_fp8.at<E4m3>(0), x_scales.at<float>(0), bench.stream());
        const cuda::Fp8Rows rounded{x_fp8.at<E4m3>(0), x_scales.at<float>(0)};
        if (lt.run(view, rounded, rows, DType::kBF16, out.at<T>(0), bench.stream())) return;
      }
      own.run(view, x.at<T>(0), rows, out.at<T>(0), bench.stream());
    };
    product(0);  // what cuBLASLt gives is compared
    bench.report_either(by_lt ? "linear_fp8" : "linear_fp8_own", what, bench.time_s(copies, product), bytes, flops);
    if (rows <= cuda::tuning::kMaxFp8FewRows) return;  // our own kernel's
  }
}

}  // namespace llmb::bench
