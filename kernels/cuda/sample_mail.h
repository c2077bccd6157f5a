// The messages of ranks that sample (sample_parts.h), and the kernels of sample that take part in it. Internal to sample.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/cuda/sample_state.h"

namespace llmb::cuda {

constexpr int kBins = 256;      // for the values of a digit
constexpr int kBinDigits = 4;  // of a border's key

// All that ranks with a part of the vocabulary each have told each other in the exchange at hand.
struct SampleMail {
  uint8_t* memory;  // [size, bytes]
  int64_t bytes;
  int32_t rank, size;

  // From a byte of rank r's on.
  template <class T>
  __host__ __device__ T* of(int32_t r, int64_t at = 0) const {
    return reinterpret_cast<T*>(memory + r * bytes + at);
  }
};

// The token that one rank's part holds, and its logit before anything changed it; -1: another rank's does.
struct ChosenToken {
  TokenId token;
  float raw_logit;
};

// Where the parts of a message of some rows begin.
struct Message {
  int64_t bytes = 0;

  int64_t add(int64_t count, int64_t item_bytes) {
    const int64_t begin = bytes;
    bytes = ceil_div(bytes + count * item_bytes, int64_t{16}) * 16;
    return begin;
  }
};

// How many keys of a part have each value of a digit, or the sum of their weights in units of the bin; and the weights
// that are too small to be the border.
struct BinsMessage : Message {
  int64_t bins, apart;
  explicit BinsMessage(int64_t rows) : bins(add(rows * kBins, sizeof(uint64_t))), apart(add(rows, sizeof(double))) {}
};

// A message: [rows] sums of the weights of each part. Where a token is another rank's, RowState::token is -1.
void launch_draw_in_part(const SampleArgs& args, const SampleMail& mail, cudaStream_t stream);
void launch_list_best(const SampleArgs& args, uint64_t* out,  // [rows, max_top]
                      cudaStream_t stream);
void launch_choose(const SampleArgs& args, ChosenToken* out,  // [rows]
                   cudaStream_t stream);
// Takes over the digit before, of which all ranks have told each other, and counts this one; digit kBinDigits: sets the
// cut. vocab: of all parts
void launch_top_k_digit(const SampleArgs& args, const SampleMail& mail, const BinsMessage& message, int32_t vocab,
                        int digit, cudaStream_t stream);
void launch_top_p_digit(const SampleArgs& args, const SampleMail& mail, const BinsMessage& message, int32_t vocab,
                        int digit, cudaStream_t stream);

}  // namespace llmb::cuda
