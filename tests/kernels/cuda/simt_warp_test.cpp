// The host SIMT layer: what the lanes of a warp do together, 16-bit types, asynchronous copies, matrix fragments.
#ifdef LLMB_SIMT
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"
#include "tests/support/device_array.h"
#include "tests/support/fault_of.h"

namespace llmb::cuda {

namespace {

using test::DeviceArray;
using test::fault_of;

constexpr unsigned kAll = 0xFFFFFFFFu;

// ---- shuffles and votes -------------------------------------------------------------------------------------------

__global__ void shuffle_kernel(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int i = static_cast<int>(threadIdx.x) * 8;
  out[i + 0] = __shfl_sync(kAll, lane * 10, 3);
  out[i + 1] = __shfl_xor_sync(kAll, lane * 10, 5);
  out[i + 2] = __shfl_up_sync(kAll, lane * 10, 2);
  out[i + 3] = __shfl_down_sync(kAll, lane * 10, 2);
  out[i + 4] = __shfl_sync(kAll, lane * 10, 9, 8);  // lane 1 of each eight
  out[i + 5] = __shfl_up_sync(kAll, lane * 10, 1, 4);
  out[i + 6] = __shfl_down_sync(kAll, lane * 10, 1, 4);
  out[i + 7] = static_cast<int>(__shfl_xor_sync(kAll, static_cast<double>(lane) + 0.5, 16) * 2);
}

TEST_CASE("shuffles, with and without segments") {
  test::for_each_order(5, [](uint64_t) {
    DeviceArray<int> out(64 * 8);
    launch({dim3(1), dim3(64)}, shuffle_kernel, out.data());
    const std::vector<int> values = out.download();
    for (int thread = 0; thread < 64; ++thread) {
      const int lane = thread % 32;
      const int* row = &values[static_cast<size_t>(thread) * 8];
      CHECK(row[0] == 30);
      CHECK(row[1] == (lane ^ 5) * 10);
      CHECK(row[2] == (lane < 2 ? lane : lane - 2) * 10);
      CHECK(row[3] == (lane >= 30 ? lane : lane + 2) * 10);
      CHECK(row[4] == (lane / 8 * 8 + 1) * 10);
      CHECK(row[5] == (lane % 4 == 0 ? lane : lane - 1) * 10);
      CHECK(row[6] == (lane % 4 == 3 ? lane : lane + 1) * 10);
      CHECK(row[7] == (lane ^ 16) * 2 + 1);
    }
  });
}

__global__ void vote_kernel(unsigned* out) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= 24) return;
  const unsigned mask = lane < 8 ? 0xFFu : 0xFFFF00u;  // two groups that go their own ways
  const unsigned ballot = __ballot_sync(mask, lane % 3 == 0);
  const int any = __any_sync(mask, lane == 20);
  const int all = __all_sync(mask, lane < 8);
  const unsigned match = __match_any_sync(mask, static_cast<unsigned>(lane / 4));
  const unsigned sum = __reduce_add_sync(mask, static_cast<unsigned>(lane));
  const int least = __reduce_min_sync(mask, lane - 10);
  if (lane == 4 || lane == 12) {
    unsigned* row = out + (lane == 4 ? 0 : 6);
    row[0] = ballot, row[1] = static_cast<unsigned>(any), row[2] = static_cast<unsigned>(all);
    row[3] = match, row[4] = sum, row[5] = static_cast<unsigned>(least + 100);
  }
}

TEST_CASE("votes and reductions of parts of a warp") {
  test::for_each_order(5, [](uint64_t) {
    DeviceArray<unsigned> out(12);
    launch({dim3(1), dim3(32)}, vote_kernel, out.data());
    CHECK(out.holds(std::vector<unsigned>{0x49, 0, 1, 0xF0, 28, 90, 0x249200, 1, 0, 0xF000, 248, 98}));
  });
}

__global__ void gone_lane_kernel(int* out) {
  if (threadIdx.x == 31) return;
  out[threadIdx.x] = __shfl_down_sync(kAll, static_cast<int>(threadIdx.x), 1);
}

