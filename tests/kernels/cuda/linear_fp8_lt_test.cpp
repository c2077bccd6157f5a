// linear_fp8 by cuBLASLt beside the products of the codes themselves.
#include "kernels/cuda/linear_fp8_lt.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear_fp8.h"
#include "kernels/cuda/tuning.h"
#include "tests/kernels/cuda/byte_rows.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"
#ifdef LLMB_SIMT
#include "kernels/simt/settings.h"
#endif

namespace llmb::cuda {
namespace {

using bf16 = __nv_bfloat16;
using test::DeviceArray;

using Problem = test_bytes::Problem<E4m3, Fp8View, Fp8Rows, bf16>;

// By `lt`, or nothing where it refuses.
template <class Out>
std::vector<float> run(LinearFp8Lt* lt, const Problem& p) {
  DeviceArray<Out> out(static_cast<size_t>(p.rows * p.weight.out_features));
  if (!lt->run(p.weight, p.rounded, p.rows, DType::kBF16, out.data(), nullptr)) return {};
  CHECK(out.check_guards());
  return out.download_floats();
}

// As the host layer's library has it: 16 chains of fp32 sums, added in their order.
std::vector<float> reference(const Problem& p) {
  const std::vector<float> w = p.w.numbers(), x = p.x.numbers(), w_scales = p.w.scales.download(),
                           x_scales = p.x.scales.download(), bias = p.bias.download_floats();
  const int64_t size = p.weight.row_bytes(), features = p.weight.out_features;
  std::vector<float> out;
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t f = 0; f < features; ++f) {
      float lanes[16] = {}, sum = 0;
      for (int64_t k = 0; k < size; ++k) lanes[k % 16] += w[f * size + k] * x[row * size + k];
      for (const float lane : lanes) sum += lane;
      sum = sum * w_scales[f] * x_scales[row];
      out.push_back(p.weight.bias == nullptr ? sum : sum + bias[f]);
    }
  return out;
}

TEST_CASE("products of e4m3 by e4m3 with both scales and the bias") {
  constexpr int64_t kRows[] = {tuning::kMaxFp8FewRows + 1, 64, 65, 129, 300};
  for (const int64_t rows : kRows) {
    CAPTURE(rows);
    const Problem p(rows, 48, 100, rows % 2 == 0);
    const std::vector<test_bytes::ExactOutput> exact = test_bytes::exact_outputs(p);
    LinearFp8Lt lt;
    for (int i = 0; i < 2; ++i) {
      const std::vector<float> actual = run<bf16>(&lt, p);
      REQUIRE(actual.size() == exact.size());
      for (size_t at = 0; at < exact.size(); ++at)
        REQUIRE(std::fabs(double{actual[at]} - exact[at].value) <= 0.01 * std::fabs(exact[at].value) + 0.01);
    }
    CHECK(lt.problem().empty());
#ifdef LLMB_SIMT
    if (rows <= 64) continue;  // there the sums have parts
    std::vector<float> expected = reference(p);
    CHECK(test::same_bytes(run<float>(&lt, p), expected));
    for (float& value : expected) value = to_float(from_float<bf16>(value));
    CHECK(test::same_bytes(run<bf16>(&lt, p), expected));
#endif
  }
}

TEST_CASE("few rows and features that are no multiple of 16 are LinearFp8's") {
  LinearFp8Lt lt;
  CHECK(run<bf16>(&lt, Problem(tuning::kMaxFp8FewRows, 48, 64, false)).empty());
  CHECK(run<bf16>(&lt, Problem(70, 40, 64, false)).empty());
  CHECK(lt.problem().empty());
}

TEST_CASE("an output that is off is counted, one that a rounding moved is not") {
  const Problem p(70, 48, 64, true);
  const std::vector<float> exact = reference(p);
  DeviceArray<uint32_t> differences(1);
  for (const uint32_t wrong : {0u, 2u}) {
    std::vector<bf16> out = test::converted<bf16>(exact);
    if (wrong != 0) out[5] = from_float<bf16>(3 * exact[5] + 1), out[69 * 48 + 47] = from_float<bf16>(std::nanf(""));
    const DeviceArray<bf16> others(out);
    differences.upload(std::vector<uint32_t>{0});
    count_fp8_differences(p.weight, p.rounded, 70, DType::kBF16, others.data(), differences.data(), nullptr);
    CHECK(differences.download()[0] == wrong);
  }
}

TEST_CASE("a shape that is new while a graph is recorded is LinearFp8's, one that is known is not") {
  LinearFp8Lt lt;
  const Problem p(70, 48, 64, false);
  DeviceArray<bf16> out(70 * 48);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  for (const bool is_known : {false, true}) {
    if (is_known) CHECK(lt.run(p.weight, p.rounded, p.rows, DType::kBF16, out.data(), stream));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    CHECK(lt.run(p.weight, p.rounded, p.rows, DType::kBF16, out.data(), stream) == is_known);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

#ifdef LLMB_SIMT
TEST_CASE("where cuBLASLt fails, LinearFp8 goes on, and the reason is told") {
  LinearFp8Lt lt;
  const Problem p(70, 48, 64, false);
  DeviceArray<bf16> out(70 * 48);
  ::llmb::simt::fail_call_after(1, cudaErrorMemoryAllocation);  // behind the question whether a graph is recorded
  CHECK_FALSE(lt.run(p.weight, p.rounded, p.rows, DType::kBF16, out.data(), nullptr));
  CHECK(lt.problem().find("48 x 64") != std::string::npos);
  CHECK_FALSE(lt.run(p.weight, p.rounded, p.rows, DType::kBF16, out.data(), nullptr));
}
#endif

}  // namespace
}  // namespace llmb::cuda
