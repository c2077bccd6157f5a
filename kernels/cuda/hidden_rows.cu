// Bound by bytes: each row is read once and written once. A thread moves one pack of a row; spread_logits: one token of a
// row, whose columns lie in order of tokens, so that neighbours read neighbours.
#include "kernels/cuda/hidden_rows.h"

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;

template <class T, class Stored, int kWidth>
__global__ void __launch_bounds__(kThreads)
    store_hidden_kernel(const T* __restrict__ x, const int32_t* __restrict__ slots, int64_t width, Stored* pool) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  const int64_t slot = slots != nullptr ? slots[row] : row;
  if (at >= width || slot < 0) return;
  float values[kWidth];
  load_floats(x + row * width + at, values);
  store_floats(values, pool + slot * width + at);
}

// The row before row i, which is not its entry's first.
__device__ int64_t row_before(const PreviousRows& step, int64_t i) {
  return step.parent_rows != nullptr ? step.parent_rows[i] : i - 1;
}

// The slot before that of an entry's first row, which is row i; -1: there is none.
__device__ int64_t slot_before_entry(const PreviousRows& step, int64_t i) {
  const int32_t last = step.positions[i] - 1;
  if (last < 0) return -1;
  const int64_t block = step.block_start[step.rows[i].entry] + last / step.block_size;
  return int64_t{step.block_ids[block * step.num_tables]} * step.block_size + last % step.block_size;
}

// -1: there is none.
__device__ int64_t previous_slot(const PreviousRows& step, int64_t i) {
  const StepRow row = step.rows[i];
  if (row.entry < 0) return -1;
  return row.index > 0 ? step.slots[row_before(step, i)] : slot_before_entry(step, i);
}

template <class Stored, int kWidth>
__global__ void __launch_bounds__(kThreads)
    previous_hidden_kernel(const PreviousRows step, const Stored* __restrict__ pool, int64_t width,
                           float* __restrict__ out) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (at >= width) return;
  const int64_t slot = previous_slot(step, row);
  float values[kWidth] = {};
  if (slot >= 0) load_floats(pool + slot * width + at, values);
  store_floats(values, out + row * width + at);
}

template <class Stored, int kWidth>
__global__ void __launch_bounds__(kThreads)
    give_previous_hidden_kernel(const SlicedRows rows, const Stored* __restrict__ pool, int64_t width,
                                Stored* __restrict__ out) {
  ptx::follow_previous_grid();
  const PreviousRows& step = rows.step;
  const int64_t i = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  const StepRow row = step.rows[i];
  if (at >= width || row.entry < 0 || row.index > 0) return;
  const int64_t slot = slot_before_entry(step, i);
  if (slot < 0) return;
  const SliceGroup group = *rows.group;
  const int64_t place = slot / step.block_size - int64_t{rows.rank} * group.count;
  if (place < 0 || place >= group.count) return;
  const int64_t own = int64_t{rows.blocks[group.first + place].from} * step.block_size + slot % step.block_size;
  float values[kWidth];
  load_floats(pool + own * width + at, values);
  store_floats(values, out + row.entry * width + at);
}

template <class Stored, int kWidth>
__global__ void __launch_bounds__(kThreads)
    take_previous_hidden_kernel(const SlicedRows rows, const Stored* __restrict__ own, const Stored* __restrict__ given,
                                int32_t num_entries, int64_t width, float* __restrict__ out) {
  ptx::follow_previous_grid();
  const PreviousRows& step = rows.step;
  const int64_t i = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (at >= width) return;
  const StepRow row = step.rows[i];
  float values[kWidth] = {};
  if (row.entry >= 0 && row.index > 0) {
    load_floats(own + row_before(step, i) * width + at, values);
  } else if (const int64_t slot = row.entry < 0 ? -1 : slot_before_entry(step, i); slot >= 0) {
    const int64_t rank = slot / step.block_size / rows.group->count;
    load_floats(given + (rank * num_entries + row.entry) * width + at, values);
  }
  store_floats(values, out + i * width + at);
}

__global__ void __launch_bounds__(kThreads)
    spread_logits_kernel(const float* __restrict__ from, int64_t num_known, const int32_t* __restrict__ known_as,
                         int64_t vocab_size, float* __restrict__ to) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, token = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (token >= vocab_size) return;
  const int32_t column = known_as[token];
  to[row * vocab_size + token] = column < 0 ? kNoLogit : from[row * num_known + column];
}

