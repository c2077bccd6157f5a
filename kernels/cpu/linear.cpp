// out[r][n] = sum over k of x[r][k] * w[n][k], + bias[n]
//
// Few rows (up to kFewTiles register tiles): bound by the bytes of the weights, which are widened in registers.
// More rows: bound by multiply-adds. A task is a panel of 64 output features by a block of rows; for each block of k
// the panel is widened to fp32 once into a buffer that stays in the first-level cache, then register tiles of rows run
// over it. Partial sums go through memory as fp32, so the chain over k is the same as in registers.
#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

#ifndef LLMB_KERNELS_CPU_LINEAR_ONCE_
#define LLMB_KERNELS_CPU_LINEAR_ONCE_
namespace llmb::cpu {

constexpr int64_t kWidth = PackedLinear::kPanelWidth;
constexpr int64_t kBlockK = 128;     // 64 columns of fp32 weights fill 32 KiB
constexpr int64_t kBlockRows = 128;  // rows of a task: partial sums and the block of x stay in the second-level cache
constexpr int64_t kFewTiles = 6;     // up to here, widening in registers for each tile costs less than once in memory

// One task of linear: panel `panel` of the weights times rows [row_begin, row_end).
struct LinearTask {
  const PackedLinear* weight;
  const float* x;  // [rows, in_features]
  float* out;      // [rows, out_features]
  int64_t panel, row_begin, row_end;
};

}  // namespace llmb::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

constexpr int kPanelVecs = static_cast<int>(kWidth) / kLanes;

// Readers of a panel's stored form. load<kVecs>() gives k steps [k, k + kStep) of kVecs vectors of columns from c on.
struct F32Panel {
  static constexpr int kStep = 1;
  const float* data;
  template <int kVecs>
  HWY_INLINE void load(int64_t k, int64_t column, V (&b)[kStep][kVecs]) const {
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c) b[0][c] = hn::LoadU(D(), data + k * kWidth + column + c * kLanes);
  }
};
struct F16Panel {
  static constexpr int kStep = 1;
  const hwy::float16_t* data;
  template <int kVecs>
  HWY_INLINE void load(int64_t k, int64_t column, V (&b)[kStep][kVecs]) const {
    const hn::Rebind<hwy::float16_t, D> d16;
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c) b[0][c] =
        hn::PromoteTo(D(), hn::LoadU(d16, data + k * kWidth + column + c * kLanes));
  }
};
struct BF16Panel {
  static constexpr int kStep = 2;
  const uint32_t* data;  // pairs of k
  template <int kVecs>
  HWY_INLINE void load(int64_t k, int64_t column, V (&b)[kStep][kVecs]) const {
    const DU du;
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c) {
      const auto pair = hn::LoadU(du, data + (k / 2) * kWidth + column + c * kLanes);
      b[0][c] = hn::BitCast(D(), hn::ShiftLeft<16>(pair));
      b[1][c] = hn::BitCast(D(), hn::And(pair, hn::Set(du, 0xffff0000u)));
    }
  }
};

// Sums of kRows rows by kVecs vectors of columns from `column` on, straight from the stored form.
template <int kRows, int kVecs, typename Panel>
HWY_INLINE void direct_tile(const Panel& panel, const float* x, int64_t num_k, int64_t column, float* sums) {
  const D d;
  V acc[kRows * kVecs];
  LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) acc[i] = hn::Zero(d);
  V b[Panel::kStep][kVecs];
  const int64_t whole = num_k - num_k % Panel::kStep;
  for (int64_t k = 0; k < whole; k += Panel::kStep) {
    panel.load(k, column, b);
    LLMB_UNROLL for (int step = 0; step < Panel::kStep; ++step) {
      LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
        const V xv = hn::Set(d, x[r * num_k + k + step]);
        LLMB_UNROLL for (int c = 0; c < kVecs; ++c) acc[r * kVecs + c] = hn::MulAdd(xv, b[step][c], acc[r * kVecs + c]);
      }
    }
  }
  if (whole < num_k) {  // an odd last k of a pair
    panel.load(whole, column, b);
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      const V xv = hn::Set(d, x[r * num_k + whole]);
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) acc[r * kVecs + c] = hn::MulAdd(xv, b[0][c], acc[r * kVecs + c]);
    }
  }
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c)
        hn::StoreU(acc[r * kVecs + c], d, sums + r * kWidth + column + c * kLanes);
  }
}

