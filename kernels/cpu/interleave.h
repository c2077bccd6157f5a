// Packs the rows of a panel word by word, side by side.
#pragma once

#include <cstdint>

namespace llmb::cpu {

constexpr int64_t kInterleavedRows = 64;

// out[w][r] = word begin + w of row r. Rows may begin at any address. Thread-safe.
void interleave_words(const uint8_t* const* rows,  // [kInterleavedRows]  each of at least end words of 32 bits
                      int64_t begin, int64_t end,
                      uint32_t* out);  // [end - begin, kInterleavedRows]

}  // namespace llmb::cpu