LaunchShape rows_by(int64_t num_rows, int64_t width, int per_thread, cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(ceil_div(width, kThreads * per_thread));
  return {dim3(static_cast<unsigned>(num_rows), chunks), dim3(kThreads), 0, stream};
}

}  // namespace

template <class T, class Stored>
void store_hidden(const T* x, const int32_t* slots, int64_t num_rows, int64_t width, Stored* pool,
                  cudaStream_t stream) {
  if (num_rows == 0) return;
  if (can_pack(width, x, pool))
    launch_ahead(rows_by(num_rows, width, kPackWidth, stream), store_hidden_kernel<T, Stored, kPackWidth>, x, slots,
                 width, pool);
  else
    launch_ahead(rows_by(num_rows, width, 1, stream), store_hidden_kernel<T, Stored, 1>, x, slots, width, pool);
}

template <class Stored>
void previous_hidden(const PreviousRows& step, const Stored* pool, int64_t width, float* out, cudaStream_t stream) {
  if (step.num_rows == 0) return;
  if (can_pack(width, pool, out))
    launch_ahead(rows_by(step.num_rows, width, kPackWidth, stream), previous_hidden_kernel<Stored, kPackWidth>, step,
                 pool, width, out);
  else
    launch_ahead(rows_by(step.num_rows, width, 1, stream), previous_hidden_kernel<Stored, 1>, step, pool, width, out);
}

template <class Stored>
void give_previous_hidden(const SlicedRows& rows, const Stored* pool, int64_t width, Stored* out, cudaStream_t stream) {
  const int64_t count = rows.step.num_rows;
  if (count == 0) return;
  if (can_pack(width, pool, out))
    launch_ahead(rows_by(count, width, kPackWidth, stream), give_previous_hidden_kernel<Stored, kPackWidth>, rows, pool,
                 width, out);
  else
    launch_ahead(rows_by(count, width, 1, stream), give_previous_hidden_kernel<Stored, 1>, rows, pool, width, out);
}

template <class Stored>
void take_previous_hidden(const SlicedRows& rows, const Stored* own, const Stored* given, int32_t num_entries,
                          int64_t width, float* out, cudaStream_t stream) {
  const int64_t count = rows.step.num_rows;
  if (count == 0) return;
  if (can_pack(width, own, given, out))
    launch_ahead(rows_by(count, width, kPackWidth, stream), take_previous_hidden_kernel<Stored, kPackWidth>, rows, own,
                 given, num_entries, width, out);
  else
    launch_ahead(rows_by(count, width, 1, stream), take_previous_hidden_kernel<Stored, 1>, rows, own, given,
                 num_entries, width, out);
}

void spread_logits(const float* from, int64_t num_known, const int32_t* known_as, int64_t num_rows, int64_t vocab_size,
                   float* to, cudaStream_t stream) {
  if (num_rows == 0) return;
  launch_ahead(rows_by(num_rows, vocab_size, 1, stream), spread_logits_kernel, from, num_known, known_as, vocab_size,
               to);
}

template void store_hidden(const float*, const int32_t*, int64_t, int64_t, float*, cudaStream_t);
template void store_hidden(const float*, const int32_t*, int64_t, int64_t, __nv_bfloat16*, cudaStream_t);
template void store_hidden(const __nv_bfloat16*, const int32_t*, int64_t, int64_t, __nv_bfloat16*, cudaStream_t);
template void store_hidden(const __half*, const int32_t*, int64_t, int64_t, __half*, cudaStream_t);
template void previous_hidden(const PreviousRows&, const float*, int64_t, float*, cudaStream_t);
template void previous_hidden(const PreviousRows&, const __nv_bfloat16*, int64_t, float*, cudaStream_t);
template void previous_hidden(const PreviousRows&, const __half*, int64_t, float*, cudaStream_t);
template void give_previous_hidden(const SlicedRows&, const float*, int64_t, float*, cudaStream_t);
template void give_previous_hidden(const SlicedRows&, const __nv_bfloat16*, int64_t, __nv_bfloat16*, cudaStream_t);
template void give_previous_hidden(const SlicedRows&, const __half*, int64_t, __half*, cudaStream_t);
template void take_previous_hidden(const SlicedRows&, const float*, const float*, int32_t, int64_t, float*,
                                   cudaStream_t);
template void take_previous_hidden(const SlicedRows&, const __nv_bfloat16*, const __nv_bfloat16*, int32_t, int64_t, float*,
                                   cudaStream_t);
template void take_previous_hidden(const SlicedRows&, const __half*, const __half*, int32_t, int64_t, float*,
                                   cudaStream_t);

}  // namespace llmb::cuda
