// out[r][n] = sum over k of x[r][k] * w[n][k], + bias[n]: how products become tasks. A task is a panel of 64 output
// features, or half of one, by a block of rows.
#include "kernels/cpu/linear.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/per_thread.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/caches.h"
#include "kernels/cpu/block_row.h"
#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/lora.h"
#include "kernels/cpu/row_chunks.h"

namespace llmb::cpu {

namespace {

constexpr int64_t kWidth = PackedLinear::kPanelWidth;

bool is_gated(const LinearCall& c) { return c.activation != nullptr && c.activation->gated; }

// Panels of outputs, each of a gate's panel and the other half's where there is a gate.
int64_t output_panels(const LinearCall& c) { return c.weight->num_panels() / (is_gated(c) ? 2 : 1); }

// How one call is cut into tasks: each chunk of rows by some whole panels, then by halves of the others.
struct CallTasks {
  int64_t chunk;  // rows of a task
  int64_t num_panels, num_whole;
  int64_t first_task, num_tasks;
  const uint8_t* x_bytes;  // the call's rows in the form that its products take, where that is not x's
  const float* x_scales;

  int64_t per_chunk() const { return 2 * num_panels - num_whole; }
};

// Where there are fewer panels than keep all threads busy to the end, rows are split, or, where those are few, the
// panels that do not go round.
CallTasks split(const LinearCall& c, int64_t all_panels, int num_threads) {
  CallTasks t{c.rows, output_panels(c), output_panels(c), 0, 0, nullptr, nullptr};
  if (c.rows == 0) return t;
  int64_t chunks = ceil_div(c.rows, kLinearTaskRows);
  while (chunks * all_panels < kLinearTasksPerThread * num_threads && ceil_div(c.rows, chunks) > kLinearMinRows)
    ++chunks;
  const int64_t tasks = chunks * all_panels, rounds = ceil_div(tasks, num_threads);
  const bool is_uneven = rounds * num_threads * 16 > tasks * 17;  // more than a 16th of idle time
  if (is_uneven && c.rows > 2) t.num_whole -= t.num_whole % num_threads;
  t.chunk = ceil_div(c.rows, chunks);
  t.num_tasks = ceil_div(c.rows, t.chunk) * t.per_chunk();
  return t;
}

// Columns of a panel.
struct Part {
  int64_t panel, column_begin, column_end;
};

// The panels of the task by this index of a chunk. Threads, which take about every num_threads-th task, walk through a
// range of panels of their own, so that what lies behind a panel is what the thread reads next.
Part part_of(const CallTasks& t, int64_t index, int num_threads) {
  const int64_t range = index % num_threads, size = t.num_whole / num_threads, rest = t.num_whole % num_threads;
  if (index < t.num_whole) return {range * size + std::min(range, rest) + index / num_threads, 0, kWidth};
  const int64_t half = index - t.num_whole, column = half % 2 * (kWidth / 2);
  return {t.num_whole + half / 2, column, column + kWidth / 2};
}

// The panel that the thread of this task most likely takes next, of the same rows; -1: none.
int64_t panel_after(const CallTasks& t, int64_t index, int num_threads) {
  const int64_t next = index % t.per_chunk() + num_threads;
  return next < t.per_chunk() ? part_of(t, next, num_threads).panel : -1;
}

LinearTask make_task(const LinearCall& c, const CallTasks& t, int64_t index, int num_threads) {
  const int64_t per_chunk = t.per_chunk(), turn = index % per_chunk, row = index / per_chunk * t.chunk;
  const Part part = part_of(t, turn, num_threads);
  const int64_t next = panel_after(t, index, num_threads);
  const int64_t width = is_gated(c) ? t.num_panels * kWidth : c.weight->out_features();
  return {c.weight,
          c.x,
          t.x_bytes,
          t.x_scales,
          c.out + row * width + part.panel * kWidth,
          width,
          part.panel,
          part.column_begin,
          part.column_end,
          row,
          std::min(c.rows, row + t.chunk),
          next >= 0 ? c.weight->panel(next) : nullptr};
}

// Grows to what the largest call on this thread needs, so that no step allocates.
uint8_t* scratch(int64_t bytes) {
  AlignedBuffer& buffer = per_thread<AlignedBuffer>([] {});
  if (buffer.size_bytes() < bytes) buffer = AlignedBuffer(bytes);
  return buffer.data();
}

// Bytes of a row in the form that products over these weights take; 0: as it is.
int64_t x_row_bytes(const PackedLinear& weight) {
  if (weight.has_int8_rows()) return quantized_row_bytes(weight.in_features());
  if (weight.has_int8_x()) return block_row_bytes(weight);
  return weight.rounds_x() ? rounded_row_bytes(weight.in_features()) : 0;
}

void round_row_for(const PackedLinear& weight, const float* x, uint8_t* out) {
  const int64_t k = weight.in_features();
  if (!weight.has_int8_x()) return round_row(x, k, out);
  for (const int64_t block : {kSmallBlock, kMaxBlockSize})
    if (weight.has_blocks_of(block)) quantize_block_row(x, k, block, out + block_row_begin(weight, block));
}

// Rounds the rows of all calls that want it.
void round_rows(std::span<const LinearCall> calls, std::vector<CallTasks>* tasks, ThreadPool& pool) {
  int64_t bytes = 0, scales = 0;
  for (const LinearCall& c : calls) {
    bytes += ceil_div(c.rows * x_row_bytes(*c.weight), 64) * 64;
    if (c.weight->has_int8_rows()) scales += ceil_div(c.rows, 16) * 16;
  }
  if (bytes == 0) return;
  uint8_t* at = scratch(bytes + scales * int64_t{sizeof(float)});
  float* scale = reinterpret_cast<float*>(at + bytes);
  for (size_t i = 0; i < calls.size(); ++i) {
    const LinearCall& c = calls[i];
    const int64_t k = c.weight->in_features(), stride = x_row_bytes(*c.weight);
    if (stride == 0) continue;
    (*tasks)[i].x_bytes = at;
    if (c.weight->has_int8_rows()) {
      for_each_row(pool, c.rows, k,
                   [&](int64_t row, int) { quantize_row(c.x + row * k, k, at + row * stride, scale + row); });
      (*tasks)[i].x_scales = scale;
      scale += ceil_div(c.rows, 16) * 16;
    } else {
      for_each_row(pool, c.rows, k,
                   [&](int64_t row, int) { round_row_for(*c.weight, c.x + row * k, at + row * stride); });
    }
    at += ceil_div(c.rows * stride, 64) * 64;
  }
}

void run(const LinearTask& task) {
  const PackedFormat format = task.weight->format();
  if (task.weight->has_int8_rows()) int8_linear_task(task);
  else if (format == PackedFormat::kInt4) int4_linear_task(task);
  else if (task.weight->has_int8_x()) block_int8_linear_task(task);
  else if (format == PackedFormat::kBlocks) block_linear_task(task);
  else if (task.weight->rounds_x()) bf16_linear_task(task);
  else float_linear_task(task);
}

// The memory that adding adapters to these columns will read, so that it comes while the product is computed; fetched a
// panel earlier, much of it has left the second-level cache again. Null: there is none, or more than that cache can hold
// beside the product's own.
FetchList* also_fetched(const LinearTask& task, const LinearCall& call, int64_t column_begin, int64_t column_end,
                        FetchList* list) {
  std::vector<ByteRange>& ranges = per_thread<std::vector<ByteRange>>([] {});
  ranges.clear();
  add_lora_ranges(*call.lora, call.lora_row + task.row_begin, call.lora_row + task.row_end, column_begin, column_end,
                  &ranges);
  list->bytes = 0;
  for (const ByteRange& range : ranges) list->bytes += range.bytes;
  if (list->bytes == 0 || list->bytes > cache_sizes().second_level / 4) return nullptr;
  ranges.push_back(FetchAhead::endless());
  list->at = ranges.data();
  list->last = &ranges.back();
  return list;
}

// The task, and what adapters add to its outputs while they are in a cache.
void run_adapted(LinearTask task, const LinearCall& call) {
  const int64_t first = task.panel * kWidth, begin = first + task.column_begin;
  const int64_t end = std::min(first + task.column_end, task.weight->out_features());
  if (call.lora == nullptr || begin >= end) return run(task);
  FetchList list;
  task.also = also_fetched(task, call, begin, end, &list);
  run(task);
  lora_expand(*call.lora, call.lora_row + task.row_begin, call.lora_row + task.row_end, begin, end,
              task.out + task.column_begin, task.out_stride);
}

// Outputs of a panel, or of two, are still in a cache when the activation reads them.
void run_activated(const LinearTask& task, const LinearCall& call, int64_t num_panels) {
  const ActivationSpec& spec = *call.activation;
  alignas(64) float gate[kLinearTaskRows * kWidth], up[kLinearTaskRows * kWidth];
  LinearTask part = task;
  part.out = gate;
  part.out_stride = kWidth;
  if (spec.gated) {
    part.next = task.weight->panel(task.panel + num_panels);
    run_adapted(part, call);
    part.panel += num_panels;
    part.out = up;
    part.next = task.next;
  }
  run_adapted(part, call);
  const int64_t begin = task.column_begin;
  const int64_t end = std::min(task.column_end, task.weight->out_features() - part.panel * kWidth);
  if (begin < end)
    activate_rows(spec, gate + begin, spec.gated ? up + begin : nullptr, kWidth, task.row_end - task.row_begin,
                  end - begin, task.out + begin, task.out_stride);
}

}  // namespace

bool can_activate(const PackedLinear& weight, const ActivationSpec& spec) {
  return !spec.gated || weight.out_features() % (2 * kWidth) == 0;
}

void linear_activate(const PackedLinear& weight, const ActivationSpec& spec, const float* x, int64_t rows, float* out,
                     ThreadPool& pool, const LoraWork* lora) {
  LLMB_CHECK(can_activate(weight, spec));
  const LinearCall call{&weight, x, rows, out, &spec, lora};
  linear_group({&call, 1}, pool);
}

void linear(const PackedLinear& weight, const float* x, int64_t rows, float* out, ThreadPool& pool,
            const LoraWork* lora) {
  const LinearCall call{&weight, x, rows, out, nullptr, lora};
  linear_group({&call, 1}, pool);
}

void linear_group(std::span<const LinearCall> calls, ThreadPool& pool) {
  std::vector<CallTasks>& tasks = per_thread<std::vector<CallTasks>>([] {});
  tasks.clear();
  int64_t all_panels = 0, num_tasks = 0;
  for (const LinearCall& c : calls) all_panels += c.rows > 0 ? output_panels(c) : 0;
  for (const LinearCall& c : calls) {
    tasks.push_back(split(c, std::max<int64_t>(all_panels, 1), pool.num_threads()));
    tasks.back().first_task = num_tasks;
    num_tasks += tasks.back().num_tasks;
  }
  round_rows(calls, &tasks, pool);
  const std::vector<CallTasks>& split_calls = tasks;  // other threads have a vector of their own by this name
  pool.parallel_for(num_tasks, [&](int64_t task, int) {
    const auto after = std::upper_bound(split_calls.begin(), split_calls.end(), task,
                                        [](int64_t value, const CallTasks& t) { return value < t.first_task; });
    const CallTasks& t = *(after - 1);
    const LinearCall& c = calls[after - 1 - split_calls.begin()];
    const LinearTask one = make_task(c, t, task - t.first_task, pool.num_threads());
    if (c.activation == nullptr) run_adapted(one, c);
    else run_activated(one, c, t.num_panels);
  });
}

}  // namespace llmb::cpu
