// The host SIMT layer's Hopper part: mbarriers, tensor copies, warpgroup products, and what they must notice.
#ifdef LLMB_SIMT
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/tensor_map.h"
#include "tests/support/device_array.h"
#include "tests/support/fault_of.h"

namespace llmb::cuda {

namespace {

using test::DeviceArray;
using test::fault_of;
using Bf16 = __nv_bfloat16;

std::vector<Bf16> numbers(size_t count, int period) {
  std::vector<Bf16> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Bf16(static_cast<float>(static_cast<int>(i) % period - period / 2));
  return values;
}

// ---- mbarriers ----------------------------------------------------------------------------------------------------

// 32 threads fill a buffer, 32 read it, several rounds: two barriers as in a pipeline of one stage.
__global__ void hand_over_kernel(int* out, int num_rounds) {
  auto* barriers = dynamic_shared<uint64_t>();  // full, empty
  int* buffer = reinterpret_cast<int*>(barriers + 2);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&barriers[0], 32);
    ptx::mbarrier_init(&barriers[1], 32);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  for (int round = 0; round < num_rounds; ++round) {
    const uint32_t parity = static_cast<uint32_t>(round % 2);
    if (threadIdx.x < 32) {
      ptx::mbarrier_wait(&barriers[1], parity ^ 1);
      buffer[lane] = round * 100 + lane;
      ptx::mbarrier_arrive(&barriers[0]);
    } else {
      ptx::mbarrier_wait(&barriers[0], parity);
      out[round * 32 + lane] = buffer[31 - lane];
      ptx::mbarrier_arrive(&barriers[1]);
    }
  }
}

TEST_CASE("two mbarriers hand a buffer back and forth") {
  test::for_each_order(10, [](uint64_t) {
    DeviceArray<int> out(5 * 32);
    launch({dim3(1), dim3(64), 16 + 128}, hand_over_kernel, out.data(), 5);
    const std::vector<int> values = out.download();
    for (int i = 0; i < 5 * 32; ++i) CHECK(values[static_cast<size_t>(i)] == i / 32 * 100 + 31 - i % 32);
  });
}

__global__ void never_kernel() {
  auto* barrier = dynamic_shared<uint64_t>();
  ptx::mbarrier_init(barrier, 2);
  ptx::mbarrier_arrive(barrier);
  ptx::mbarrier_wait(barrier, 0);
}

__global__ void uninitialised_kernel() { ptx::mbarrier_arrive(dynamic_shared<uint64_t>()); }

TEST_CASE("an mbarrier that nobody completes is a deadlock, one that nobody initialised a fault") {
  CHECK(fault_of([] { launch({dim3(1), dim3(1), 8}, never_kernel); }).find("mbarrier_wait") != std::string::npos);
  CHECK(fault_of([] {
          launch({dim3(1), dim3(1), 8}, uninitialised_kernel);
        }).find("not initialised") != std::string::npos);
}

// ---- tensor copies ------------------------------------------------------------------------------------------------

constexpr uint32_t kBarrierOffset = 16 << 10;  // behind the tiles

// One box of 8 rows of 64 elements; out holds shared memory as it lies. early: what was there before the wait.
__global__ void box_kernel(const __grid_constant__ CUtensorMap map, int column, int row, Bf16* out, Bf16* early) {
  auto* tile = dynamic_shared<Bf16>();
  auto* barrier = reinterpret_cast<uint64_t*>(dynamic_shared<char>() + kBarrierOffset);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
    ptx::mbarrier_arrive_expect_tx(barrier, 1024);
    ptx::tma_load_2d(tile, &map, barrier, column, row);
    *early = tile[0];
  }
  __syncthreads();
  ptx::mbarrier_wait(barrier, 0);
  for (unsigned i = threadIdx.x; i < 512; i += blockDim.x) out[i] = tile[i];
}

