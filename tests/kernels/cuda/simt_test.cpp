// The host SIMT layer itself: what a grid computes, and that mistakes in kernels are seen.
#ifdef LLMB_SIMT
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <numeric>
#include <set>
#include <string>

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"
#include "tests/support/device_array.h"
#include "tests/support/fault_of.h"

namespace llmb::cuda {

namespace {

using test::DeviceArray;
using test::fault_of;

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

__global__ void waiting_kernel(int* out) {
  if (threadIdx.x < 48) ptx::bar_sync(3, 64);
  out[threadIdx.x] = 1;
}

TEST_CASE("threads that wait for ever are a deadlock, named by where they wait") {
  DeviceArray<int> out(64);
  const std::string fault = fault_of([&] { launch({dim3(1), dim3(64)}, waiting_kernel, out.data()); });
  CHECK(fault.find("deadlock: ") != std::string::npos);
  CHECK(fault.find("48 threads (first 0) wait at bar_sync") != std::string::npos);
}

// 32 producers announce, 32 consumers wait, as with mbarriers.
__global__ void named_barrier_kernel(float* out) {
  float* shared = dynamic_shared<float>();
  if (threadIdx.x < 32) {
    shared[threadIdx.x] = static_cast<float>(threadIdx.x);
    ptx::bar_arrive(1, 64);
  } else {
    ptx::bar_sync(1, 64);
    out[threadIdx.x - 32] = shared[63 - threadIdx.x];
  }
}

TEST_CASE("a named barrier joins those who arrive and those who wait") {
  test::for_each_order(10, [](uint64_t) {
    DeviceArray<float> out(32);
    launch({dim3(1), dim3(64), 128}, named_barrier_kernel, out.data());
    const std::vector<float> values = out.download();
    for (size_t i = 0; i < 32; ++i) CHECK(values[i] == static_cast<float>(31 - i));
  });
}

__global__ void trap_kernel(int* out) {
  if (threadIdx.x == 7) __trap();
  __syncthreads();
  out[threadIdx.x] = 1;
}

TEST_CASE("a trap ends the grid and unwinds the threads that wait") {
  DeviceArray<int> out(64);
  CHECK(fault_of([&] { launch({dim3(4), dim3(64)}, trap_kernel, out.data()); }).find("__trap") != std::string::npos);
}

__global__ void static_shared_kernel(float* out) {
  __shared__ float tile[32];
  LLMB_SIMT_INIT_SHARED(tile);
  out[blockIdx.x * 32 + threadIdx.x] = tile[threadIdx.x];
  __syncthreads();
  tile[threadIdx.x] = 1;
}

TEST_CASE("static and dynamic shared memory is NaN when a block starts, whatever the block before left") {
  DeviceArray<float> out(std::vector<float>(64, 0.0f));
  launch({dim3(2), dim3(32)}, static_shared_kernel, out.data());
  for (const float value : out.download()) CHECK(std::isnan(value));
}

__global__ void count_kernel(int* out) {
  const bool odd = threadIdx.x % 2 == 1;
  const int count = __syncthreads_count(odd);
  const int any = __syncthreads_or(threadIdx.x == 99);
  const int all = __syncthreads_and(threadIdx.x < 96);
  if (threadIdx.x == 5) out[0] = count, out[1] = any, out[2] = all;
}

TEST_CASE("barriers that vote") {
  test::for_each_order(5, [](uint64_t) {
    DeviceArray<int> out(3);
    launch({dim3(2), dim3(96)}, count_kernel, out.data());
    CHECK(out.holds(std::vector<int>{48, 0, 1}));
  });
}

// The last block to finish adds up what all have left.
__global__ void last_block_kernel(const int* in, int* partial, unsigned* num_done, int* total) {
  partial[blockIdx.x] = in[blockIdx.x];
  __threadfence();
  if (atomicInc(num_done, gridDim.x - 1) != gridDim.x - 1) return;
  int sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
  *total = sum;
}

TEST_CASE("a counter of finished blocks works in every order of blocks") {
  test::for_each_order(10, [](uint64_t) {
    DeviceArray<int> in(std::vector<int>{1, 20, 300, 4000, 50000});
    DeviceArray<int> partial(5), total(1);
    DeviceArray<unsigned> num_done(std::vector<unsigned>{0});
    launch({dim3(5), dim3(1)}, last_block_kernel, in.data(), partial.data(), num_done.data(), total.data());
    CHECK(total.holds(std::vector<int>{54321}));
    CHECK(num_done.holds(std::vector<unsigned>{0}));
  });
}

__global__ void order_kernel(int* out, int* next) { out[atomicAdd(next, 1)] = static_cast<int>(threadIdx.x); }

std::vector<int> order_of_threads(uint64_t seed) {
  ::llmb::simt::set_seed(seed);
  DeviceArray<int> out(256), next(std::vector<int>{0});
  launch({dim3(1), dim3(256)}, order_kernel, out.data(), next.data());
  return out.download();
}

TEST_CASE("a seed repeats an order, another gives another") {
  CHECK(order_of_threads(1) == order_of_threads(1));
  CHECK(order_of_threads(1) != order_of_threads(2));
}

TEST_CASE("launches that the device would refuse are refused") {
  DeviceArray<int> out(1);
  const auto code_of = [&](LaunchShape shape) {
    try {
      launch(shape, trap_kernel, out.data());
    } catch (const CudaError& error) {
      return error.code();
    }
    return cudaSuccess;
  };
  CHECK(code_of({dim3(1), dim3(1025)}) == cudaErrorInvalidConfiguration);
  CHECK(code_of({dim3(0), dim3(32)}) == cudaErrorInvalidConfiguration);
  CHECK(code_of({dim3(1, 65536), dim3(32)}) == cudaErrorInvalidConfiguration);
  CHECK(code_of({dim3(1), dim3(32), (227 << 10) + 1}) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
}

#ifdef __SANITIZE_ADDRESS__
__global__ void overrun_kernel(int where) { dynamic_shared<uint8_t>()[where] = 1; }

// In a child, since AddressSanitizer ends the program.
int exit_code_of_write(int where) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(3);
    launch({dim3(1), dim3(1), 1000}, overrun_kernel, where);
    cudaDeviceSynchronize();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

TEST_CASE("AddressSanitizer sees the first byte past dynamic shared memory") {
  CHECK(exit_code_of_write(999) == 0);
  CHECK(exit_code_of_write(1000) != 0);
}
#endif

TEST_CASE("after a fault the next kernel runs") {
  DeviceArray<int> out(64);
  CHECK(fault_of([&] { launch({dim3(1), dim3(64)}, divergent_kernel, out.data()); }) != "");
  launch({dim3(1), dim3(64)}, index_kernel, out.data(), 64);
  CHECK(out.download()[63] == 1063);
}

}  // namespace

}  // namespace llmb::cuda
#endif
