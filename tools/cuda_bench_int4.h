// Cases of bench_kernels_cuda: products of int4 weights beside the same ones of bf16.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/convert.h"
#include "kernels/cuda/int4_pack.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_int4.h"
#include "tools/cuda_bench.h"

namespace llmb::bench {

struct ProductShape {
  std::string what;
  int64_t n, k, rows;
};

// linear_int4 as a run has it: of codes, or with many rows of the numbers that they mean, written before (int4_numbers
// where codes would be taken). On Hopper the codes by each kernel too: linear_int4_mma up to 128 rows,
// linear_int4_wgmma up to 512 where a run has the numbers, linear_int4_one by one block a multiprocessor,
// linear_int4_det as a deterministic run. int4_shares: codes with other numbers of blocks a multiprocessor and bytes
// under way. bf16: copies of the weight, of which those of int4, more of them, are made.
inline void int4_cases(CudaBench& bench, cuda::Linear* linear, bool hopper, const ProductShape& shape, bool with_shares,
                       const Copies& bf16, const Copies& x, const Copies& out) {
  using T = __nv_bfloat16;
  const auto& [what, n, k, rows] = shape;
  const int64_t bytes = cuda::int4::bytes(n, k, cuda::int4::Meaning::kFromEight);
  const int copies = bench.num_copies(bytes), bf16_copies = static_cast<int>(bf16.bytes() / bf16.stride());
  const Copies units(bytes, copies), numbers(n * k * 4);
  for (int c = 0; c < copies; ++c) {
    check(cudaMemsetAsync(units.at<void>(c), 0, static_cast<size_t>(bytes), bench.stream()), "cudaMemsetAsync");
    cuda::convert(bf16.at<void>(c % bf16_copies), DType::kBF16, numbers.at<void>(0), DType::kF32, n * k,
                  bench.stream());
    cuda::quantize_int4<T>(numbers.at<float>(0), n, k, 0, units.at<uint8_t>(c), bench.stream());
  }
  const auto view = [&](int c) { return cuda::Int4View{units.at<uint8_t>(c), nullptr, n, k}; };
  const auto report = [&](const char* op, const std::string& name, const auto& body) {
    bench.report_either(op, name, bench.time_s(copies, body), static_cast<double>(bytes + rows * (n + k) * 2),
                        2.0 * static_cast<double>(rows * n) * static_cast<double>(k));
  };
  const auto codes = [&](const char* op, const std::string& name, const cuda::LinearInt4Options& options) {
    cuda::LinearInt4 product(options, bench.stream());
    report(op, name, [&](int c) { product.run(view(c), x.at<T>(0), rows, out.at<T>(0), bench.stream()); });
  };
  cuda::LinearInt4Options usual{bench.num_sms()};
  usual.hopper = hopper, usual.deterministic = false;
  const bool takes_codes = rows <= cuda::LinearInt4(usual, bench.stream()).max_rows();
  if (takes_codes) codes("linear_int4", what, usual);
  if (hopper) {
    if (rows <= cuda::tuning::kMaxInt4Rows) codes("linear_int4_mma", what, {bench.num_sms()});
    if (!takes_codes && rows <= 512) codes("linear_int4_wgmma", what, usual);
    cuda::LinearInt4Options one = usual, deterministic = usual;
    one.wgmma_blocks_per_sm = 1;
    if (rows <= 64) codes("linear_int4_one", what, one);
    deterministic.deterministic = true;
    const bool is_few = rows <= cuda::tuning::kMaxInt4MmaRows;
    if (is_few || (rows > 128 && rows <= 512)) codes("linear_int4_det", what, deterministic);
  }
  if (rows > 64) {
    const cuda::LinearView dequantized{numbers.at<void>(0), nullptr, n, k};
    linear->tune(dequantized, x.at<T>(0), rows, out.at<void>(0), DType::kBF16, bench.stream());
    report(takes_codes ? "int4_numbers" : "linear_int4", what, [&](int c) {
      cuda::dequantize_int4(view(c), numbers.at<T>(0), bench.stream());
      linear->run(dequantized, x.at<T>(0), rows, out.at<void>(0), DType::kBF16, bench.stream());
    });
  }
  if (!with_shares || rows > 64) return;
  for (const int32_t blocks : {1, 2, 3, 4})
    for (const int32_t kilobytes : {40, 56, 72, 96, 200}) {
      if (blocks * (kilobytes + 2) > 227) continue;  // of shared memory
      codes("int4_shares", what + ", " + std::to_string(blocks) + " of " + std::to_string(kilobytes) + " KiB",
            {bench.num_sms(), blocks, kilobytes * 1024});
    }
}

}  // namespace llmb::bench
