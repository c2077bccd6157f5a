// The residual stream: sums over ranks, and norms. Of many rows each rank takes a part: it adds up all ranks' parts of a
// product for these rows alone, adds them to the residual stream, norms them, and gives the others what came out
// (sequence parallel: Korthikanti et al. 2022, arXiv:2205.05198). A row's arithmetic is the same whoever does it.
#include <algorithm>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/cpu_weights.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/row_chunks.h"

namespace llmb {

namespace {

constexpr int64_t kFewRows = 128;  // of a product that is not divided, as each part of it reads the weights anew
constexpr int64_t kMinRowsOfRank = 4;  // fewer are done by all: norms take less time than meeting once more

constexpr int64_t kFloat = sizeof(float);

}  // namespace

// Rows of a step, as many as the ranks' room has room for. Rank r's rows begin at begin_of(r).
struct CpuOps::Turn {
  int64_t first, count, num_ranks;
  Range own;  // all where ranks do not divide them

  int64_t begin_of(int64_t rank) const { return first + count * rank / num_ranks; }
};

bool CpuOps::divides_rows(int64_t rows) const {
  return ranks_ != nullptr && rows >= kMinRowsOfRank * ranks_->tensor->size();
}

int64_t CpuOps::rows_at_once(int64_t rows, int64_t width) const {
  const int64_t most = std::min(rows, ranks_->tensor->room_bytes() / (width * kFloat));
  return most < rows && most > kFewRows ? most - most % kFewRows : most;
}

template <typename Body>
void CpuOps::for_each_turn(int64_t rows, int64_t width, const Body& body) {
  const int64_t most = rows_at_once(rows, width), rank = ranks_->tensor->rank();
  for (int64_t row = 0; row < rows; row += most) {
    Turn turn{row, std::min(most, rows - row), ranks_->tensor->size(), {}};
    turn.own = divides_rows(rows) ? Range{turn.begin_of(rank), turn.begin_of(rank + 1)} : Range{row, row + turn.count};
    body(turn);
  }
}

float* CpuOps::room_for(int64_t rows, int64_t width) {
  return static_cast<float*>(ranks_->tensor->room(rows * width * kFloat));
}

// This rank's rows of what all have written to their rooms.
void CpuOps::sum_turn(const Turn& turn, Rows out) {
  part_rows_.clear();
  for (const void* const part : ranks_->tensor->share())
    part_rows_.push_back(static_cast<const float*>(part) + (turn.own.begin - turn.first) * out.width);
  cpu::sum(part_rows_, turn.own.count() * out.width, floats(out.from(turn.own.begin)), pool_);
}

// The product is written where other ranks read it.
void CpuOps::linear_over_ranks(const cpu::PackedLinear& weight, Rows x, int64_t rows, Rows out) {
  if (rows_at_once(rows, out.width) < std::min(rows, kFewRows)) {
    cpu::linear(weight, floats(x), rows, floats(out), pool_);
    return sum_rows(out, rows);
  }
  for_each_turn(rows, out.width, [&](const Turn& turn) {
    cpu::linear(weight, floats(x.from(turn.first)), turn.count, room_for(turn.count, out.width), pool_);
    sum_turn(turn, out);
  });
}

void CpuOps::sum_rows(Rows x, int64_t rows) {
  for_each_turn(rows, x.width, [&](const Turn& turn) {
    std::copy_n(floats(x.from(turn.first)), turn.count * x.width, room_for(turn.count, x.width));
    sum_turn(turn, x);
  });
}

// out = what make(first row, number of rows, where to) gives of all rows, of which this rank makes its own.
template <typename Make>
void CpuOps::make_rows(int64_t rows, Rows out, const Make& make) {
  if (!divides_rows(rows)) return make(0, rows, floats(out));
  for_each_turn(rows, out.width, [&](const Turn& turn) {
    make(turn.own.begin, turn.own.count(), room_for(turn.own.count(), out.width));
    const std::span<const void* const> parts = ranks_->tensor->share();
    for (int64_t rank = 0; rank < turn.num_ranks; ++rank) {
      const int64_t begin = turn.begin_of(rank), count = turn.begin_of(rank + 1) - begin;
      const Rows from = {const_cast<void*>(parts[static_cast<size_t>(rank)]), out.dtype, out.width};
      cpu::for_each_row(pool_, count, out.width, [&](int64_t row, int) {
        std::copy_n(floats(from.from(row)), out.width, floats(out.from(begin + row)));
      });
    }
  });
}

void CpuOps::complete_rows(Rows residual, int64_t rows) {
  if (!divides_rows(rows)) return;
  make_rows(rows, residual, [&](int64_t first, int64_t count, float* to) {
    std::copy_n(floats(residual.from(first)), count * residual.width, to);
  });
}

void CpuOps::add(Rows residual, Rows delta, float factor, int64_t rows, Rows out) {
  const auto add_rows = [&](int64_t first, int64_t count) {
    if (delta.data == nullptr) return;
    cpu::add(floats(residual.from(first)), floats(delta.from(first)), factor, count * residual.width, pool_);
  };
  if (out.data != nullptr)
    return make_rows(rows, out, [&](int64_t first, int64_t count, float* to) {
      add_rows(first, count);
      std::copy_n(floats(residual.from(first)), count * residual.width, to);
    });
  if (!divides_rows(rows)) return add_rows(0, rows);
  for_each_turn(rows, residual.width, [&](const Turn& turn) { add_rows(turn.own.begin, turn.own.count()); });
}

void CpuOps::add_columns(Rows x, Rows y, int64_t first_column, float factor, int64_t rows) {
  const auto add_rows = [&](int64_t first, int64_t count) {
    cpu::add_columns(floats(x.from(first)), floats(y.from(first)) + first_column, y.width, factor, count, x.width,
                     pool_);
  };
  if (!divides_rows(rows)) return add_rows(0, rows);
  for_each_turn(rows, x.width, [&](const Turn& turn) { add_rows(turn.own.begin, turn.own.count()); });
}

void CpuOps::add_rms_norm(Rows residual, Rows delta, const DeviceBuffer& weight, float eps, int64_t rows, Rows out) {
  make_rows(rows, out, [&](int64_t first, int64_t count, float* to) {
    cpu::add_rms_norm(floats(residual.from(first)), floats(delta.from(first)), floats(weight.rows()), eps, count,
                      residual.width, to, pool_);
  });
}

void CpuOps::add_layer_norm(Rows residual, Rows delta, const DeviceBuffer& weight, const DeviceBuffer* bias, float eps,
                            int64_t rows, Rows out) {
  make_rows(rows, out, [&](int64_t first, int64_t count, float* to) {
    cpu::add_layer_norm(floats(residual.from(first)), floats(delta.from(first)), floats(weight.rows()),
                        bias != nullptr ? floats(bias->rows()) : nullptr, eps, count, residual.width, to, pool_);
  });
}

}  // namespace llmb
