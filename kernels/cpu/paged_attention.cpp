// Positions are cut into segments of kSegment at fixed absolute boundaries. Within a segment: scores of all rows, exact
// softmax numerators, weighted sum of values; segments are merged in order as in online softmax (Milakov and Gimelshein
// 2018; splits over the context as in Flash-Decoding, 2023). With few items, the segments of an item run on different
// threads.
#include "kernels/cpu/paged_attention.h"

#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/paged_attention_tasks.h"
#include "kernels/cpu/tuning.h"

namespace llmb::cpu {

namespace {

// Valid until the thread's next item.
AttentionState loaded_rows(const AttentionCall& c, std::span<const AttentionRow> rows) {
  const auto num_rows = static_cast<int64_t>(rows.size());
  const AttentionState state(thread_scratch(AttentionState::floats(num_rows, c.padded_dim())), num_rows,
                             c.padded_dim());
  load_rows(c, rows, state);
  return state;
}

void finish_rows(const AttentionCall& c, const AttentionItem& item, std::span<const AttentionRow> rows,
                 const AttentionState& total) {
  if (item.is_continued()) save_rows(c, rows, total);
  else write_rows(c, rows, total);
}

void attend_item(const AttentionCall& c, const AttentionItem& item, SegmentFetch* fetch) {
  const std::span<const AttentionRow> rows = make_rows(c, item);
  const int64_t num_rows = item.num_rows(c), dim = c.padded_dim(), state_floats = AttentionState::floats(num_rows, dim);
  float* at = thread_scratch(2 * state_floats + AttentionScratch::floats(c, num_rows));
  const AttentionState total(at, num_rows, dim), state(at + state_floats, num_rows, dim);
  const AttentionScratch scratch(c, rows, at + 2 * state_floats);
  copy_queries(c, item, scratch.q);
  bool is_first = item.is_first();
  if (!is_first) load_rows(c, rows, total);
  for (int64_t segment = item.first_segment(c); segment < item.end_segment(c); ++segment) {
    attend_segment(c, item, segment, scratch, is_first ? total : state, fetch);
    if (!is_first) merge_segment(c, rows, segment, state, total);
    is_first = false;
  }
  finish_rows(c, item, rows, total);
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
      [&](const Task& t, SegmentFetch* fetch) { attend_alone(c, *t.item, t.segment, state(t), fetch); });
  pool.parallel_for(static_cast<int64_t>(items.size()), [&](int64_t i, int) {
    const AttentionItem& item = items[i];
    const std::span<const AttentionRow> rows = make_rows(c, item);
    const Task *t = tasks.data() + first_task[i], *const end = t + (item.end_segment(c) - item.first_segment(c));
    const AttentionState total = item.is_first() ? state(*t++) : loaded_rows(c, rows);
    for (; t < end; ++t) merge_segment(c, rows, t->segment, state(*t), total);
    finish_rows(c, item, rows, total);
  });
}

constexpr int32_t kMaxLatentItemHeads = 32;

// Query heads over one latent go in parts of at most so many, so that there is work for every thread.
KvCacheView in_parts(KvCacheView kv, int32_t num_heads) {
  if (kv.latent_dim == 0) return kv;
  kv.block_stride = kv.block_stride > 0 ? kv.block_stride : kv.block_bytes();
  while (num_heads / kv.num_kv_heads > kMaxLatentItemHeads && num_heads / kv.num_kv_heads % 2 == 0)
    kv.num_kv_heads *= 2;
  return kv;
}

}  // namespace

AttentionCall make_attention_call(const float* qkv, int64_t qkv_stride, float* out, const AttentionBatch& batch,
                                  const AttentionParams& params, const KvCacheView& kv) {
  LLMB_CHECK(kv.num_kv_heads > 0 && kv.dtype != DType::kF16);
  LLMB_CHECK(params.group > 0 || params.num_heads % kv.num_kv_heads == 0);
  LLMB_CHECK(kv.latent_dim == 0 || (kv.num_kv_heads == 1 && !kv.has_scales() && kv.dtype != DType::kI4));
  LLMB_CHECK(kv.dtype != DType::kI4 ||
             (batch.open != nullptr && kv.block_size % kKvGroup == 0 && kv.head_dim % 2 == 0 && !params.sees_later));
  const KvCacheView parts = in_parts(kv, params.num_heads);
  const int32_t group = params.group > 0 ? params.group : params.num_heads / parts.num_kv_heads;
  const AttentionCall c{qkv, qkv_stride, out, batch, params, group, parts};
  LLMB_CHECK(c.num_heads_of(0) > 0 && c.head_end(parts.num_kv_heads - 1) == params.num_heads &&
             c.num_heads_of(parts.num_kv_heads - 1) > 0);
  return c;
}

void paged_attention(const float* qkv, int64_t qkv_stride, float* out, const AttentionBatch& batch,
                     const AttentionParams& params, const KvCacheView& kv, ThreadPool& pool) {
  AttentionCall c = make_attention_call(qkv, qkv_stride, out, batch, params, kv);
  AttentionItems& items = per_thread<AttentionItems>([] {});
  items.make(&c, pool.num_threads());
  if (items.num_phases() > 1) {
    const int64_t num_rows = int64_t{batch.query_start[batch.num_seqs]} * params.num_heads;
    c.max = grow(&per_thread<AlignedBuffer>([] {}), 2 * num_rows);
    c.norm = c.max + num_rows;
  }
  for (size_t i = 0; i < items.num_phases(); ++i) {
    const std::span<const AttentionItem> phase = items.phase(i);
    if (pool.num_threads() > 1 && static_cast<int64_t>(phase.size()) < kMinWholeItemsPerThread * pool.num_threads())
      attend_split(c, phase, pool);
    else attend_items(c, phase, pool);
  }
}

}  // namespace llmb::cpu
