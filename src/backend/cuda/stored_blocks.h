// Matrices that a checkpoint holds in blocks (core/block_format.h): whether the device keeps them, and their numbers
// where it does not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/cuda_weights.h"
#include "core/tensor_view.h"
#include "core/types.h"
#include "model/quantization_config.h"
#include "model/weight_source.h"

namespace llmb {

// A form of units where the stacked parts are blocks of integers with scales in `dtype`, kMxfp4 where they are MXFP4
// with scales up to 2, as all that quantisers make, kSparse24 where they are 2:4 sparse numbers, and for which there are
// kernels; else kNumbers. Indexed blocks have one where all parts have the same groups, of multiples of 32 columns each.
CudaForm form_of_blocks(std::span<const TensorView> parts, DType dtype);

// How the matrices of a checkpoint are read, of which `stored` (stays_packed_on_gpu()), or e4m3, stay what they are.
WeightForm form_to_read(StoredMethod stored, bool keeps_fp8, DType dtype);

// The columns of indexed blocks group by group, those of a group in turn, and behind them, of every 32 of these, the
// group. Empty: blocks are not indexed, or a group's columns are no multiple of 32.
std::vector<int32_t> column_order(const TensorView& matrix);  // [cols + cols / 32]

// Whether the matrix is blocks of e4m3 with one scale a row, all of them numbers.
bool has_fp8_rows(const TensorView& matrix);

// The matrix as numbers of its dtype, which hold them exactly; in `memory` where they are not there yet.
TensorView as_numbers(const TensorView& matrix, std::vector<uint8_t>* memory);

}  // namespace llmb
