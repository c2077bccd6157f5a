// Positions are cut into segments of kSegment at fixed absolute boundaries. Within a segment: scores of all rows, exact
// softmax numerators, weighted sum of values; segments are merged in order as in online softmax (Milakov and Gimelshein
// 2018; splits over the context as in Flash-Decoding, 2023). With few items, the segments of an item run on different
// threads.
#include "kernels/cpu/paged_attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/per_thread.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/paged_attention_fetch.h"
#include "kernels/cpu/paged_attention_segment.h"
#include "kernels/cpu/tuning.h"

namespace llmb::cpu {

namespace {

// Buffers grow to what the largest call on this thread needs, so that no step allocates.
float* grow(AlignedBuffer* buffer, int64_t floats) {
  const int64_t bytes = floats * int64_t{sizeof(float)};
  if (buffer->size_bytes() < bytes) *buffer = AlignedBuffer(bytes);
  return reinterpret_cast<float*>(buffer->data());
}

float* thread_scratch(int64_t floats) {
  return grow(&per_thread<AlignedBuffer>([] {}), floats);
}

// An item's rows; valid until the thread's next call.
std::span<const AttentionRow> make_rows(const AttentionCall& c, const AttentionItem& item) {
  std::vector<AttentionRow>& rows = per_thread<std::vector<AttentionRow>>([] {});
  rows.clear();
  const int64_t dim = c.kv.head_dim, first_head = item.kv_head * c.group;
  for (int64_t token = item.token_begin; token < item.token_end; ++token)
    for (int64_t head = first_head; head < first_head + c.group; ++head)
      rows.push_back(
          {c.out + (token * c.params.num_heads + head) * dim, item.begin(c, token), item.limit(c, token), head});
  return rows;
}

// Its queries, one behind the other.
void copy_queries(const AttentionCall& c, const AttentionItem& item, float* q) {
  const int64_t size = c.group * c.kv.head_dim;
  for (int64_t token = item.token_begin; token < item.token_end; ++token, q += size)
    std::memcpy(q, c.qkv + token * c.qkv_stride + item.kv_head * size, static_cast<size_t>(size) * sizeof(float));
}

int64_t tokens_per_item(const AttentionCall& c, int num_threads) {
  const int64_t num_rows = c.batch.query_start[c.batch.num_seqs] * c.params.num_heads;
  const int64_t most = max_item_rows(cache_sizes());
  const int64_t rows = std::clamp(num_rows / (kItemsPerThread * num_threads), kMinItemRows, most);
  return std::max({int64_t{1}, rows / c.group, std::min(kMinItemTokens, most / c.group)});
}

// Behind s, the end of the sequences whose tables begin with the same block: runs of a tree, choices, shared prefixes.
int64_t end_of_sharing(const AttentionBatch& batch, int64_t s) {
  int64_t end = s + 1;
  while (end < batch.num_seqs && batch.block_ids[batch.block_start[end]] == batch.block_ids[batch.block_start[s]])
    ++end;
  return end;
}

// Sequences that share blocks go head by head, so that these are still in a cache. Within each sequence the longest
// come first, so that threads finish together. Valid until the thread's next call.
std::span<const AttentionItem> make_items(const AttentionCall& c, int num_threads) {
  const int64_t tokens = tokens_per_item(c, num_threads), num_heads = c.kv.num_kv_heads;
  std::vector<AttentionItem>& items = per_thread<std::vector<AttentionItem>>([] {});
  items.clear();
  const auto add = [&](int64_t s, int64_t first_head, int64_t end_head) {
    const int64_t begin = c.batch.query_start[s];
    for (int64_t end = c.batch.query_start[s + 1]; end > begin; end -= tokens)
      for (int64_t h = first_head; h < end_head; ++h) items.push_back({s, h, std::max(begin, end - tokens), end});
  };
  for (int64_t s = 0, end = 0; s < c.batch.num_seqs; s = end) {
    end = end_of_sharing(c.batch, s);
    if (end == s + 1) {
      add(s, 0, num_heads);
      continue;
    }
    for (int64_t h = 0; h < num_heads; ++h)
      for (int64_t sharing = s; sharing < end; ++sharing) add(sharing, h, h + 1);
  }
  return items;
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

void attend_item(const AttentionCall& c, const AttentionItem& item, SegmentFetch* fetch) {
  const std::span<const AttentionRow> rows = make_rows(c, item);
  const int64_t num_rows = item.num_rows(c), dim = c.padded_dim(), state_floats = AttentionState::floats(num_rows, dim);
  float* at = thread_scratch(2 * state_floats + AttentionScratch::floats(num_rows, dim));
  const AttentionState total(at, num_rows, dim), state(at + state_floats, num_rows, dim);
  const AttentionScratch scratch(rows, at + 2 * state_floats, dim);
  copy_queries(c, item, scratch.q);
  const int64_t first = item.first_segment(c), end = item.end_segment(c);
  for (int64_t segment = first; segment < end; ++segment) {
    attend_segment(c, item, segment, scratch, segment == first ? total : state, fetch);
    if (segment > first) merge_segment(c, rows, segment, state, total);
  }
  write_rows(c, rows, total);
}

void attend_items(const AttentionCall& c, std::span<const AttentionItem> items, ThreadPool& pool) {
  share_tasks(
      c, items, pool,
      [&](const AttentionItem& item) {
        return SegmentFetch::Segments{&item, item.first_segment(c), item.end_segment(c)};
      },
      [&](const AttentionItem& item, SegmentFetch* fetch) { attend_item(c, item, fetch); });
}

// As attend_items, with the segments as tasks of their own.
void attend_split(const AttentionCall& c, std::span<const AttentionItem> items, ThreadPool& pool) {
  struct Task {
    const AttentionItem* item;
    int64_t segment, offset;  // offset: of its state in `states`
  };
  const int64_t dim = c.padded_dim();
  std::vector<Task>& tasks = per_thread<std::vector<Task>>([] {});
  std::vector<size_t>& first_task = per_thread<std::vector<size_t>>([] {});
  tasks.clear();
  first_task.clear();
  int64_t num_floats = 0;
  for (const AttentionItem& item : items) {
    first_task.push_back(tasks.size());
    for (int64_t segment = item.first_segment(c); segment < item.end_segment(c); ++segment) {
      tasks.push_back({&item, segment, num_floats});
      num_floats += AttentionState::floats(item.num_rows(c), dim);
    }
  }
  float* states = grow(&per_thread<AlignedBuffer>([] {}), num_floats);
  const auto state = [&](const Task& t) { return AttentionState(states + t.offset, t.item->num_rows(c), dim); };
  share_tasks(
      c, std::span<const Task>(tasks), pool,
      [](const Task& t) {
        return SegmentFetch::Segments{t.item, t.segment, t.segment + 1};
      },
      [&](const Task& t, SegmentFetch* fetch) {
        const AttentionScratch scratch(make_rows(c, *t.item),
                                       thread_scratch(AttentionScratch::floats(t.item->num_rows(c), dim)), dim);
        copy_queries(c, *t.item, scratch.q);
        attend_segment(c, *t.item, t.segment, scratch, state(t), fetch);
      });
  pool.parallel_for(static_cast<int64_t>(items.size()), [&](int64_t i, int) {
    const std::span<const AttentionRow> rows = make_rows(c, items[i]);
    const Task* t = &tasks[first_task[i]];
    const int64_t first = items[i].first_segment(c);
    for (int64_t segment = first + 1; segment < items[i].end_segment(c); ++segment)
      merge_segment(c, rows, segment, state(t[segment - first]), state(t[0]));
    write_rows(c, rows, state(t[0]));
  });
}

}  // namespace

void paged_attention(const float* qkv, int64_t qkv_stride, float* out, const AttentionBatch& batch,
                     const AttentionParams& params, const KvCacheView& kv, ThreadPool& pool) {
  LLMB_CHECK(kv.num_kv_heads > 0 && params.num_heads % kv.num_kv_heads == 0 && kv.dtype != DType::kF16);
  const AttentionCall c{qkv, qkv_stride, out, batch, params, params.num_heads / kv.num_kv_heads, kv};
  const std::span<const AttentionItem> items = make_items(c, pool.num_threads());
  if (pool.num_threads() > 1 && static_cast<int64_t>(items.size()) < kMinWholeItemsPerThread * pool.num_threads())
    attend_split(c, items, pool);
  else attend_items(c, items, pool);
}

}  // namespace llmb::cpu
