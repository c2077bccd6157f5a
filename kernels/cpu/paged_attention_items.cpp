#include "kernels/cpu/paged_attention_items.h"

#include <algorithm>

#include "kernels/cpu/tuning.h"

namespace llmb::cpu {

namespace {

int64_t tokens_per_item(const AttentionCall& c, int64_t num_tokens, int num_threads) {
  const int64_t num_rows = num_tokens * c.params.num_heads;
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

}  // namespace

// Goes through the sequences in turn: a token's index is its row.
void AttentionItems::add_own_tokens(const AttentionBatch& batch, const AttentionParams& params) {
  tokens_.clear();
  for (int32_t s = 0; s < batch.num_seqs; ++s) {
    for (int32_t row = batch.query_start[s], end = batch.query_start[s + 1]; row < end; ++row) {
      const int32_t position = batch.context_len[s] - (end - row);
      int32_t limit = position + 1;
      if (params.sees_later) limit = batch.context_len[s] + (batch.num_later != nullptr ? batch.num_later[s] : 0);
      if (params.sees_later && params.reach > 0) limit = std::min(limit, position + params.reach + 1);
      tokens_.push_back({row, position, limit});
    }
  }
}

void AttentionItems::find_shared_segments(const AttentionBatch& batch, int64_t block_size) {
  shared_.clear();
  num_shared_segments_.assign(static_cast<size_t>(batch.num_seqs), 0);
  num_shared_phases_.assign(static_cast<size_t>(batch.num_seqs), 0);
  for (const SharedPrefix& prefix : batch.shared_prefixes) {
    const std::span entries(batch.shared_entries + prefix.entry_begin, batch.shared_entries + prefix.entry_end);
    const int64_t begin = num_shared_segments_[entries[0]], end = prefix.num_blocks * block_size / kSegment;
    if (begin >= end) continue;
    shared_.push_back({num_shared_phases_[entries[0]], prefix.entry_begin, prefix.entry_end, begin, end});
    for (const int32_t s : entries) {
      num_shared_segments_[s] = end;
      ++num_shared_phases_[s];
    }
  }
}

void AttentionItems::add_shared_tokens(const AttentionBatch& batch, SharedSegments* shared) {
  shared->token_begin = static_cast<int64_t>(tokens_.size());
  for (int32_t i = shared->entry_begin; i < shared->entry_end; ++i) {
    const int32_t s = batch.shared_entries[i];
    for (int32_t row = batch.query_start[s]; row < batch.query_start[s + 1]; ++row) tokens_.push_back(tokens_[row]);
  }
  shared->token_end = static_cast<int64_t>(tokens_.size());
  std::sort(tokens_.begin() + shared->token_begin, tokens_.end(), [](const AttentionToken& a, const AttentionToken& b) {
    return a.limit != b.limit ? a.limit < b.limit : a.row < b.row;
  });
}

void AttentionItems::make_shared_phases(const AttentionCall& c, int num_threads) {
  for (int32_t phase = 0, num_found = 0; num_found < static_cast<int32_t>(shared_.size()); ++phase) {
    int64_t num_tokens = 0;
    for (const SharedSegments& shared : shared_)
      if (shared.phase == phase) num_tokens += shared.token_end - shared.token_begin;
    const int64_t tokens = tokens_per_item(c, num_tokens, num_threads);
    for (const SharedSegments& shared : shared_) {
      if (shared.phase != phase) continue;
      ++num_found;
      for (int64_t h = 0; h < c.kv.num_kv_heads; ++h) {
        for (int64_t end = shared.token_end; end > shared.token_begin; end -= tokens) {
          const AttentionItem item{c.batch.shared_entries[shared.entry_begin],
                                   h,
                                   std::max(shared.token_begin, end - tokens),
                                   end,
                                   shared.segment_begin,
                                   shared.segment_end};
          if (item.first_segment(c) < item.end_segment(c)) items_.push_back(item);
        }
      }
    }
    phase_end_.push_back(items_.size());
  }
}

// Sequences that share blocks go head by head, so that these are still in a cache. Within each sequence the longest
// come first, so that threads finish together.
void AttentionItems::make_last_phase(const AttentionCall& c, int num_threads) {
  const int64_t tokens = tokens_per_item(c, c.batch.query_start[c.batch.num_seqs], num_threads);
  const int64_t num_heads = c.kv.num_kv_heads;
  const auto add = [&](int64_t s, int64_t first_head, int64_t end_head) {
    const int64_t begin = c.batch.query_start[s];
    for (int64_t end = c.batch.query_start[s + 1]; end > begin; end -= tokens)
      for (int64_t h = first_head; h < end_head; ++h)
        items_.push_back({s, h, std::max(begin, end - tokens), end, num_shared_segments_[s]});
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
  phase_end_.push_back(items_.size());
}

void AttentionItems::make(AttentionCall* c, int num_threads) {
  items_.clear();
  phase_end_.clear();
  add_own_tokens(c->batch, c->params);
  find_shared_segments(c->batch, c->kv.block_size);
  for (SharedSegments& shared : shared_) add_shared_tokens(c->batch, &shared);
  c->tokens = tokens_.data();
  make_shared_phases(*c, num_threads);
  make_last_phase(*c, num_threads);
}

}  // namespace llmb::cpu