TEST_CASE("a box arrives swizzled at its mbarrier's wait, zeros where it lies outside the tensor") {
  const std::vector<Bf16> values = numbers(20 * 100, 251);
  DeviceArray<Bf16> tensor(values), out(512), early(1);
  // 20 rows of 96 elements, 100 apart in memory... 200 bytes are no multiple of 16, so the driver refuses.
  CHECK_THROWS_AS(make_tensor_map(tensor.data(), {{96, 20}, {200}, {64, 8}}), CudaError);
  const CUtensorMap map = make_tensor_map(tensor.data(), {{96, 12}, {320}, {64, 8}});
  for (const auto& [column, row] : {std::pair(0, 0), std::pair(32, 3), std::pair(64, 8), std::pair(-8, -2)}) {
    launch({dim3(1), dim3(32), kBarrierOffset + 8}, box_kernel, map, column, row, out.data(), early.data());
    CHECK(std::isnan(early.download_floats()[0]));
    const std::vector<float> tile = out.download_floats();
    for (int r = 0; r < 8; ++r) {
      for (int c = 0; c < 64; ++c) {
        const int x = column + c, y = row + r;
        const bool inside = x >= 0 && x < 96 && y >= 0 && y < 12;
        const float expected = inside ? to_float(values[static_cast<size_t>(y * 160 + x)]) : 0.0f;
        const int place = r * 64 + ((c / 8) ^ r) * 8 + c % 8;  // 16-byte pieces exchanged by the row's number
        CHECK(tile[static_cast<size_t>(place)] == expected);
      }
    }
  }
}

// A row of 64 elements, without the swizzle.
__global__ void row_kernel(const __grid_constant__ CUtensorMap map, Bf16* out, bool wait) {
  auto* tile = dynamic_shared<Bf16>();
  auto* barrier = reinterpret_cast<uint64_t*>(tile + 64);
  ptx::mbarrier_init(barrier, 1);
  ptx::mbarrier_arrive_expect_tx(barrier, 128);
  ptx::tma_load_2d(tile, &map, barrier, 0, 0);
  if (!wait) return;
  ptx::mbarrier_wait(barrier, 0);
  for (int i = 0; i < 64; ++i) out[i] = tile[i];
}

TEST_CASE("without the swizzle a box arrives as it is; a block that ends without waiting for it is a fault") {
  const std::vector<Bf16> values = numbers(64, 64);
  DeviceArray<Bf16> in(values), out(64);
  const CUtensorMap map = make_tensor_map(in.data(), {{64, 1}, {128}, {64, 1}, /*swizzle=*/false});
  launch({dim3(1), dim3(1), 136}, row_kernel, map, out.data(), true);
  CHECK(out.holds(values));
  CHECK(fault_of([&] {
          launch({dim3(1), dim3(1), 136}, row_kernel, map, out.data(), false);
        }).find("before its tensor copies were waited for") != std::string::npos);
}

// ---- a product of two matrices, as a Hopper kernel does it --------------------------------------------------------

enum class Mistake { kNone, kNoWait, kNoFence, kReleasedEarly };

// D [64, N] = A [64, K] * B. A is [64, K] in memory; B is [N, K], or [K, N] where kMnMajor. A warp of its own brings
// tiles of 64 values of k into two stages.
template <int kN, bool kMnMajor, bool kAInRegisters, Mistake kMistake>
__global__ void __launch_bounds__(256, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, int num_tiles,
                float* d) {
  constexpr uint32_t kABytes = 64 * 128, kBBytes = kN * 128, kStage = kABytes + kBBytes;
  char* const stages = dynamic_shared<char>();
  auto* const full = reinterpret_cast<uint64_t*>(stages + 2 * kStage);
  uint64_t* const empty = full + 2;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      ptx::mbarrier_init(&full[stage], 1);
      ptx::mbarrier_init(&empty[stage], 128);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    ptx::registers_decrease<40>();
    if (threadIdx.x != 128) return;
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int stage = tile % 2;
      ptx::mbarrier_wait(&empty[stage], static_cast<uint32_t>(tile / 2 % 2) ^ 1);
      ptx::mbarrier_arrive_expect_tx(&full[stage], kStage);
      char* const to = stages + stage * static_cast<int>(kStage);
      ptx::tma_load_2d(to, &a_map, &full[stage], tile * 64, 0);
      if constexpr (!kMnMajor) {
        ptx::tma_load_2d(to + kABytes, &b_map, &full[stage], tile * 64, 0);
      } else {  // 64 columns at a time: [64 of k][64 of n]
        for (int n = 0; n < kN; n += 64) {
          ptx::tma_load_2d(to + kABytes + n * 128, &b_map, &full[stage], n, tile * 64);
        }
      }
    }
    return;
  }
  ptx::registers_increase<232>();
  float sums[kN / 2];
  for (float& sum : sums) sum = 0;
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int stage = tile % 2;
    ptx::mbarrier_wait(&full[stage], static_cast<uint32_t>(tile / 2 % 2));
    const char* const a = stages + stage * static_cast<int>(kStage);
    const char* const b = a + kABytes;
    uint32_t a_registers[4][4];
    if constexpr (kAInRegisters) {
      for (unsigned k = 0; k < 4; ++k) {
        const unsigned row = threadIdx.x / 32 * 16 + threadIdx.x % 16;
        const unsigned piece = k * 2 + threadIdx.x % 32 / 16;
        ptx::ldmatrix_x4(a_registers[k], a + row * 128 + (piece ^ row % 8) * 16);
      }
    }
    if constexpr (kMistake != Mistake::kNoFence) ptx::wgmma_fence();
    if constexpr (kMistake == Mistake::kReleasedEarly) ptx::mbarrier_arrive(&empty[stage]);
    for (unsigned k = 0; k < 4; ++k) {
      const uint64_t b_descriptor =
          kMnMajor ? ptx::wgmma_descriptor(b + k * 2048, 64 * 128, 1024) : ptx::wgmma_descriptor(b + k * 32, 16, 1024);
      if constexpr (kAInRegisters) {
        ptx::wgmma<Bf16, kN, kMnMajor>(sums, a_registers[k], b_descriptor, tile + static_cast<int>(k) > 0);
      } else {
        ptx::wgmma<Bf16, kN, false, kMnMajor>(sums, ptx::wgmma_descriptor(a + k * 32, 16, 1024), b_descriptor,
                                              tile + static_cast<int>(k) > 0);
      }
    }
    ptx::wgmma_commit();
    if constexpr (kMistake == Mistake::kNoWait) continue;
    ptx::wgmma_wait<0>();
    if constexpr (kMistake != Mistake::kReleasedEarly) ptx::mbarrier_arrive(&empty[stage]);
  }
  for (unsigned i = 0; i < kN / 2; ++i) {
    const unsigned row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
    d[row * kN + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = sums[i];
  }
}

