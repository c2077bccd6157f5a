// Cases of bench_kernels_cuda: products of 2:4 sparse weights beside the same ones of bf16.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_sparse24.h"
#include "kernels/cuda/sparse24_pack.h"
#include "tools/cuda_bench.h"

namespace llmb::bench {

// Blocks of kSparse24BF16 with any two of every four numbers, up to 1/32 in magnitude.
inline std::vector<uint8_t> random_sparse24(int64_t rows, int64_t k) {
  constexpr uint8_t kPairs[] = {3, 5, 9, 6, 10, 12};
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * k / 32 * 36));
  std::mt19937 rng(1);
  for (size_t block = 0; block < bytes.size(); block += 36) {
    for (size_t i = 0; i < 4; ++i) bytes[block + i] = static_cast<uint8_t>(kPairs[rng() % 6] | kPairs[rng() % 6] << 4);
    for (size_t i = 4; i < 36; i += 2) {
      const uint32_t random = rng();
      const auto bits = static_cast<uint16_t>((random & 0x807f) | (0x3b00 + (random >> 16) % 4 * 0x80));
      std::memcpy(bytes.data() + block + i, &bits, 2);
    }
  }
  return bytes;
}

// linear_sparse24 as a run has it: by the sparse instruction, or with many rows of the numbers that the weight means,
// written before. sparse24_numbers: this where a run does not; linear_sparse24_det: as a deterministic run, where that
// is another. Multiply-adds are counted as a dense product's.
inline void sparse24_cases(CudaBench& bench, cuda::Linear* linear, const std::string& what, int64_t n, int64_t k,
                           int64_t rows, const Copies& x, const Copies& out) {
  using T = __nv_bfloat16;
  if (!cuda::LinearSparse24::takes(n, k)) return;
  constexpr int64_t kTile = cuda::sparse24::kTileFeatures;
  const int64_t bytes = cuda::sparse24::bytes(n, k);
  const int copies = bench.num_copies(bytes);
  const Copies units(bytes, copies), blocks = upload(random_sparse24(kTile, k), bench.stream());
  for (int c = 0; c < copies; ++c) {
    check(cudaMemsetAsync(units.at<void>(c), cuda::sparse24::kEmptyByte, static_cast<size_t>(bytes), bench.stream()),
          "cudaMemsetAsync");
    for (int64_t first = 0; first < n; first += kTile)
      cuda::pack_sparse24<T>(blocks.at<uint8_t>(0), BlockFormat::kSparse24BF16, std::min(kTile, n - first), k, first,
                             units.at<uint8_t>(c), bench.stream());
  }
  cuda::LinearSparse24 product({bench.num_sms()}, bench.stream());
  const auto view = [&](int c) { return cuda::Sparse24View{units.at<uint8_t>(c), nullptr, n, k}; };
  const auto report = [&](const char* op, const auto& body) {
    bench.report_either(op, what, bench.time_s(copies, body), static_cast<double>(bytes + rows * (n + k) * 2),
                        2.0 * static_cast<double>(rows * n) * static_cast<double>(k));
  };
  const bool is_few = rows <= cuda::LinearSparse24::kMaxRows;
  report(is_few ? "linear_sparse24" : "linear_sparse24_det",
         [&](int c) { product.run(view(c), x.at<T>(0), rows, out.at<T>(0), bench.stream()); });
  if (rows <= 64) return;
  const Copies numbers(n * k * 2);
  const cuda::LinearView dense{numbers.at<void>(0), nullptr, n, k};
  linear->tune(dense, x.at<T>(0), rows, out.at<void>(0), DType::kBF16, bench.stream());
  report(is_few ? "sparse24_numbers" : "linear_sparse24", [&](int c) {
    cuda::widen_sparse24(view(c), numbers.at<T>(0), bench.stream());
    linear->run(dense, x.at<T>(0), rows, out.at<void>(0), DType::kBF16, bench.stream());
  });
}

}  // namespace llmb::bench