__global__ void two_collectives_kernel(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(kAll, 1, 0);
  else out[threadIdx.x] = __any_sync(kAll, 1);
}

__global__ void not_in_mask_kernel(int* out) { out[threadIdx.x] = __shfl_sync(0xFFFFu, 1, 0); }

TEST_CASE("mistakes with warps are faults") {
  DeviceArray<int> out(64);
  const auto fault = [&](auto kernel, unsigned num_threads) {
    return fault_of([&] { launch({dim3(1), dim3(num_threads)}, kernel, out.data()); });
  };
  CHECK(fault(gone_lane_kernel, 32).find("reads lane 31, which does not take part") != std::string::npos);
  CHECK(fault(two_collectives_kernel, 32).find("different collectives") != std::string::npos);
  CHECK(fault(not_in_mask_kernel, 32).find("not in its own mask") != std::string::npos);
}

// Every lane reads what its neighbour wrote.
template <bool kWithBarrier>
__global__ void neighbour_kernel(float* out) {
  float* shared = dynamic_shared<float>();
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kWithBarrier) __syncwarp();
  out[threadIdx.x] = shared[threadIdx.x ^ 1];
}

TEST_CASE("a missing __syncwarp shows, a present one does not") {
  test::for_each_order(5, [](uint64_t) {
    DeviceArray<float> with(32), without(32);
    launch({dim3(1), dim3(32), 128}, neighbour_kernel<true>, with.data());
    launch({dim3(1), dim3(32), 128}, neighbour_kernel<false>, without.data());
    int num_nan = 0;
    for (const float value : without.download()) num_nan += std::isnan(value);
    CHECK(num_nan > 0);
    for (const float value : with.download()) CHECK_FALSE(std::isnan(value));
  });
}

// ---- asynchronous copies ------------------------------------------------------------------------------------------

// out: what is read before the wait, after it, and of a copy that was not valid.
__global__ void copy_kernel(const float* in, float* out) {
  float* shared = dynamic_shared<float>();
  shared[0] = shared[4] = shared[8] = 5;
  ptx::cp_async16(shared, in);
  ptx::cp_async_commit();
  ptx::cp_async16(shared + 4, in + 4);
  ptx::cp_async_commit();
  ptx::cp_async16(shared + 8, in, false);
  ptx::cp_async_commit();
  out[0] = shared[0];
  ptx::cp_async_wait<2>();
  out[1] = shared[0];
  out[2] = shared[4];
  ptx::cp_async_wait<0>();
  out[3] = shared[4];
  out[4] = shared[8];
}

TEST_CASE("an asynchronous copy is NaN until its group is waited for") {
  DeviceArray<float> in(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}), out(5);
  launch({dim3(1), dim3(1), 48}, copy_kernel, in.data(), out.data());
  const std::vector<float> values = out.download();
  CHECK(std::isnan(values[0]));
  CHECK(values[1] == 1);
  CHECK(std::isnan(values[2]));
  CHECK(values[3] == 5);
  CHECK(values[4] == 0);
}

__global__ void misaligned_copy_kernel(const float* in) { ptx::cp_async16(dynamic_shared<float>(), in + 1); }

TEST_CASE("a misaligned asynchronous copy is a fault") {
  DeviceArray<float> in(8);
  CHECK(fault_of([&] { launch({dim3(1), dim3(1), 16}, misaligned_copy_kernel, in.data()); }) != "");
}

// ---- matrices -----------------------------------------------------------------------------------------------------

