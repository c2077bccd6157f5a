// out[w][r] = rows[r][w], in tiles of 4 × 4 words that are transposed in registers of 16 bytes, which every target has:
// memory binds it. A row gives four cache lines at a time, so that 64 of them side by side are still read as streams,
// and the 16 KiB that they become stay in the first-level cache until they are complete.
#include "kernels/cpu/interleave.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/tuning.h"

namespace llmb::cpu {

namespace {

constexpr int64_t kLineBytes = 64;

using Words = uint32_t __attribute__((vector_size(16)));

Words load(const uint8_t* from) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}

void transpose_4x4(const uint8_t* const* rows, int64_t word, uint32_t* out) {
  const Words a = load(rows[0] + word * 4), b = load(rows[1] + word * 4);
  const Words c = load(rows[2] + word * 4), d = load(rows[3] + word * 4);
  const Words ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Words cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Words columns[4] = {
      __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5), __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
      __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5), __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) std::memcpy(out + i * kInterleavedRows, &columns[i], sizeof(Words));
}

}  // namespace

void interleave_words(const uint8_t* const* rows, int64_t begin, int64_t end, uint32_t* out) {
  for (int64_t block = begin; block < end; block += kInterleaveBlockWords) {
    const int64_t block_end = std::min(end, block + kInterleaveBlockWords);
    const int64_t tiles_end = block + (block_end - block) / 4 * 4;
    for (int64_t r = 0; r < kInterleavedRows; r += 4) {
      if (block_end + kInterleaveBlockWords <= end)
        for (int64_t i = 0; i < 4; ++i)
          for (int64_t line = 0; line < kInterleaveBlockWords * 4; line += kLineBytes)
            __builtin_prefetch(rows[r + i] + block_end * 4 + line, 0, 2);
      uint32_t* to = out + (block - begin) * kInterleavedRows + r;
      for (int64_t word = block; word < tiles_end; word += 4, to += 4 * kInterleavedRows)
        transpose_4x4(rows + r, word, to);
      for (int64_t word = tiles_end; word < block_end; ++word, to += kInterleavedRows)
        for (int64_t i = 0; i < 4; ++i) std::memcpy(to + i, rows[r + i] + word * 4, 4);
    }
  }
}

}  // namespace llmb::cpu
