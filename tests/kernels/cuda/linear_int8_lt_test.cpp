// linear_int8 by cuBLASLt beside linear_int8, whose bits it gives.
#include "kernels/cuda/linear_int8_lt.h"

#include <doctest/doctest.h>

#include "kernels/cuda/tuning.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"
#ifdef LLMB_SIMT
#include "kernels/simt/settings.h"
#endif

namespace llmb::cuda {
namespace {

using test::DeviceArray;
using test::random_normal;

// Rows on the device, rounded to int8.
struct Quantized {
  Quantized(int64_t rows, int64_t width, uint32_t seed)
      : values(static_cast<size_t>(rows * int8_row_bytes(width))), scales(static_cast<size_t>(rows)) {
    const DeviceArray<float> from(random_normal(rows * width, seed));
    quantize_rows(from.data(), rows, width, values.data(), scales.data(), nullptr);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  DeviceArray<int8_t> values;
  DeviceArray<float> scales;
};

struct Problem {
  Problem(int64_t num_rows, int64_t out, int64_t in, bool with_bias)
      : rows(num_rows),
        w(out, in, 1),
        x(num_rows, in, 2),
        bias(random_normal(out, 3)),
        weight{w.values.data(), w.scales.data(), with_bias ? bias.data() : nullptr, out, in},
        rounded{x.values.data(), x.scales.data()} {}
  int64_t rows;
  Quantized w, x;
  DeviceArray<float> bias;
  Int8View weight;
  Int8Rows rounded;
};

// By `lt`, or nothing where it refuses.
template <class Out>
std::vector<float> run(LinearInt8Lt* lt, const Problem& p) {
  DeviceArray<Out> out(static_cast<size_t>(p.rows * p.weight.out_features));
  if (!lt->run(p.weight, p.rounded, p.rows, out.data(), nullptr)) return {};
  CHECK(out.check_guards());
  return out.download_floats();
}

template <class Out>
std::vector<float> run(const Problem& p) {
  DeviceArray<Out> out(static_cast<size_t>(p.rows * p.weight.out_features));
  linear_int8(p.weight, p.rounded, p.rows, out.data(), nullptr);
  return out.download_floats();
}

}  // namespace

TEST_CASE_TEMPLATE("linear_int8 by cuBLASLt has the same bits, in one part or several", Out, float, __nv_bfloat16,
                   __half) {
  constexpr int64_t kRows[] = {tuning::kMaxInt8FewRows + 1, 64, 65, 128, 129, 300};
  for (const int64_t rows : kRows) {
    CAPTURE(rows);
    const Problem p(rows, 40, 100, rows % 2 == 0);
    const std::vector<float> expected = run<Out>(p);
    for (const int64_t max_sums : {40 * 128, 40 * 512}) {
      LinearInt8Lt lt(max_sums);
      for (int i = 0; i < 2; ++i) CHECK(test::same_bytes(run<Out>(&lt, p), expected));
      CHECK(lt.problem().empty());
    }
  }
}

TEST_CASE("few rows, features that are no packs and sums without room are linear_int8's") {
  LinearInt8Lt lt(40 * 256), small(40 * 127);
  CHECK(run<float>(&lt, Problem(tuning::kMaxInt8FewRows, 40, 64, false)).empty());
  CHECK(run<float>(&lt, Problem(70, 36, 64, false)).empty());
  CHECK(run<float>(&small, Problem(70, 40, 64, false)).empty());
  CHECK(lt.problem().empty());
}

TEST_CASE("a sum that differs is counted") {
  const Problem p(70, 40, 64, false);
  DeviceArray<int32_t> sums(70 * 40);
  DeviceArray<uint32_t> differences(1);
  std::vector<int32_t> own(70 * 40);
  const std::vector<int8_t> x = p.x.values.download(), w = p.w.values.download();
  for (int64_t row = 0; row < 70; ++row)
    for (int64_t feature = 0; feature < 40; ++feature)
      for (int64_t k = 0; k < 64; ++k) own[row * 40 + feature] += x[row * 64 + k] * w[feature * 64 + k];
  for (const uint32_t wrong : {0u, 2u}) {
    if (wrong != 0) ++own[0], --own[69 * 40 + 39];
    sums.upload(own);
    differences.upload(std::vector<uint32_t>{0});
    count_int8_differences(p.weight, p.rounded, 70, sums.data(), differences.data(), nullptr);
    CHECK(differences.download()[0] == wrong);
  }
}

TEST_CASE("a shape that is new while a graph is recorded is linear_int8's, one that is known is not") {
  LinearInt8Lt lt(40 * 256);
  const Problem p(70, 40, 64, false);
  DeviceArray<float> out(70 * 40);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  for (const bool is_known : {false, true}) {
    if (is_known) CHECK(lt.run(p.weight, p.rounded, p.rows, out.data(), stream));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    CHECK(lt.run(p.weight, p.rounded, p.rows, out.data(), stream) == is_known);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

#ifdef LLMB_SIMT
TEST_CASE("where cuBLASLt fails, linear_int8 goes on, and the reason is told") {
  LinearInt8Lt lt(40 * 256);
  const Problem p(70, 40, 64, false);
  DeviceArray<float> out(70 * 40);
  ::llmb::simt::fail_call_after(1, cudaErrorMemoryAllocation);  // behind the question whether a graph is recorded
  CHECK_FALSE(lt.run(p.weight, p.rounded, p.rows, out.data(), nullptr));
  CHECK(lt.problem().find("40 x 64") != std::string::npos);
  CHECK_FALSE(lt.run(p.weight, p.rounded, p.rows, out.data(), nullptr));
}
#endif

}  // namespace llmb::cuda
