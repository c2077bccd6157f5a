// How a call of paged_attention is cut into items. Private to kernels/cpu.
//
// Sequences with a prefix in common go through the segments that lie within it together: their rows make items as if
// they were a prompt's, so that each key and value is read once for all of them. A row's segments are merged from the
// first to the last, so it goes from one item to the next: in the phases before the last through those that it shares,
// with the most sequences first, in the last phase through the rest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/paged_attention_segment.h"

namespace llmb::cpu {

class AttentionItems {
 public:
  // Keeps its memory from call to call; sets c->tokens.
  void make(AttentionCall* c, int num_threads);

  // In order; items of a phase are independent of each other. The last phase has an item for every row.
  size_t num_phases() const { return phase_end_.size(); }
  std::span<const AttentionItem> phase(size_t i) const {
    const size_t begin = i == 0 ? 0 : phase_end_[i - 1];
    return std::span(items_).subspan(begin, phase_end_[i] - begin);
  }

 private:
  // Whole segments of a shared prefix behind those of the prefixes that enclose it.
  struct SharedSegments {
    int32_t phase;
    int32_t entry_begin, entry_end;  // into the batch's shared_entries
    int64_t segment_begin, segment_end;
    int64_t token_begin = 0, token_end = 0;
  };

  void add_own_tokens(const AttentionBatch& batch, const AttentionParams& params);
  void find_shared_segments(const AttentionBatch& batch, int64_t block_size);
  void add_shared_tokens(const AttentionBatch& batch, SharedSegments* shared);
  void make_shared_phases(const AttentionCall& c, int num_threads);
  void make_last_phase(const AttentionCall& c, int num_threads);

  std::vector<AttentionToken> tokens_;
  std::vector<SharedSegments> shared_;
  std::vector<int64_t> num_shared_segments_;  // [num_seqs]
  std::vector<int32_t> num_shared_phases_;    // [num_seqs]
  std::vector<AttentionItem> items_;
  std::vector<size_t> phase_end_;  // [num_phases]  into items_
};

}  // namespace llmb::cpu
