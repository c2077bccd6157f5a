// A step in two parts: which stream ops go to, and which rows they are about.
#include <algorithm>

#include "backend/cuda/cuda_ops.h"

namespace llmb {

void CudaOps::set_part(int part, int64_t first_row) {
  part_ = std::max(part, 0), first_row_ = first_row;
  if (states_) states_->set_part(step_.shape, part);
  if (adapters_) adapters_->set_part(part);
}

void CudaOps::begin() {
  LLMB_CHECK(split_ && step_.shape.is_split() && ranks_ == nullptr);
  stream_ = split_->begin(main_stream_);
}

void CudaOps::begin_products(int part) {
  stream_ = split_->begin_products(part);
  set_part(part, part == 0 ? 0 : second_row());
}

void CudaOps::begin_attention(int part) { stream_ = split_->begin_attention(part); }

void CudaOps::join() {
  stream_ = split_->join();
  set_part(-1, 0);
}

}  // namespace llmb
