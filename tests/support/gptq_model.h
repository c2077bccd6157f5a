// A small model of random weights, quantised and stored as GPTQ stores them, for tests of what becomes of the columns'
// order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/float_formats.h"
#include "tests/support/process.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {

struct GptqOptions {
  int bits = 4;
  int64_t group_size = 32;
  bool is_shuffled = true;       // desc_act: a group's columns lie anywhere
  bool k_differs = false;        // k_proj's lie elsewhere than those of q_proj
  bool has_wide_scales = false;  // of fp32, the same values: nothing keeps such integers packed
  int32_t last_group = -1;       // of the last column of every matrix, where it is not negative
};

// The stored tensors of a matrix [rows, cols].
inline std::vector<RawTensor> gptq_tensors(const std::string& stem, const TestTensor& matrix, const GptqOptions& o) {
  const int64_t rows = matrix.shape[0], cols = matrix.shape[1], per_word = 32 / o.bits, count = cols / o.group_size;
  const int32_t top = (1 << o.bits) - 1, middle = 1 << (o.bits - 1);
  std::vector<int32_t> of(static_cast<size_t>(cols));
  for (int64_t col = 0; col < cols; ++col) of[col] = static_cast<int32_t>(col / o.group_size);
  const bool differs = o.k_differs && stem.ends_with("k_proj");
  if (o.is_shuffled) std::shuffle(of.begin(), of.end(), std::mt19937(static_cast<uint32_t>(cols + differs)));
  const auto weight = [&](int64_t row, int64_t col) { return static_cast<float>(matrix.values[row * cols + col]); };
  std::vector<uint32_t> words(static_cast<size_t>(cols / per_word * rows));
  std::vector<uint32_t> zero_words(static_cast<size_t>(count * rows / per_word));
  std::vector<uint16_t> scales;
  std::vector<float> wide_scales;
  for (int64_t g = 0; g < count; ++g)
    for (int64_t row = 0; row < rows; ++row) {
      float largest = 0;
      for (int64_t col = 0; col < cols; ++col)
        if (of[col] == g) largest = std::max(largest, std::fabs(weight(row, col)));
      scales.push_back(f32_to_f16(largest / static_cast<float>(middle - 2)));
      wide_scales.push_back(f16_to_f32(scales.back()));
      const auto zero = static_cast<int32_t>(middle + (row + g) % 3 - 1);
      zero_words[g * (rows / per_word) + row / per_word] |= static_cast<uint32_t>(zero - 1) << row % per_word * o.bits;
      for (int64_t col = 0; col < cols; ++col) {
        if (of[col] != g) continue;
        const auto code = static_cast<int32_t>(std::lround(weight(row, col) / wide_scales.back())) + zero;
        words[col / per_word * rows + row] |= static_cast<uint32_t>(std::clamp(code, 0, top))
                                              << col % per_word * o.bits;
      }
    }
  if (o.last_group >= 0) of.back() = o.last_group;
  const std::string dtype = o.has_wide_scales ? "F32" : "F16";
  return {{stem + ".qweight", "I32", {cols / per_word, rows}, bytes_of(words)},
          {stem + ".qzeros", "I32", {count, rows / per_word}, bytes_of(zero_words)},
          {stem + ".scales", dtype, {count, rows}, o.has_wide_scales ? bytes_of(wide_scales) : bytes_of(scales)},
          {stem + ".g_idx", "I32", {cols}, bytes_of(of)}};
}

// Writes config.json and model.safetensors.
inline void write_gptq_model(const std::string& dir, const GptqOptions& o) {
  ModelConfig config = tiny_config();
  config.hidden_size = 64, config.intermediate_size = 128, config.head_dim = 16;
  const TestTensors tensors = random_tensors(config, 5);
  write_model(dir, config, tensors);
  std::string text = read_file(dir + "/config.json");
  text.insert(text.find('{') + 1, R"("quantization_config": {"quant_method": "gptq", "bits": )" +
                                      std::to_string(o.bits) + R"(, "group_size": )" + std::to_string(o.group_size) +
                                      R"(, "desc_act": )" + (o.is_shuffled ? "true" : "false") + "},");
  write_file(dir + "/config.json", text);
  std::vector<RawTensor> raw;
  for (const auto& [name, tensor] : tensors) {
    if (name.ends_with("_proj.weight")) {
      const auto parts = gptq_tensors(name.substr(0, name.size() - std::string(".weight").size()), tensor, o);
      raw.insert(raw.end(), parts.begin(), parts.end());
      continue;
    }
    const std::vector<float> values(tensor.values.begin(), tensor.values.end());
    raw.push_back({name, "F32", tensor.shape, bytes_of(values)});
  }
  write_file(dir + "/model.safetensors", raw_safetensors(raw));
}

}  // namespace llmb::test