// One warp: D [16,8] += A [16,16] * B [16,8], B through ldmatrix_x4_trans from [k, n], which lanes 16 to 31 ask for
// again.
template <class T>
__global__ void product_kernel(const T* a, const T* b, float* d) {
  T* shared = dynamic_shared<T>();
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) shared[i] = a[i];
  for (unsigned i = lane; i < 128; i += 32) shared[256 + i] = b[i];
  __syncwarp();
  uint32_t a_fragment[4], b_twice[4];
  ptx::ldmatrix_x4(a_fragment, shared + lane % 16 * 16 + lane / 16 * 8);
  ptx::ldmatrix_x4_trans(b_twice, shared + 256 + lane % 16 * 8);
  const uint32_t b_fragment[2] = {b_twice[0], b_twice[1]};
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2];
  ptx::mma_m16n8k16<T>(sums, a_fragment, b_fragment);
  for (int i = 0; i < 4; ++i) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

template <class T>
void check_product() {
  std::vector<T> a(256), b(128);
  std::vector<float> expected(128);
  for (size_t i = 0; i < 256; ++i) a[i] = from_float<T>(static_cast<float>(i * 7 % 23) - 11.0f);
  for (size_t i = 0; i < 128; ++i) b[i] = from_float<T>(static_cast<float>(i * 5 % 17) * 0.25f);
  for (size_t i = 0; i < 128; ++i) expected[i] = static_cast<float>(i);
  DeviceArray<T> a_array(a), b_array(b);
  DeviceArray<float> d(expected);
  launch({dim3(1), dim3(32), 384 * sizeof(T)}, product_kernel<T>, a_array.data(), b_array.data(), d.data());
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      for (size_t k = 0; k < 16; ++k) {
        expected[row * 8 + column] += to_float(a[row * 16 + k]) * to_float(b[k * 8 + column]);
      }
    }
  }
  CHECK(d.holds(expected));
}

TEST_CASE("ldmatrix and mma give the product of two matrices, exactly where the values allow it") {
  check_product<__nv_bfloat16>();
  check_product<__half>();
}

// ---- 16-bit types -------------------------------------------------------------------------------------------------

TEST_CASE("bfloat16 rounds to nearest even and keeps NaN and infinity") {
  const auto rounded = [](float value) { return to_float(from_float<__nv_bfloat16>(value)); };
  CHECK(rounded(1.0f) == 1.0f);
  CHECK(rounded(1.0f + 0x1p-8f) == 1.0f);                // half way: to even
  CHECK(rounded(1.0f + 3 * 0x1p-8f) == 1.0f + 0x1p-6f);  // half way: to even
  CHECK(rounded(1.0f + 0x1p-8f + 0x1p-20f) == 1.0f + 0x1p-7f);
  CHECK(std::isnan(rounded(std::nanf(""))));
  CHECK(std::isinf(rounded(std::numeric_limits<float>::max())));
  CHECK(rounded(-std::numeric_limits<float>::infinity()) == -std::numeric_limits<float>::infinity());
  CHECK(rounded(0x1p-133f) == 0x1p-133f);  // subnormal
}

TEST_CASE("half: all 65536 values survive, and floats between them round to nearest even") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const __half value = __ushort_as_half(static_cast<unsigned short>(bits));
    const float wide = to_float(value);
    const unsigned short back = __half_as_ushort(from_float<__half>(wide));
    if (std::isnan(wide)) CHECK((back & 0x7FFF) > 0x7C00);
    else CHECK(back == bits);
    const float next = to_float(__ushort_as_half(static_cast<unsigned short>(bits + 1)));
    if (bits % 0x8000 >= 0x7BFF) continue;
    const float middle = (wide + next) / 2;  // exact in fp32
    CHECK(__half_as_ushort(from_float<__half>(middle)) == (bits % 2 == 0 ? bits : bits + 1));
    CHECK(__half_as_ushort(from_float<__half>(std::nextafter(middle, wide))) == bits);
    CHECK(__half_as_ushort(from_float<__half>(std::nextafter(middle, next))) == bits + 1);
  }
  CHECK(to_float(from_float<__half>(65519.0f)) == 65504.0f);
  CHECK(std::isinf(to_float(from_float<__half>(65520.0f))));
  CHECK(std::isnan(to_float(from_float<__half>(std::nanf("")))));
}

}  // namespace

}  // namespace llmb::cuda
#endif