// Writes sums [rows][kWidth] of a panel to out, bias added; a last panel may be narrower.
HWY_INLINE void write_panel(const LinearTask& t, const float* sums, int64_t row, int64_t rows) {
  const int64_t n = t.weight->out_features(), begin = t.panel * kWidth, width = std::min(kWidth, n - begin);
  const float* bias = t.weight->bias();
  for (int64_t r = 0; r < rows; ++r) {
    float* to = t.out + (row + r) * n + begin;
    const float* from = sums + r * kWidth;
    for (int64_t c = 0; c < width; c += kLogicalLanes) {
      V16 v = load16(from + c);
      if (bias != nullptr) v = map16(v, load16(bias + begin + c), [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
      if (width - c >= kLogicalLanes) {
        store16(v, to + c);
      } else {
        store16_partial(v, to + c, width - c);
      }
    }
  }
}

template <int kRows, typename Panel>
HWY_INLINE void direct_rows(const Panel& panel, const LinearTask& t, int64_t row) {
  // As many vectors of columns as registers allow with this many rows.
  constexpr int kMaxVecs = kTileRows * kTileColumns / kLanes / kRows;
  constexpr int kVecs = kMaxVecs >= kPanelVecs       ? kPanelVecs
                        : kMaxVecs >= kPanelVecs / 2 ? kPanelVecs / 2
                                                     : kTileColumns / kLanes;
  const int64_t num_k = t.weight->in_features();
  HWY_ALIGN float sums[kRows * kWidth];
  for (int64_t column = 0; column < kWidth; column += kVecs * kLanes)
    direct_tile<kRows, kVecs>(panel, t.x + row * num_k, num_k, column, sums);
  write_panel(t, sums, row, kRows);
}

template <typename Panel>
void few_rows(const Panel& panel, const LinearTask& t) {
  for_row_tiles(t.row_end - t.row_begin,
                [&](int64_t r, auto rows) HWY_ATTR { direct_rows<decltype(rows)::value>(panel, t, t.row_begin + r); });
}

// Adds k in [k_begin, k_begin + num_k) of kRows rows to their sums.
template <int kRows>
HWY_INLINE void widened_tile(const float* HWY_RESTRICT widened, const float* x, int64_t x_stride, int64_t num_k,
                             bool first, float* HWY_RESTRICT sums) {
  const D d;
  constexpr int kVecs = kTileColumns / kLanes;
  const float* rows[kRows];
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) rows[r] = x + r * x_stride;
  for (int64_t column = 0; column < kWidth; column += kTileColumns) {
    const float* b[kVecs];
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c) b[c] = widened + column + c * kLanes;
    V acc[kRows * kVecs];
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) acc[r * kVecs + c] =
          first ? hn::Zero(d) : hn::LoadU(d, sums + r * kWidth + column + c * kLanes);
    }
    mul_add_tile<kRows, kVecs>(rows, num_k, b, kWidth, acc);
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c)
          hn::StoreU(acc[r * kVecs + c], d, sums + r * kWidth + column + c * kLanes);
    }
  }
}

template <typename Panel>
HWY_INLINE void widen(const Panel& panel, int64_t k_begin, int64_t k_end, float* HWY_RESTRICT widened) {
  V b[Panel::kStep][kPanelVecs];
  for (int64_t k = k_begin; k < k_end; k += Panel::kStep) {  // an odd last k widens one row of padding more
    panel.load(k, 0, b);
    LLMB_UNROLL for (int step = 0; step < Panel::kStep; ++step) {
      LLMB_UNROLL for (int c = 0; c < kPanelVecs; ++c)
          hn::StoreU(b[step][c], D(), widened + (k - k_begin + step) * kWidth + c * kLanes);
    }
  }
}

