// mma_sp_m16n8k32 of the host layer beside the plain product, its operands laid out as the PTX ISA says.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx_sparse.h"
#include "tests/support/device_array.h"
#include "tests/support/fault_of.h"

namespace llmb::cuda {
namespace {

using test::DeviceArray;

struct Lane {
  uint32_t a[4], b[4], places;
  float d[4];
};

template <class T, int kSelector>
__global__ void product_kernel(Lane* lanes) {
  Lane& lane = lanes[threadIdx.x];
  ptx::mma_sp_m16n8k32<T, kSelector>(lane.d, lane.a, lane.b, lane.places);
}

template <class T>
uint32_t bits_of(float x) {
  const T value = from_float<T>(x);
  uint16_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Small whole numbers, so that every sum is exact.
struct Problem {
  Problem() : a(16 * 32), b(32 * 8), first(16 * 8), second(16 * 8) {
    std::mt19937 rng(7);
    for (float& x : b) x = static_cast<float>(rng() % 17) - 8;
    for (int i = 0; i < 16 * 8; ++i) {
      do first[i] = static_cast<int>(rng() % 4), second[i] = static_cast<int>(rng() % 4);
      while (first[i] >= second[i]);
      for (const int place : {first[i], second[i]}) a[i * 4 + place] = static_cast<float>(rng() % 9) - 4;
    }
  }

  // Lanes whose places are not read get the bits of none.
  template <class T>
  std::vector<Lane> lanes(int selector) const {
    std::vector<Lane> out(32);
    for (int l = 0; l < 32; ++l) {
      const int group = l / 4, in_group = l % 4;
      Lane& lane = out[l];
      lane = {};
      lane.places = 0xffffffffu;
      for (int i = 0; i < 8; ++i) {  // a0 … a7
        const int row = i % 4 < 2 ? group : group + 8, four = i < 4 ? in_group : 4 + in_group;
        const int place = i % 2 == 0 ? first[row * 8 + four] : second[row * 8 + four];
        lane.a[i / 2] |= bits_of<T>(a[row * 32 + four * 4 + place]) << (16 * (i % 2));
      }
      for (int i = 0; i < 8; ++i)  // b0 … b7
        lane.b[i / 2] |= bits_of<T>(b[(in_group * 2 + i % 2 + i / 2 * 8) * 8 + group]) << (16 * (i % 2));
      for (int i = 0; i < 4; ++i) lane.d[i] = static_cast<float>(l * 4 + i);
      if (in_group / 2 != selector) continue;
      lane.places = 0;
      for (int i = 0; i < 8; ++i) {  // bits 4 i … 4 i + 3
        const int row = i < 4 ? group : group + 8, four = in_group % 2 * 4 + i % 4;
        lane.places |= static_cast<uint32_t>(first[row * 8 + four] | second[row * 8 + four] << 2) << (4 * i);
      }
    }
    return out;
  }

  float exact(int row, int column) const {
    float sum = 0;
    for (int k = 0; k < 32; ++k) sum += a[row * 32 + k] * b[k * 8 + column];
    return sum;
  }

  std::vector<float> a, b;
  std::vector<int> first, second;  // of every four of a row
};

template <class T, int kSelector>
void check_product() {
  const Problem p;
  const std::vector<Lane> lanes = p.lanes<T>(kSelector);
  DeviceArray<Lane> on_device(lanes);
  launch({dim3(1), dim3(32)}, product_kernel<T, kSelector>, on_device.data());
  const std::vector<Lane> result = on_device.download();
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) CHECK(result[l].d[i] == lanes[l].d[i] + p.exact(l / 4 + i / 2 * 8, l % 4 * 2 + i % 2));
}

TEST_CASE_TEMPLATE("sparse products of either pair of lanes' places", T, __nv_bfloat16, __half) {
  check_product<T, 0>();
  check_product<T, 1>();
}

TEST_CASE("places that are equal or not in order are a fault") {
  for (const uint32_t places : {0u, 5u, 10u, 15u, 1u, 2u, 3u, 6u, 7u, 11u}) {
    CAPTURE(places);
    std::vector<Lane> lanes = Problem().lanes<__half>(1);
    lanes[4 * 3 + 2].places = (lanes[4 * 3 + 2].places & ~0xf00u) | places << 8;
    DeviceArray<Lane> on_device(lanes);
    const std::string fault = test::fault_of([&] {
      launch({dim3(1), dim3(32)}, product_kernel<__half, 1>, on_device.data());
    });
    CHECK(fault.find("the places of two numbers are not in order") != std::string::npos);
  }
}

}  // namespace
}  // namespace llmb::cuda
