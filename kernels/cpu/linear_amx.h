// Sums of products of a panel's columns with rows of x by tile products. `Tiles`: AmxTiles, or what stands in for them
// in tests. Private to kernels/cpu.
//
// The packed words of a panel are what the instructions take: 16 words of k by 16 features fill a tile. Sums of up to
// four tiles stay in them over all of k: 32 rows by 32 features, so that each tile that is loaded is used twice, or up
// to 16 rows by 64.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/linear_task.h"

namespace llmb::cpu {

enum class AmxNumbers { kBytes, kBf16 };  // unsigned x by signed weights, into int32; bf16, into fp32

struct AmxProduct {
  const uint8_t* x;  // of row 0; rows are readable up to a multiple of 64 bytes, and bf16 ones 0 there
  int64_t x_stride;  // bytes
  int64_t rows;
  const uint8_t* panel;              // [num_words][kPanelWidth] words
  int64_t num_words;                 // ceil(in_features / 4) of bytes, / 2 of bf16
  int64_t column_begin, column_end;  // multiples of 32
  const uint8_t* next;               // what this thread reads after the panel; null: unknown
  int64_t next_bytes;
};

constexpr int64_t kAmxWords = 16, kAmxColumns = 16, kAmxRows = 16;
constexpr int64_t kPanelWordBytes = PackedLinear::kPanelWidth * 4;
constexpr int64_t kStepBytes = kAmxWords * kPanelWordBytes;  // of a panel, for one product of each tile

// Asks for memory that is read soon, some lines a turn.
struct AmxFetch {
  const uint8_t* at = nullptr;
  int64_t lines = 0;
  void turn() {
    for (int64_t i = 0; i < lines; ++i, at += 64) __builtin_prefetch(at, 0, 2);
  }
};

// kRowTiles × kColumnTiles tiles of sums: tiles 0 to 3; of x: 4 and 5; of weights: 6 and 7.
template <typename Tiles, AmxNumbers kNumbers, int kRowTiles, int kColumnTiles, typename Sum>
void amx_block(const AmxProduct& p, int64_t row, int64_t column, const uint8_t* last_words, AmxFetch& fetch,
               Sum* sums) {
  static_assert(kRowTiles * kColumnTiles <= 4 && kRowTiles <= 2);
  const auto for_tiles = [&]<int... kTile>(std::integer_sequence<int, kTile...>, const auto& f) {
    (f(std::integral_constant<int, kTile>()), ...);
  };
  constexpr auto kSums = std::make_integer_sequence<int, kRowTiles * kColumnTiles>();
  for_tiles(kSums, [](auto tile) { Tiles::template zero<decltype(tile)::value>(); });
  const uint8_t* x = p.x + row * p.x_stride;
  for (int64_t word = 0; word < p.num_words; word += kAmxWords, x += 64) {
    fetch.turn();
    const uint8_t* words = word + kAmxWords <= p.num_words ? p.panel + word * kPanelWordBytes : last_words;
    for_tiles(std::make_integer_sequence<int, kRowTiles>(), [&](auto tile) {
      constexpr int kRow = decltype(tile)::value;
      Tiles::template load<4 + kRow>(x + kRow * kAmxRows * p.x_stride, p.x_stride);
    });
    for_tiles(kSums, [&](auto tile) {  // column after column
      constexpr int kRow = decltype(tile)::value % kRowTiles, kColumn = decltype(tile)::value / kRowTiles;
      if constexpr (kRow == 0)
        Tiles::template load<6 + kColumn % 2>(words + (column + kColumn * kAmxColumns) * 4, kPanelWordBytes);
      constexpr int kSum = kColumn * kRowTiles + kRow;
      if constexpr (kNumbers == AmxNumbers::kBytes) Tiles::template dot_bytes<kSum, 4 + kRow, 6 + kColumn % 2>();
      else Tiles::template dot_bf16<kSum, 4 + kRow, 6 + kColumn % 2>();
    });
  }
  for_tiles(kSums, [&](auto tile) {
    constexpr int kRow = decltype(tile)::value % kRowTiles, kColumn = decltype(tile)::value / kRowTiles;
    Sum* to = sums + (row + kRow * kAmxRows) * PackedLinear::kPanelWidth + column + kColumn * kAmxColumns;
    Tiles::template store<kColumn * kRowTiles + kRow>(to, kPanelWordBytes);
  });
}

inline AmxProduct amx_product(const LinearTask& t, int64_t num_words, int64_t x_stride) {
  return {t.x_bytes + t.row_begin * x_stride,
          x_stride,
          t.row_end - t.row_begin,
          t.weight->panel(t.panel),
          num_words,
          t.column_begin,
          t.column_end,
          t.next,
          t.weight->panel_bytes()};
}

// fp32 sums become outputs.
inline void write_sums(const LinearTask& t, const float* sums) {
  const int64_t n = t.weight->out_features(), first = t.panel * PackedLinear::kPanelWidth;
  const int64_t end = std::min(t.column_end, n - first);
  for (int64_t row = 0; row < t.row_end - t.row_begin; ++row, sums += PackedLinear::kPanelWidth) {
    float* out = t.out + row * t.out_stride;
    for (int64_t c = t.column_begin; c < end; ++c)
      out[c] = t.weight->bias() == nullptr ? sums[c] : sums[c] + t.weight->bias()[first + c];
  }
}

template <typename Tiles>
void amx_configure(int row_tiles, int column_tiles, int64_t rows) {
  TileShapes shapes;
  for (int row = 0; row < row_tiles; ++row) {
    const int64_t tile_rows = std::min(kAmxRows, rows - row * kAmxRows);
    shapes.set(4 + row, tile_rows);
    for (int column = 0; column < column_tiles; ++column) shapes.set(column * row_tiles + row, tile_rows);
  }
  shapes.set(6, kAmxWords);
  shapes.set(7, kAmxWords);
  Tiles::configure(shapes);
}

// sums: [rows][kPanelWidth], of which the product's columns are written.
template <typename Tiles, AmxNumbers kNumbers, typename Sum>
void amx_sums(const AmxProduct& p, Sum* sums) {
  static_assert(sizeof(Sum) == 4);
  // Behind the last words come zeros, not the next panel.
  alignas(64) uint8_t last_words[kStepBytes];
  const int64_t rest = p.num_words % kAmxWords, num_steps = (p.num_words + kAmxWords - 1) / kAmxWords;
  if (rest > 0) {
    std::memcpy(last_words, p.panel + (p.num_words - rest) * kPanelWordBytes,
                static_cast<size_t>(rest * kPanelWordBytes));
    std::memset(last_words + rest * kPanelWordBytes, 0, static_cast<size_t>((kAmxWords - rest) * kPanelWordBytes));
  }
  constexpr int64_t kPairRows = 2 * kAmxRows;
  AmxFetch fetch;
  if (p.rows <= kAmxRows) {  // bound by memory: the panel's own words, a little ahead
    fetch = {p.panel + 2 * kStepBytes, kStepBytes / 64};
  } else if (p.next != nullptr) {
    const int64_t turns = (p.rows + kPairRows - 1) / kPairRows * ((p.column_end - p.column_begin) / 32) * num_steps;
    fetch = {p.next, (p.next_bytes / 64 + turns - 1) / turns};
  }
  int64_t configured = 0;  // rows
  for (int64_t row = 0; row < p.rows; row += kPairRows) {
    const int64_t rows = std::min(kPairRows, p.rows - row);
    const bool is_narrow = rows <= kAmxRows, is_whole = p.column_end - p.column_begin == PackedLinear::kPanelWidth;
    if (rows != configured) amx_configure<Tiles>(is_narrow ? 1 : 2, is_narrow && is_whole ? 4 : 2, rows);
    configured = rows;
    if (is_narrow && is_whole) {
      amx_block<Tiles, kNumbers, 1, 4>(p, row, p.column_begin, last_words, fetch, sums);
      continue;
    }
    for (int64_t column = p.column_begin; column < p.column_end; column += 32) {
      if (is_narrow) amx_block<Tiles, kNumbers, 1, 2>(p, row, column, last_words, fetch, sums);
      else amx_block<Tiles, kNumbers, 2, 2>(p, row, column, last_words, fetch, sums);
    }
  }
  if (configured > 0) Tiles::release();
}

}  // namespace llmb::cpu
