// The host SIMT layer itself: what a grid computes, and that mistakes in kernels are seen.
#ifdef LLMB_SIMT
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <string>

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"
#include "tests/support/device_array.h"

namespace llmb::cuda {

namespace {

using test::DeviceArray;

// What the runtime throws while `run` waits for its kernels; "" where nothing.
template <class Run>
std::string fault_of(Run&& run) {
  try {
    run();
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  } catch (const ::llmb::simt::Fault& fault) {
    return fault.what();
  }
  return "";
}

__global__ void index_kernel(int* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = i + static_cast<int>(1000 * gridDim.x);
}

TEST_CASE("every thread of every block runs once, in each order") {
  test::for_each_order(3, [](uint64_t) {
    DeviceArray<int> out(70);
    launch({dim3(3), dim3(32)}, index_kernel, out.data(), 70);
    const std::vector<int> values = out.download();
    for (int i = 0; i < 70; ++i) CHECK(values[static_cast<size_t>(i)] == 3000 + i);
    CHECK(out.check_guards());
  });
}

__global__ void position_kernel(uint3* out) {
  const unsigned i = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (i == 5) out[block] = {threadIdx.x, threadIdx.y, blockIdx.z};
}

TEST_CASE("blocks and grids have three dimensions") {
  DeviceArray<uint3> out(2 * 3 * 2);
  launch({dim3(2, 3, 2), dim3(2, 2, 2)}, position_kernel, out.data());
  const std::vector<uint3> values = out.download();
  for (unsigned block = 0; block < 12; ++block) {
    CHECK(values[block].x == 1);
    CHECK(values[block].y == 0);
    CHECK(values[block].z == block / 6);
  }
}

// Reverses a block's values through shared memory.
template <bool kWithBarrier>
__global__ void reverse_kernel(float* values) {
  float* shared = dynamic_shared<float>();
  shared[threadIdx.x] = values[threadIdx.x];
  if (kWithBarrier) __syncthreads();
  values[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

template <bool kWithBarrier>
bool reverses(uint64_t seed) {
  ::llmb::simt::set_seed(seed);
  std::vector<float> expected(96);
  std::iota(expected.begin(), expected.end(), 1.0f);
  DeviceArray<float> values(expected);
  launch({dim3(1), dim3(96), 96 * sizeof(float)}, reverse_kernel<kWithBarrier>, values.data());
  std::reverse(expected.begin(), expected.end());
  return values.holds(expected);
}

TEST_CASE("a barrier makes what other threads wrote visible") {
  for (uint64_t seed = 0; seed < 5; ++seed) CHECK(reverses<true>(seed));
}

TEST_CASE("a missing barrier shows under every seed that was tried, since unwritten shared memory is NaN") {
  for (uint64_t seed = 0; seed < 5; ++seed) CHECK_FALSE(reverses<false>(seed));
}

__global__ void divergent_kernel(int* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 1;
}

__global__ void early_exit_kernel(int* out) {
  if (threadIdx.x == 40) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

TEST_CASE("a divergent barrier names kernel, block, thread and lines") {
  DeviceArray<int> out(64);
  const std::string fault = fault_of([&] { launch({dim3(1), dim3(64)}, divergent_kernel, out.data()); });
  CHECK(fault.find("divergent_kernel") != std::string::npos);
  CHECK(fault.find("block (0,0,0)") != std::string::npos);
  CHECK(fault.find("divergent __syncthreads") != std::string::npos);
  CHECK(fault.find("simt_test.cpp:") != std::string::npos);
}

TEST_CASE("a thread that leaves before a barrier is a fault") {
  DeviceArray<int> out(64);
  const std::string fault = fault_of([&] { launch({dim3(1), dim3(64)}, early_exit_kernel, out.data()); });
  CHECK(fault.find("__syncthreads") != std::string::npos);
  CHECK(fault.find("have left the kernel") != std::string::npos);
}

TEST_CASE("after a fault the next kernel runs") {
  DeviceArray<int> out(64);
  CHECK(fault_of([&] { launch({dim3(1), dim3(64)}, divergent_kernel, out.data()); }) != "");
  launch({dim3(1), dim3(64)}, index_kernel, out.data(), 64);
  CHECK(out.download()[63] == 1063);
}

}  // namespace

}  // namespace llmb::cuda
#endif
