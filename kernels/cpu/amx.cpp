#include "kernels/cpu/amx.h"

#if LLMB_HAS_AMX_CODE && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/float_formats.h"
#include "kernels/cpu/linear_amx.h"
#endif

namespace llmb::cpu {

#if LLMB_HAS_AMX_CODE && defined(__linux__)

namespace {

bool processor_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25;
  if ((d & (kBf16 | kTiles | kInt8)) != (kBf16 | kTiles | kInt8)) return false;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & (1u << 27)) == 0) return false;  // the next instruction
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low >> 17 & 3) == 3;  // the system saves tiles
}

// Since tiles make a thread's state larger, Linux wants to be asked; the answer holds for all threads.
bool system_permits_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Whole numbers, whose sums are exact in either form.
bool first_product_is_right() {
  constexpr int64_t kRows = 19, kWords = 21, kColumns = 64, kStride = 2 * 64;
  alignas(64) uint8_t bytes[kRows * kStride] = {}, panel[kWords * kColumns * 4];
  alignas(64) uint16_t halves[kRows * kStride / 2] = {}, half_panel[kWords * kColumns * 2];
  const auto x = [](int64_t row, int64_t k) { return static_cast<int>((row * 7 + k * 3) % 11); };
  const auto weight = [](int64_t k, int64_t n) { return static_cast<int>((k * 5 + n) % 13) - 6; };
  const auto bf16 = [](int value) { return f32_to_bf16(static_cast<float>(value)); };
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < kWords * 4; ++k) bytes[row * kStride + k] = static_cast<uint8_t>(x(row, k));
    for (int64_t k = 0; k < kWords * 2; ++k) halves[row * kStride / 2 + k] = bf16(x(row, k));
  }
  for (int64_t n = 0; n < kColumns; ++n) {
    for (int64_t k = 0; k < kWords * 4; ++k)
      panel[(k / 4 * kColumns + n) * 4 + k % 4] = static_cast<uint8_t>(weight(k, n));
    for (int64_t k = 0; k < kWords * 2; ++k) half_panel[(k / 2 * kColumns + n) * 2 + k % 2] = bf16(weight(k, n));
  }
  int32_t byte_sums[kRows * kColumns];
  float half_sums[kRows * kColumns];
  amx_sums<AmxTiles, AmxNumbers::kBytes>({bytes, kStride, kRows, panel, kWords, 0, kColumns, nullptr, 0}, byte_sums);
  amx_sums<AmxTiles, AmxNumbers::kBf16>({reinterpret_cast<const uint8_t*>(halves), kStride, kRows,
                                         reinterpret_cast<const uint8_t*>(half_panel), kWords, 0, kColumns, nullptr, 0},
                                        half_sums);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t n = 0; n < kColumns; ++n) {
      int of_bytes = 0, of_halves = 0;
      for (int64_t k = 0; k < kWords * 4; ++k) {
        of_bytes += x(row, k) * weight(k, n);
        if (k < kWords * 2) of_halves += x(row, k) * weight(k, n);
      }
      if (byte_sums[row * kColumns + n] != of_bytes) return false;
      if (half_sums[row * kColumns + n] != static_cast<float>(of_halves)) return false;
    }
  }
  return true;
}

}  // namespace

bool has_amx() {
  static const bool has = processor_has_amx() && system_permits_tiles() && first_product_is_right();
  return has;
}

#else

bool has_amx() { return false; }

#endif

}  // namespace llmb::cpu
