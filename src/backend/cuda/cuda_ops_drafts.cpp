// The ops of steps that draft, and of layers that do behind the last one. Their hidden states lie behind all keys and
// values of the pool, by blocks, so that what copies or swaps blocks has them too.
#include <algorithm>
#include <span>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_weights.h"
#include "base/check.h"
#include "kernels/cuda/hidden_rows.h"

namespace llmb {

void CudaOps::follow(const CudaOps& target) {
  const size_t bytes = std::min(options_.limits.max_num_samples, target.limits().max_num_samples) * sizeof(int32_t);
  const auto copy = [&](int32_t* to, const int32_t* from) {
    cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, main_stream_), "cudaMemcpyAsync");
  };
  copy(given_by_drafts_.counts, target.given_.counts);
  copy(given_by_drafts_.last, target.given_.last);
  copy(given_by_drafts_.before_last, target.given_.before_last);
}

int64_t CudaOps::hidden_block_bytes() const { return kv_layout(0).hidden_bytes() * options_.block_size; }

int64_t CudaOps::hidden_begin(int64_t num_blocks) const {
  return num_blocks * (kv_layout(0).bytes_per_block() - hidden_block_bytes());
}

// Calls body with a number of the type of activations, and the hidden states, of a type that has as many bits as the
// layout says.
template <typename Body>
void CudaOps::with_hidden(const Body& body) const {
  uint8_t* const pool = kv_pool_.data<uint8_t>() + hidden_begin(num_blocks_);
  with_type(options_.dtype, [&]<typename T>(T) {
    if (dtype_bytes(kv_layout(0).hidden_dtype()) == int64_t{sizeof(T)}) body(T(), reinterpret_cast<T*>(pool));
    else if constexpr (std::is_same_v<T, float>) body(T(), reinterpret_cast<__nv_bfloat16*>(pool));
    else LLMB_CHECK_MSG(false, "hidden states of another size than activations");
  });
}

// Each of several ranks that share out rows stores the others', too, as far as it has their slots.
void CudaOps::store_hidden(Rows x, int64_t rows) {
  if (step_.shape.is_shared_out())
    x = context_rows()->share_columns(x, 0, step_.row_bounds), rows = step_.shape.num_tokens;
  const int32_t mtp = config_.num_hidden_layers;
  const int32_t* const slots = slices_ ? slices_->own_slots(groups_.group(mtp)) : slots_of(mtp);
  with_hidden([&]<typename T, typename Stored>(T, Stored* pool) {
    cuda::store_hidden(data<const T>(x), slots, rows, x.width, pool, stream_);
    if (hidden_slices_)
      cuda::store_hidden(data<const T>(x), nullptr, rows, x.width, hidden_slices_->own<Stored>(), stream_);
  });
}

void CudaOps::previous_hidden(int64_t rows, Rows out) {
  const int32_t mtp = config_.num_hidden_layers, group = groups_.group(mtp);
  // From the first row of the step or of the part.
  const auto rows_from = [&](int64_t first, int64_t count) {
    return cuda::PreviousRows{static_cast<int32_t>(count),
                              options_.block_size,
                              step_.rows + first,
                              step_.block_start,
                              step_.block_ids + group,
                              groups_.num_groups(),
                              step_.positions + first,
                              slots_of(mtp) + first,
                              step_.parent_rows};
  };
  with_hidden([&]<typename T, typename Stored>(T, Stored* pool) {
    if (!hidden_slices_)
      return cuda::previous_hidden<Stored>(rows_from(first_row_, rows), pool, out.width, data<float>(out), stream_);
    const cuda::SlicedRows step{rows_from(0, step_.shape.num_tokens), slices_->group_on_device(group),
                                slices_->blocks_on_device(), context_rows()->rank()};
    hidden_slices_->previous<Stored>(slices_->plan(), step, {first_row_, first_row_ + rows}, pool, data<float>(out),
                                     stream_);
  });
}

void CudaOps::set_head_tokens(std::span<const TokenId> tokens) {
  if (tokens.empty()) return;
  std::vector<int32_t> known_as(static_cast<size_t>(options_.vocab_size), -1);
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] >= 0) known_as[static_cast<size_t>(tokens[i])] = static_cast<int32_t>(i);
  known_as_ = upload_array(known_as, stream_);
}

void CudaOps::spread_logits(Rows from, std::span<const TokenId> tokens, int64_t rows, Rows to) {
  LLMB_CHECK(known_as_.bytes() > 0 && from.width == static_cast<int64_t>(tokens.size()));
  cuda::spread_logits(data<const float>(from), from.width, known_as_.data<const int32_t>(), rows, to.width,
                      data<float>(to), stream_);
}

}  // namespace llmb
