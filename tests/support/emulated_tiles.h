// Stands in for AmxTiles (kernels/cpu/amx.h): the same instructions in plain words, as Intel's manual defines them,
// which fail where the processor would.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/float_formats.h"
#include "kernels/cpu/amx.h"

namespace llmb::test {

class EmulatedTiles {
 public:
  static void configure(const cpu::TileShapes& shapes) {
    LLMB_CHECK(shapes.palette == 1 && shapes.start_row == 0);
    for (int i = 0; i < 16; ++i) {
      LLMB_CHECK(i < 8 ? shapes.row_bytes[i] <= 64 && shapes.rows[i] <= 16
                       : shapes.row_bytes[i] == 0 && shapes.rows[i] == 0);
      LLMB_CHECK((shapes.row_bytes[i] == 0) == (shapes.rows[i] == 0));
    }
    state() = {};
    for (int i = 0; i < 8; ++i)
      state().tiles[i].rows = shapes.rows[i], state().tiles[i].row_bytes = shapes.row_bytes[i];
    state().is_configured = true;
  }
  static void release() {
    LLMB_CHECK(state().is_configured);
    state() = {};
  }
  static bool is_released() { return !state().is_configured; }
  template <int kTile>
  static void zero() {
    tile<kTile>().clear();
  }
  template <int kTile>
  static void load(const void* from, int64_t stride_bytes) {
    Tile& t = tile<kTile>();
    t.clear();
    for (int row = 0; row < t.rows; ++row)
      std::memcpy(t.bytes[row].data(), static_cast<const uint8_t*>(from) + row * stride_bytes, t.row_bytes);
  }
  template <int kTile>
  static void store(void* to, int64_t stride_bytes) {
    const Tile& t = tile<kTile>();
    for (int row = 0; row < t.rows; ++row)
      std::memcpy(static_cast<uint8_t*>(to) + row * stride_bytes, t.bytes[row].data(), t.row_bytes);
  }
  template <int kSum, int kA, int kB>
  static void dot_bytes() {
    check_shapes<kSum, kA, kB>();
    const Tile &a = tile<kA>(), &b = tile<kB>();
    Tile& sum = tile<kSum>();
    for (int m = 0; m < sum.rows; ++m) {
      for (int n = 0; n < sum.row_bytes / 4; ++n) {
        uint32_t total = sum.word<uint32_t>(m, n);
        for (int k = 0; k < a.row_bytes; ++k)
          total += static_cast<uint32_t>(int{a.bytes[m][k]} * int{static_cast<int8_t>(b.bytes[k / 4][4 * n + k % 4])});
        sum.set_word(m, n, total);
      }
    }
    for (int m = sum.rows; m < 16; ++m) sum.bytes[m] = {};
  }
  template <int kSum, int kA, int kB>
  static void dot_bf16() {
    check_shapes<kSum, kA, kB>();
    const Tile &a = tile<kA>(), &b = tile<kB>();
    Tile& sum = tile<kSum>();
    for (int m = 0; m < sum.rows; ++m) {
      for (int n = 0; n < sum.row_bytes / 4; ++n) {
        float chains[2] = {0, 0};
        for (int k = 0; k < a.row_bytes / 2; ++k)
          chains[k % 2] = flushed(std::fma(a.half(m, k), b.half(k / 2, 2 * n + k % 2), chains[k % 2]));
        sum.set_word(m, n, flushed(flushed(sum.word<float>(m, n)) + flushed(chains[0] + chains[1])));
      }
    }
    for (int m = sum.rows; m < 16; ++m) sum.bytes[m] = {};
  }

 private:
  struct Tile {
    int rows = 0, row_bytes = 0;
    std::array<std::array<uint8_t, 64>, 16> bytes = {};

    void clear() { bytes = {}; }
    template <typename T>
    T word(int row, int i) const {
      T value;
      std::memcpy(&value, bytes[row].data() + 4 * i, 4);
      return value;
    }
    template <typename T>
    void set_word(int row, int i, T value) {
      std::memcpy(bytes[row].data() + 4 * i, &value, 4);
    }
    float half(int row, int i) const {
      uint16_t bits;
      std::memcpy(&bits, bytes[row].data() + 2 * i, 2);
      return flushed(bf16_to_f32(bits));
    }
  };
  struct State {
    bool is_configured = false;
    std::array<Tile, 8> tiles = {};
  };

  // Subnormal numbers count as zero.
  static float flushed(float x) {
    return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
  }
  static State& state() {
    static thread_local State s;
    return s;
  }
  template <int kTile>
  static Tile& tile() {
    static_assert(kTile >= 0 && kTile < 8);
    LLMB_CHECK(state().is_configured && state().tiles[kTile].rows > 0);
    return state().tiles[kTile];
  }
  template <int kSum, int kA, int kB>
  static void check_shapes() {
    static_assert(kSum != kA && kSum != kB && kA != kB);
    const Tile &sum = tile<kSum>(), &a = tile<kA>(), &b = tile<kB>();
    LLMB_CHECK(sum.rows == a.rows && sum.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows);
  }
};

}  // namespace llmb::test