template <typename Panel>
void many_rows(const Panel& panel, const LinearTask& t) {
  static_assert(kBlockK % 2 == 0);
  HWY_ALIGN float widened[kBlockK * kWidth];
  HWY_ALIGN float sums[kBlockRows * kWidth];
  const int64_t num_k = t.weight->in_features(), rows = t.row_end - t.row_begin;
  for (int64_t k = 0; k < num_k; k += kBlockK) {
    const int64_t k_end = std::min(num_k, k + kBlockK);
    widen(panel, k, k_end, widened);
    for_row_tiles(rows, [&](int64_t r, auto tile_rows) HWY_ATTR {
      widened_tile<decltype(tile_rows)::value>(widened, t.x + (t.row_begin + r) * num_k + k, num_k, k_end - k, k == 0,
                                               sums + r * kWidth);
    });
  }
  write_panel(t, sums, t.row_begin, rows);
}

void linear_task(const LinearTask& t) {
  const uint8_t* data = t.weight->panel(t.panel);
  const auto run = [&t](const auto& panel) HWY_ATTR {
    if (t.row_end - t.row_begin <= kFewTiles * kTileRows) few_rows(panel, t);
    else many_rows(panel, t);
  };
  switch (t.weight->dtype()) {
    case DType::kF32:
      return run(F32Panel{reinterpret_cast<const float*>(data)});
    case DType::kF16:
      return run(F16Panel{reinterpret_cast<const hwy::float16_t*>(data)});
    case DType::kBF16:
      return run(BF16Panel{reinterpret_cast<const uint32_t*>(data)});
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(linear_task);

namespace {

// Rows of a task: as many as share a widened panel, fewer where that leaves threads idle.
int64_t rows_per_task(int64_t rows, int64_t num_panels, int num_threads) {
  constexpr int64_t kMinRows = 32;  // widening then costs a few percent
  int64_t chunks = ceil_div(rows, kBlockRows);
  while (chunks * num_panels < 6 * int64_t{num_threads} && ceil_div(rows, chunks) > kMinRows) ++chunks;
  return ceil_div(rows, chunks);
}

// The tasks of one call.
struct CallTasks {
  int64_t chunk;  // rows of a task
  int64_t num_chunks, first_task;
};

}  // namespace

void linear(const PackedLinear& weight, const float* x, int64_t rows, float* out, ThreadPool& pool) {
  const LinearCall call{&weight, x, rows, out};
  linear_group({&call, 1}, pool);
}

void linear_group(std::span<const LinearCall> calls, ThreadPool& pool) {
  int64_t all_panels = 0;
  for (const LinearCall& c : calls) all_panels += c.rows > 0 ? c.weight->num_panels() : 0;
  std::vector<CallTasks> tasks;
  int64_t num_tasks = 0;
  for (const LinearCall& c : calls) {
    const int64_t chunk = c.rows > 0 ? rows_per_task(c.rows, std::max<int64_t>(all_panels, 1), pool.num_threads()) : 1;
    tasks.push_back({chunk, ceil_div(c.rows, chunk), num_tasks});
    num_tasks += tasks.back().num_chunks * c.weight->num_panels();
  }
  pool.parallel_for(num_tasks, [&](int64_t task, int) {
    const auto after = std::upper_bound(tasks.begin(), tasks.end(), task,
                                        [](int64_t value, const CallTasks& t) { return value < t.first_task; });
    const CallTasks& t = *(after - 1);
    const LinearCall& c = calls[after - 1 - tasks.begin()];
    const int64_t index = task - t.first_task, num_panels = c.weight->num_panels();
    const int64_t begin = index / num_panels * t.chunk;
    HWY_DYNAMIC_DISPATCH(linear_task)
    ({c.weight, c.x, c.out, index % num_panels, begin, std::min(c.rows, begin + t.chunk)});
  });
}

}  // namespace llmb::cpu
#endif
