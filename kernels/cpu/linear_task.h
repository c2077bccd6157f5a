// Shared by linear and its kernels: one task of a product, and the order in which weights are fetched ahead. Private
// to kernels/cpu.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/lora.h"
#include "kernels/cpu/tuning.h"

namespace llmb::cpu {

// Memory that a task fetches beside weights, for what follows it: the ranges from `at` to `last`, which is endless.
struct FetchList {
  const ByteRange *at, *last;
  int64_t bytes;  // of all but the last
};

// Rows [row_begin, row_end) times the output features [column_begin, column_end) of a panel.
struct LinearTask {
  const PackedLinear* weight;
  const float* x;          // [rows, in_features]  float, int4 and block weights
  const uint8_t* x_bytes;  // [rows] of quantized_row_bytes: weights with has_int8_rows(); of rounded_row_bytes: those
                           // that round x; of block_row_bytes (block_row.h): those for which has_int8_x()
  const float* x_scales;   // [rows]  weights with has_int8_rows()
  float* out;              // [row_end - row_begin][out_stride]  from row_begin and the panel's first column on
  int64_t out_stride;
  int64_t panel;
  int64_t column_begin, column_end;  // multiples of 16 within the panel
  int64_t row_begin, row_end;        // at most kLinearTaskRows
  const uint8_t* next;               // the panel that this thread most likely takes next; null: unknown
  FetchList* also = nullptr;         // null, or what the task takes from as it goes
};

void float_linear_task(const LinearTask& task);
void int8_linear_task(const LinearTask& task);  // weights with has_int8_rows()
void int4_linear_task(const LinearTask& task);
void block_linear_task(const LinearTask& task);
void block_int8_linear_task(const LinearTask& task);  // weights for which has_int8_x()
void bf16_linear_task(const LinearTask& task);  // weights for which rounds_x()

// A row of activations as int8: q = round(x / scale), scale = max |x| / 127, in the form that this machine's products
// take. A row with NaN or infinity has a scale of NaN.
void quantize_row(const float* x, int64_t n, uint8_t* out, float* scale);
constexpr int64_t quantized_row_bytes(int64_t n) { return ceil_div(n, 64) * 64; }

// A row of activations rounded to bf16, in the form that this machine's products take: bf16 where has_fast_bf16().
void round_row(const float* x, int64_t n, uint8_t* out);
int64_t rounded_row_bytes(int64_t n);
// As bf16 whatever the machine; and its product by AVX-512-BF16 or BFMMLA, false where there is none. For tests beside
// the above.
void bf16_row(const float* x, int64_t n, uint8_t* out);
constexpr int64_t bf16_row_bytes(int64_t n) { return ceil_div(n, 32) * 64; }
bool bf16_dot_task(const LinearTask& task);

// Where a tile's fp32 sums come from and go to: its row 0, column 0 of the panel.
struct TileSums {
  const float* from;  // [rows][kPanelWidth]  null: nothing yet
  float* to;          // [rows][to_stride]
  int64_t to_stride;
  const float* bias;  // [kPanelWidth]  added on the way; null: none
};

// sums: of a task, [rows][kPanelWidth]: partial ones between blocks of k, and whole ones of a panel narrower than its
// width, which copy_narrow_panel takes to the outputs.
inline TileSums tile_sums(const LinearTask& t, int64_t row, bool is_first, bool is_last, float* sums) {
  sums += row * PackedLinear::kPanelWidth;
  const float* from = is_first ? nullptr : sums;
  if (!is_last) return {from, sums, PackedLinear::kPanelWidth, nullptr};
  const int64_t n = t.weight->out_features(), first = t.panel * PackedLinear::kPanelWidth;
  const float* bias = t.weight->bias() == nullptr ? nullptr : t.weight->bias() + first;
  if (first + t.column_end > n) return {from, sums, PackedLinear::kPanelWidth, bias};
  return {from, t.out + row * t.out_stride, t.out_stride, bias};
}

inline void copy_narrow_panel(const LinearTask& t, const float* sums) {
  const int64_t n = t.weight->out_features(), first = t.panel * PackedLinear::kPanelWidth;
  if (first + t.column_end <= n || first + t.column_begin >= n) return;
  const auto bytes = static_cast<size_t>(n - first - t.column_begin) * sizeof(float);
  for (int64_t row = 0; row < t.row_end - t.row_begin; ++row, sums += PackedLinear::kPanelWidth)
    std::memcpy(t.out + row * t.out_stride + t.column_begin, sums + t.column_begin, bytes);
}

// Touches weights that come next, so that memory works while the cores multiply. Where several tiles read the same
// block, or one reads it in several passes over columns: the next block, spread evenly over the turns of their loops;
// without it they wait for every block, and all at once would fill the queues that the loops' own loads need. A lone
// tile of all columns is bound by memory and fetches its own weights a little ahead of reading them. Loops work on a
// copy and give it back.
class FetchAhead {
 public:
  // For a lone tile of all columns.
  FetchAhead() = default;
  // `turns`: of the loops that will call turn(). begin: null: there is nothing to fetch but what is in `also`, of which
  // the turns take a share.
  FetchAhead(const uint8_t* begin, int64_t bytes, int64_t turns, const FetchList* also = nullptr, int64_t shares = 1)
      : at_(begin) {
    if (begin == nullptr) at_ = kNothing, bytes = 0;
    if (also != nullptr) {
      end_ = reinterpret_cast<uintptr_t>(at_) + static_cast<uintptr_t>(bytes);
      more_ = also->at;
      bytes += also->bytes / shares;
    }
    if (bytes > 0) step_ = std::min(bytes / std::max<int64_t>(1, turns) + 1, kMaxLinesPerTurn * kLine);
  }
  // The ranges behind also->at that no turn has come to; null: it had none.
  const ByteRange* rest() const { return more_; }

  // Ends a list of ranges.
  static constexpr ByteRange endless() { return {kNothing, INT64_MAX / 2}; }

  // reading: where the turn reads kBytes of weights; the next turn reads where four lines more begin, or earlier. kFar:
  // further ahead, and only into the second-level cache. kNextLevel: of the cache into which the next block comes.
  template <int kBytes, bool kFar, int kNextLevel = 2>
  inline void turn(const uint8_t* reading) {
    if (at_ == nullptr) {
      constexpr int64_t kTurnsAhead = fetch_turns_ahead(kBytes, kFar);
      for (int64_t i = 0; i < kBytes; i += kLine)
        __builtin_prefetch(reading + kTurnsAhead * 4 * kLine + i, 0, kFar ? 2 : 3);
      return;
    }
    // Two lines of a turn at most, which is what several tiles or passes leave to each.
    constexpr int kHint = kNextLevel == 1 ? 3 : 2;
    __builtin_prefetch(at_, 0, kHint);
    if (step_ > kLine) __builtin_prefetch(at_ + kLine, 0, kHint);
    at_ += step_;
    if (reinterpret_cast<uintptr_t>(at_) < end_) return;
    at_ = more_->begin;
    end_ = reinterpret_cast<uintptr_t>(at_) + static_cast<uintptr_t>(more_->bytes);
    ++more_;
  }

 private:
  static constexpr int64_t kLine = 64;
  static constexpr uint8_t kNothing[kMaxLinesPerTurn * kLine] = {};
  const uint8_t* at_ = nullptr;
  int64_t step_ = 0;
  uintptr_t end_ = UINTPTR_MAX;  // of the range that at_ is in, where more_ has others
  const ByteRange* more_ = nullptr;
};

}  // namespace llmb::cpu
