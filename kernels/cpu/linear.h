// linear: out = x · weightᵀ + bias, over weights that are packed once at load; linear_group: several of them at once.
// embedding: rows of the same packed form, so tied embeddings need one copy.
// PackedLinear is immutable after pack() and may be read by many threads; the functions themselves use the pool, so one
// call at a time.
//
// 1. Each output element depends on its own row of x and on nothing else of the call (rows, threads, position in the
//    batch), plus the bias at the end.
//    Float weights: one fp32 multiply-add chain over k = 0 … in_features − 1 that starts at 0.
//    bf16 weights with bf16 activations: x is rounded to bf16; the same chain, of each pair of k the odd one first, or
//    with AMX, for each 32 k, a chain of the even and one of the odd ones, whose sum is added.
//    int8: x is rounded to int8, a row with a scale of its own; the sum of products is exact; out = sum · scale of the
//    feature · scale of the row.
//    w4a8: as int8, over the whole numbers within ±127 that four bits of a weight and the scale and zero of its group of
//    kInt4Group k mean (after QServe, Lin et al. 2024).
//    Blocks (core/block_format.h): as float weights, of the fp32 numbers that they mean; or, where x is rounded to int8
//    by blocks (has_int8_x), exact sums of products of each part of k, 16 or 32, times its scales, added in fp32 in the
//    order of k (linear_blocks_int8.cpp): the same bytes on every instruction set.
//    int4: x stays fp32; one chain for each group of kInt4Group k; sum = sum + scale of the group · chain, in order.
// 2. Float weights keep their stored dtype; arithmetic is fp32. Parts of different dtypes are packed as fp32. Blocks
//    stay blocks, panel by panel: a panel that parts of several formats share is fp32.
// 3. Padding (out_features up to a multiple of kPanelWidth) is zero and never reaches an output.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "core/activation.h"
#include "core/tensor_view.h"
#include "core/types.h"
#include "kernels/cpu/aligned_buffer.h"

namespace llmb::cpu {

// The format of a PackedLinear's weights.
enum class PackedFormat : uint8_t { kF32, kF16, kBF16, kInt8, kInt4, kW4A8, kBlocks };

class PackedLinear {
 public:
  // Output features of one panel. A panel holds, for each k in turn, the weights of kPanelWidth output features, with
  // neighbouring k interleaved in words of 32 bits (layouts in linear_pack.cpp).
  static constexpr int64_t kPanelWidth = 64;
  static constexpr int64_t kInt4Group = 32;  // k of one output feature that share a scale, with int4 and w4a8
  // More than this is not quantised to int8 or w4a8: the sums of products would not fit 32 bits.
  static constexpr int64_t kMaxInt8Features = 65536;

  // A matrix of the rows of `parts` stacked in order; `biases` is empty or has one vector for each part (rows == 1).
  // Weights that are not finite are quantised to what makes their output feature NaN. activations: kBF16: products over
  // weights that stay bf16 round x; kI8: products over blocks round x to int8 by blocks, others do not.
  // REQUIRES: equal cols >= 1, rows >= 0; where a part is stored in blocks: Quantization::kNone, activations not kBF16.
  // Throws std::bad_alloc.
  static PackedLinear pack(std::span<const TensorView> parts, std::span<const TensorView> biases, ThreadPool& pool,
                           Quantization quantization = Quantization::kNone, DType activations = DType::kF32);

  // Columns [first, first + count) of a matrix without biases, in int8, with the scales of its whole rows. REQUIRES: no
  // blocks, at most kMaxInt8Features columns in all.
  static PackedLinear pack_int8_columns(std::span<const TensorView> parts, int64_t first, int64_t count,
                                        ThreadPool& pool);

  // The same of bytes that an earlier pack() made, of which `next` gives the next so many: weights, scales, sums, bias.
  // The data of `parts` and `biases` is not read.
  using NextBytes = std::function<AlignedBuffer(int64_t size_bytes)>;
  static PackedLinear from_packed(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                  Quantization quantization, DType activations, const NextBytes& next);
  std::array<std::span<const uint8_t>, 4> packed_bytes() const;  // in that order

  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }
  int64_t num_panels() const { return ceil_div(out_features_, kPanelWidth); }
  int64_t resident_bytes() const {
    return weights_.size_bytes() + scales_.size_bytes() + sums_.size_bytes() + bias_.size_bytes();
  }
  PackedFormat format() const { return format_; }
  bool rounds_x() const { return rounds_x_; }  // to bf16
  // x is rounded to int8, a row with a scale of its own.
  bool has_int8_rows() const { return format_ == PackedFormat::kInt8 || format_ == PackedFormat::kW4A8; }
  bool has_int8_x() const { return has_int8_x_; }       // kBlocks: x is rounded to int8 by blocks
  int64_t panel_bytes() const { return panel_bytes_; }  // 0: panels of several sizes
  // The blocks of panel p of format kBlocks; kNone: it is fp32.
  BlockFormat panel_blocks(int64_t p) const { return panels_[p].blocks; }
  // Whether a panel has blocks of so many numbers, 32 or 256.
  bool has_blocks_of(int64_t size) const { return size == kMaxBlockSize ? has_large_blocks_ : has_small_blocks_; }

