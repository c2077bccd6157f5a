// How threads share the work of paged_attention: the rows and queries of items, and tasks taken in turn. Private to
// kernels/cpu.
#pragma once

#include <atomic>
#include <cstring>
#include <span>
#include <vector>

#include "base/per_thread.h"
#include "base/thread_pool.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/paged_attention_fetch.h"
#include "kernels/cpu/paged_attention_items.h"
#include "kernels/cpu/paged_attention_segment.h"

namespace llmb::cpu {

// Checks what it is given. Its batch has no items yet: AttentionItems::make.
AttentionCall make_attention_call(const float* qkv, int64_t qkv_stride, float* out, const AttentionBatch& batch,
                                  const AttentionParams& params, const KvCacheView& kv);

// Buffers grow to what the largest call on this thread needs, so that no step allocates.
inline float* grow(AlignedBuffer* buffer, int64_t floats) {
  const int64_t bytes = floats * int64_t{sizeof(float)};
  if (buffer->size_bytes() < bytes) *buffer = AlignedBuffer(bytes);
  return reinterpret_cast<float*>(buffer->data());
}

inline float* thread_scratch(int64_t floats) {
  return grow(&per_thread<AlignedBuffer>([] {}), floats);
}

// An item's rows; valid until the thread's next call. Row 0 of the call's output is that of token `first_row`.
inline std::span<const AttentionRow> make_rows(const AttentionCall& c, const AttentionItem& item,
                                               int64_t first_row = 0) {
  std::vector<AttentionRow>& rows = per_thread<std::vector<AttentionRow>>([] {});
  rows.clear();
  const int64_t first_head = c.head_begin(item.kv_head), end_head = c.head_end(item.kv_head);
  for (int64_t token = item.token_begin; token < item.token_end; ++token)
    for (int64_t head = first_head; head < end_head; ++head)
      rows.push_back({(c.tokens[token].row - first_row) * c.params.num_heads + head, item.begin(c, token),
                      item.limit(c, token), head});
  return rows;
}

// Its queries, one behind the other.
inline void copy_queries(const AttentionCall& c, const AttentionItem& item, float* q) {
  const int64_t first = c.head_begin(item.kv_head) * c.kv.head_dim;
  const int64_t size = c.num_heads_of(item.kv_head) * c.kv.head_dim;
  for (int64_t token = item.token_begin; token < item.token_end; ++token, q += size)
    std::memcpy(q, c.qkv + c.tokens[token].row * c.qkv_stride + first,
                static_cast<size_t>(size) * sizeof(float));
}

// Calls work(fetch, task) for each task in turn, on all threads. Each takes a task ahead of the one that it works on,
// to know what it will read next. segments(task): what is read for it.
template <class Task, class Segments, class Work>
void share_tasks(const AttentionCall& c, std::span<const Task> tasks, ThreadPool& pool, const Segments& segments,
                 const Work& work) {
  std::atomic<size_t> num_taken{0};
  const auto take = [&]() -> const Task* {
    const size_t i = num_taken.fetch_add(1, std::memory_order_relaxed);
    return i < tasks.size() ? &tasks[i] : nullptr;
  };
  pool.parallel_for(pool.num_threads(), [&](int64_t, int) {
    SegmentFetch fetch(c);
    for (const Task *task = take(), *next = nullptr; task != nullptr; task = next) {
      next = take();
      fetch.begin(segments(*task), next != nullptr ? segments(*next) : SegmentFetch::Segments());
      work(*task, &fetch);
    }
  });
}

// The states of an item's rows over one segment, each row's on its own. Uses the thread's scratch.
inline void attend_alone(const AttentionCall& c, const AttentionItem& item, int64_t segment,
                         const AttentionState& state, SegmentFetch* fetch) {
  const AttentionScratch scratch(c, make_rows(c, item),
                                 thread_scratch(AttentionScratch::floats(c, item.num_rows(c))));
  copy_queries(c, item, scratch.q);
  attend_segment(c, item, segment, scratch, state, fetch);
}

}  // namespace llmb::cpu