template <int kN, bool kMnMajor, bool kAInRegisters, Mistake kMistake = Mistake::kNone>
bool product_is_right(int num_tiles) {
  const size_t depth = static_cast<size_t>(num_tiles) * 64;
  const std::vector<Bf16> a = numbers(64 * depth, 7), b = numbers(kN * depth, 11);
  DeviceArray<Bf16> a_array(a), b_array(b);
  DeviceArray<float> d(64 * kN);
  const CUtensorMap a_map = make_tensor_map(a_array.data(), {{depth, 64}, {depth * 2}, {64, 64}});
  const CUtensorMap b_map = kMnMajor ? make_tensor_map(b_array.data(), {{kN, depth}, {kN * 2}, {64, 64}})
                                     : make_tensor_map(b_array.data(), {{depth, kN}, {depth * 2}, {64, kN}});
  const size_t shared = 2 * (64 + kN) * 128 + 32;
  launch({dim3(1), dim3(256), shared}, gemm_kernel<kN, kMnMajor, kAInRegisters, kMistake>, a_map, b_map, num_tiles,
         d.data());
  std::vector<float> expected(64 * kN, 0.0f);
  for (size_t row = 0; row < 64; ++row) {
    for (size_t column = 0; column < kN; ++column) {
      for (size_t k = 0; k < depth; ++k) {
        expected[row * kN + column] +=
            to_float(a[row * depth + k]) * to_float(kMnMajor ? b[k * kN + column] : b[column * depth + k]);
      }
    }
  }
  return d.holds(expected) && d.check_guards();
}

TEST_CASE("tensor copies and wgmma make a right product, B in either order, A from shared memory or registers") {
  test::for_each_order(4, [](uint64_t) {
    CHECK(product_is_right<64, false, false>(3));
    CHECK(product_is_right<128, true, false>(3));
    CHECK(product_is_right<16, false, true>(2));
    CHECK(product_is_right<192, true, true>(3));
  });
}

TEST_CASE("a stage that is given back before wgmma has read it shows under some seed") {
  int num_wrong = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    ::llmb::simt::set_seed(seed);
    num_wrong += !product_is_right<64, false, false, Mistake::kReleasedEarly>(6);
  }
  CHECK(num_wrong > 0);
}

TEST_CASE("wgmma without fence or wait is a fault") {
  const std::string no_fence = fault_of([] { product_is_right<64, false, false, Mistake::kNoFence>(1); });
  CHECK(no_fence.find("without a wgmma_fence") != std::string::npos);
  const std::string no_wait = fault_of([] { product_is_right<64, false, false, Mistake::kNoWait>(1); });
  CHECK(no_wait.find("before a wgmma was waited for") != std::string::npos);
}

}  // namespace

}  // namespace llmb::cuda
#endif