  // Panel p, from output feature p * kPanelWidth on.
  const uint8_t* panel(int64_t p) const {
    return weights_.data() + (panels_.empty() ? p * panel_bytes_ : panels_[p].begin);
  }
  // nullptr without bias.
  const float* bias() const { return bias_.empty() ? nullptr : reinterpret_cast<const float*>(bias_.data()); }
  // Scales of weights with has_int8_rows(), one for each output feature, padded to whole panels.
  const float* scales() const { return reinterpret_cast<const float*>(scales_.data()); }
  const int32_t* sums() const { return reinterpret_cast<const int32_t*>(sums_.data()); }  // of the weights over k

 private:
  // With memory from `next`, nothing in it.
  static PackedLinear make(std::span<const TensorView> parts, std::span<const TensorView> biases,
                           Quantization quantization, DType activations, const NextBytes& next);
  void pack_panels(std::span<const TensorView> parts, int64_t first_column, ThreadPool& pool);
  struct Panel {
    BlockFormat blocks;
    int64_t begin;  // byte of weights_
  };
  void find_panels(std::span<const TensorView> parts);
  int64_t bytes_of(int64_t p) const { return panels_.empty() ? panel_bytes_ : panels_[p + 1].begin - panels_[p].begin; }

  PackedFormat format_ = PackedFormat::kF32;
  bool rounds_x_ = false, has_int8_x_ = false;
  bool has_small_blocks_ = false, has_large_blocks_ = false;
  int64_t out_features_ = 0, in_features_ = 0;
  int64_t panel_bytes_ = 0;
  std::vector<Panel> panels_;  // of format kBlocks, and their end
  AlignedBuffer weights_;      // panel after panel
  AlignedBuffer scales_;       // [num_panels * kPanelWidth] fp32, or empty
  AlignedBuffer sums_;         // [num_panels * kPanelWidth] int32, or empty
  AlignedBuffer bias_;         // [num_panels * kPanelWidth] fp32, or empty
};

struct LoraWork;  // lora.h

// Whether products of bf16 by bf16 have a unit of their own in the chosen arithmetic (arithmetic.h).
bool has_fast_bf16();

void linear(const PackedLinear& weight,  // [out_features, in_features]
            const float* x,              // [rows, in_features]
            int64_t rows,
            float* out,  // [rows, out_features]
            ThreadPool& pool,
            const LoraWork* lora = nullptr);  // lora_expand() adds it to out; it is of these rows

// Whether a product's outputs, gate first, can go through the activation as they are made: the halves of a gated one
// must be whole panels.
bool can_activate(const PackedLinear& weight, const ActivationSpec& spec);

// As linear and activate (activation.h) in turn, without the way through memory. REQUIRES: can_activate().
void linear_activate(const PackedLinear& weight,  // [2 · intermediate or intermediate, in_features]
                     const ActivationSpec& spec,
                     const float* x,  // [rows, in_features]
                     int64_t rows,
                     float* out,  // [rows, intermediate]
                     ThreadPool& pool,
                     const LoraWork* lora = nullptr);  // as linear's, before the activation

// One product of a group: rows of x by a weight of its own.
struct LinearCall {
  const PackedLinear* weight;
  const float* x;  // [rows, in_features]
  int64_t rows;
  float* out;                                  // [rows, out_features]
  const ActivationSpec* activation = nullptr;  // out is what linear_activate makes
  const LoraWork* lora = nullptr;              // linear's
  int64_t lora_row = 0;                        // of its rows, the one that x begins with
};
void linear_group(std::span<const LinearCall> calls, ThreadPool& pool);

// out[i] = table[tokens[i]]. REQUIRES: 0 <= tokens[i] < out_features.
void embedding(const PackedLinear& table,  // [vocab_size, hidden_size]
               const TokenId* tokens,      // [num_tokens]
               int64_t num_tokens,
               float* out,  // [num_tokens, hidden_size]
               ThreadPool& pool);

// out[i] += table[rows[i]]. REQUIRES: 0 <= rows[i] < out_features.
void add_embedding(const PackedLinear& table,  // [any, hidden_size]
                   const int32_t* rows,        // [num_rows]
                   int64_t num_rows,
                   float* out,  // [num_rows, hidden_size]  in and out
                   ThreadPool& pool);

}  // namespace llmb::cpu
