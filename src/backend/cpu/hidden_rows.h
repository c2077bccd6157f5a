// The hidden state of each cached token, beside its keys and values: a layer behind the last one (MtpConfig) takes that
// of the token before. As blocks carry them, what finds a prefix, copies a block or moves it has them too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/mapped_floats.h"
#include "base/thread_pool.h"
#include "core/kv_layout.h"
#include "core/resolve_step.h"
#include "core/step_plan.h"

namespace llmb {

// In fp32 or bf16, as layout.hidden_dtype() says. Memory is touched, and so resident, only as rows are written. Move-only.
class HiddenRows {
 public:
  HiddenRows() = default;
  explicit HiddenRows(const KvLayout& layout);  // REQUIRES: layout.hidden_size > 0. Throws std::bad_alloc

  void store(const float* x,        // [rows, hidden_size]
             const int32_t* slots,  // [rows]  -1: not here
             int64_t rows, ThreadPool& pool);
  void load(const int32_t* slots,  // [rows]  -1: zeros
            int64_t rows,
            float* out,  // [rows, hidden_size]
            ThreadPool& pool) const;
  int64_t width() const { return layout_.hidden_size; }
  uint8_t* block(BlockId block) const { return row(int64_t{block} * layout_.block_size); }
  // To those of a layout that differs in num_blocks only, or within these.
  void copy_blocks_to(HiddenRows& other, std::span<const BlockCopy> copies, ThreadPool& pool);

 private:
  bool is_bf16() const { return layout_.hidden_dtype() == DType::kBF16; }
  uint8_t* row(int64_t slot) const {
    return reinterpret_cast<uint8_t*>(const_cast<float*>(memory_.data())) + slot * layout_.hidden_bytes();
  }

  KvLayout layout_;
  MappedFloats memory_;  // [num_blocks * block_size, hidden_bytes() / 4]
};

// The slots, in tables of one layer group, of the tokens before those of a step; -1 for a sequence's first.
void find_previous_slots(const StepPlan& plan, const ResolvedStep& step, int32_t layer_group,
                         std::vector<int32_t>* slots);  // [num_tokens]

}  // namespace llmb
