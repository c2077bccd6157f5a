// Every byte of int8 and e4m3 as every type, at every place of a word, and floats as e4m3.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/scaled_kv.h"
#include "kernels/cuda/widen_codes.h"
#include "tests/support/device_array.h"
#include "tests/support/kv_bytes.h"

namespace llmb::cuda {
namespace {

enum class Way { kDevices, kBits, kInstruction };  // kDevices: as kernels do it on this device

template <class T, class Code, Way kWay>
__global__ void widen_kernel(const uint32_t* words, EvenOdd* numbers) {
  const uint32_t word = words[threadIdx.x];
  if constexpr (kWay == Way::kDevices) numbers[threadIdx.x] = widen_four<T, Code>(word);
  else numbers[threadIdx.x] = widen_four<T, Code, kWay == Way::kInstruction>(word);
}
template <class Code>
__global__ void to_float_kernel(const Code* codes, float* numbers) {
  numbers[threadIdx.x] = to_float(codes[threadIdx.x]);
}
__global__ void to_e4m3_kernel(const float* x, E4m3* codes) { codes[threadIdx.x] = to_e4m3(x[threadIdx.x]); }

template <class Code>
float value_of(uint32_t byte) {
  return test::byte_value(kCodeOf<Code> == KvCode::kInt8 ? DType::kI8 : DType::kF8, static_cast<uint8_t>(byte));
}

template <class T>
float number_at(uint32_t word, int half) {
  const auto bits = static_cast<uint16_t>(word >> 16 * half);
  return std::is_same_v<T, __half> ? f16_to_f32(bits) : bf16_to_f32(bits);
}

template <class T, class Code, Way kWay = Way::kDevices>
void check_widen() {
  std::vector<uint32_t> words;
  for (uint32_t byte = 0; byte < 256; ++byte)
    words.push_back(byte | (byte + 1) % 256 << 8 | (byte + 77) % 256 << 16 | (255 - byte) << 24);
  const test::DeviceArray<uint32_t> in(words);
  test::DeviceArray<EvenOdd> out(words.size());
  launch({dim3(1), dim3(256)}, widen_kernel<T, Code, kWay>, in.data(), out.data());
  const std::vector<EvenOdd> numbers = out.download();
  for (size_t i = 0; i < words.size(); ++i) {
    for (int byte = 0; byte < 4; ++byte) {
      const float expected = value_of<Code>(words[i] >> 8 * byte & 0xff);
      const float actual = number_at<T>(byte % 2 == 0 ? numbers[i].even : numbers[i].odd, byte / 2);
      CAPTURE(words[i]);
      if (std::isnan(expected)) continue;
      REQUIRE(actual == expected);
      REQUIRE(std::signbit(actual) == std::signbit(expected));
    }
  }
}

TEST_CASE_TEMPLATE("bytes as 16-bit numbers", T, __half, __nv_bfloat16) {
  check_widen<T, int8_t>();
  check_widen<T, E4m3>();
  check_widen<T, E4m3, Way::kBits>();
#ifdef LLMB_SIMT
  check_widen<T, E4m3, Way::kInstruction>();
#endif
}

TEST_CASE_TEMPLATE("bytes as floats", Code, int8_t, E4m3) {
  std::vector<uint8_t> bytes(256);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  const test::DeviceArray<uint8_t> in(bytes);
  test::DeviceArray<float> out(bytes.size());
  launch({dim3(1), dim3(256)}, to_float_kernel<Code>, reinterpret_cast<const Code*>(in.data()), out.data());
  const std::vector<float> numbers = out.download();
  for (uint32_t byte = 0; byte < 256; ++byte)
    if (const float expected = value_of<Code>(byte); !std::isnan(expected)) REQUIRE(numbers[byte] == expected);
}

// Every e4m3 number, halfway between neighbours, and a bit to either side.
TEST_CASE("floats as e4m3") {
  std::vector<float> x;
  for (int byte = 0; byte < 0x7f; ++byte) {
    const float number = fp8_e4m3_to_f32(static_cast<uint8_t>(byte));
    const float next = byte == 0x7e ? 463.0f : fp8_e4m3_to_f32(static_cast<uint8_t>(byte + 1));
    const float middle = byte == 0x7e ? 463.0f : (number + next) / 2;
    for (const float value : {number, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 463.5f)})
      x.push_back(value), x.push_back(-value);
  }
  for (size_t begin = 0; begin < x.size(); begin += 256) {
    const std::vector<float> part(x.begin() + static_cast<int64_t>(begin),
                                  x.begin() + static_cast<int64_t>(std::min(begin + 256, x.size())));
    const test::DeviceArray<float> in(part);
    test::DeviceArray<E4m3> out(part.size());
    launch({dim3(1), dim3(static_cast<unsigned>(part.size()))}, to_e4m3_kernel, in.data(), out.data());
    const std::vector<E4m3> codes = out.download();
    for (size_t i = 0; i < part.size(); ++i) {
      CAPTURE(part[i]);
      REQUIRE(codes[i].bits == test::round_to_fp8(part[i]));
    }
  }
}

}  // namespace
}  // namespace llmb::cuda
