// Tile products of x86 processors with AMX (Intel, from 2023 on): eight tiles of 16 rows by 64 bytes, and instructions
// that multiply two of them and add to a third.
#pragma once

#include <cstdint>

#include "hwy/detect_compiler_arch.h"

#if HWY_ARCH_X86_64
#define LLMB_HAS_AMX_CODE 1
#else
#define LLMB_HAS_AMX_CODE 0
#endif

namespace llmb::cpu {

// Whether tiles can be used: the processor has them for bf16 and int8, the system lets this process, and a first
// product came out right. Found out once.
bool has_amx();

// Shapes of the tiles, as the processor reads them.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t num_rows) {
    row_bytes[tile] = 64;
    rows[tile] = static_cast<uint8_t>(num_rows);
  }
};

#if LLMB_HAS_AMX_CODE

// The processor's tiles. What stands in for them in tests: tests/support/emulated_tiles.h. As text: compilers' own
// functions take the number of a tile as a literal only.
struct AmxTiles {
  static void configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
  static void release() { asm volatile("tilerelease"); }
  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  static void load(const void* from, int64_t stride_bytes) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride_bytes) : "memory");
  }
  template <int kTile>
  static void store(void* to, int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(stride_bytes) : "memory");
  }
  // sum[m][n] += a[m][4 k + i] · b[k][4 n + i] over k and i < 4: unsigned by signed bytes, in 32 bits.
  template <int kSum, int kA, int kB>
  static void dot_bytes() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }
  // sum[m][n] += a[m][2 k + i] · b[k][2 n + i] over k and i < 2, of bf16: one chain of multiply-adds over k for each i,
  // and the sum of the two is added.
  template <int kSum, int kA, int kB>
  static void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }
};

#endif

}  // namespace llmb::cpu
