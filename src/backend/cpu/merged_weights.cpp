#include "backend/cpu/merged_weights.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/float_formats.h"

namespace llmb {

namespace {

constexpr int64_t kRows = 64;  // that are unpacked at once

// The columns of a module's A that are used, and its B by the columns of the product.
struct Factors {
  std::vector<float> a, b;  // [rank, in_features], [columns, rank]
};

Factors read_factors(const LoraModule& module) {
  Factors factors;
  const int64_t in = module.in_features();
  factors.a.resize(static_cast<size_t>(module.a.rows * in));
  factors.b.resize(static_cast<size_t>(module.num_columns() * module.b.cols));
  std::vector<float> row(static_cast<size_t>(module.a.cols));
  for (int64_t r = 0; r < module.a.rows; ++r) {
    read_floats(module.a, r, row.data());
    std::copy_n(row.data() + module.a_columns.begin, in, factors.a.data() + r * in);
  }
  for (int64_t c = 0; c < module.num_columns(); ++c)
    read_floats(module.b, module.row_of_column(c), factors.b.data() + c * module.b.cols);
  return factors;
}

void add_product(const LoraModule& module, const Factors& factors, int64_t column, float* row) {
  const int64_t rank = module.a.rows, in = module.in_features();
  const float* const b = factors.b.data() + column * rank;
  for (int64_t r = 0; r < rank; ++r) {
    const float factor = module.scale * b[r];
    const float* const a = factors.a.data() + r * in;
    for (int64_t k = 0; k < in; ++k) row[k] += factor * a[k];
  }
}

DType dtype_of(cpu::PackedFormat format) {
  return format == cpu::PackedFormat::kBF16  ? DType::kBF16
         : format == cpu::PackedFormat::kF16 ? DType::kF16
                                             : DType::kF32;
}

void store_row(const float* row, int64_t count, DType dtype, uint8_t* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, row, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* const halves = reinterpret_cast<uint16_t*>(to);
  for (int64_t k = 0; k < count; ++k) halves[k] = dtype == DType::kBF16 ? f32_to_bf16(row[k]) : f32_to_f16(row[k]);
}

}  // namespace

bool can_merge(const cpu::PackedLinear& weight) {
  return weight.format() == cpu::PackedFormat::kF32 || weight.format() == cpu::PackedFormat::kF16 ||
         weight.format() == cpu::PackedFormat::kBF16;
}

cpu::PackedLinear merged_weight(const cpu::PackedLinear& weight, std::span<const LoraModule> modules, DType activations,
                                ThreadPool& pool) {
  LLMB_CHECK(can_merge(weight));
  const int64_t out = weight.out_features(), in = weight.in_features();
  const DType dtype = dtype_of(weight.format());
  std::vector<Factors> factors;
  for (const LoraModule& module : modules) factors.push_back(read_factors(module));
  cpu::AlignedBuffer merged(out * in * dtype_bytes(dtype));
  std::vector<float> rows(static_cast<size_t>(kRows * in));
  for (int64_t first = 0; first < out; first += kRows) {
    TokenId ids[kRows];
    std::iota(ids, ids + kRows, static_cast<TokenId>(first));
    const int64_t count = std::min(kRows, out - first);
    cpu::embedding(weight, ids, count, rows.data(), pool);
    for (int64_t i = 0; i < count; ++i) {
      float* const row = rows.data() + i * in;
      for (size_t m = 0; m < modules.size(); ++m)
        if (const int64_t column = first + i - modules[m].out_column; column >= 0 && column < modules[m].num_columns())
          add_product(modules[m], factors[m], column, row);
      store_row(row, in, dtype, merged.data() + (first + i) * in * dtype_bytes(dtype));
    }
  }
  const TensorView view{merged.data(), dtype, out, in}, bias{weight.bias(), DType::kF32, 1, out};
  return cpu::PackedLinear::pack({&view, 1}, {&bias, weight.bias() != nullptr ? size_t{1} : size_t{0}}, pool,
                                 Quantization::kNone, activations);
}

}  // namespace llmb
