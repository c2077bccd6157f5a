#include "kernels/cpu/lora_embedding.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "base/float_formats.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::random_normal;

void store(float value, bool is_bf16, int64_t index, uint8_t* to) {
  const uint16_t half = f32_to_bf16(value);
  if (is_bf16) std::memcpy(to + 2 * index, &half, 2);
  else std::memcpy(to + 4 * index, &value, 4);
}

}  // namespace

TEST_CASE(
    "lora_embedding: rows of tables are looked up by token, two adapters of different ranks, and other rows stay") {
  const int64_t tokens = 23, width = 37, num_rows = 6;
  const TokenId ids[] = {22, 7, 0, 7, 1, 22};
  const std::vector<int32_t> rows = {0, 1, 3, 5};  // of the first adapter, and 5 of the second
  for (const bool is_bf16 : {false, true}) {
    CAPTURE(is_bf16);
    std::vector<float> a[2], b[2];
    std::vector<uint8_t> table[2], panels[2];
    std::vector<LoraMatrices> matrices[2];
    for (int i = 0; i < 2; ++i) {
      const int64_t rank = i == 0 ? 3 : 17;
      LoraMatrices m{is_bf16, rank, tokens, 0, width, 0.75f, nullptr, nullptr};
      a[i] = random_normal(tokens * rank, 10 + i), b[i] = random_normal(width * rank, 20 + i);
      for (auto* list : {&a[i], &b[i]})
        for (float& value : *list)
          if (is_bf16) value = bf16_to_f32(f32_to_bf16(value));
      table[i].resize(static_cast<size_t>(lora_table_bytes(m)));
      panels[i].resize(static_cast<size_t>(m.b_bytes()));
      for (int64_t at = 0; at < tokens * rank; ++at) store(a[i][at], is_bf16, at, table[i].data());
      for (int64_t r = 0; r < rank; ++r)
        for (int64_t c = 0; c < width; ++c) store(b[i][c * rank + r], is_bf16, m.b_index(r, c), panels[i].data());
      m.a = table[i].data(), m.b = panels[i].data();
      matrices[i] = {m};
    }
    LoraWork work;
    work.segments = {{matrices[0], 0, 3}, {matrices[1], 3, 4}};
    work.row_ids = rows.data();
    for_each_simd_target([&](const std::string& target) {
      CAPTURE(target);
      std::vector<float> out(num_rows * width, 0.25f);
      lora_look_up(ids, &work);
      lora_expand(work, 0, num_rows, 0, width, out.data(), width);
      for (int64_t row = 0; row < num_rows; ++row) {
        const int i = row == 5 ? 1 : 0;
        const int64_t rank = row == 2 || row == 4 ? 0 : matrices[i][0].rank;
        for (int64_t c = 0; c < width; ++c) {
          double expected = 0.25, size = 0.25;
          for (int64_t r = 0; r < rank; ++r) {
            const double term = 0.75 * b[i][c * rank + r] * a[i][ids[row] * rank + r];
            expected += term, size += std::fabs(term);
          }
          CHECK(std::fabs(out[row * width + c] - expected) <= 1e-6 * size);
        }
      }
    });
  }
}

}  // namespace llmb::cpu
