// Adapters as the CPU's kernels read them: the file's values in their places, and memory that does not begin at the same
// sets of a cache.
#include "backend/cpu/packed_adapter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "model/config_loader.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {
namespace {

constexpr int64_t kRank = 7, kLine = 64;  // ranks: four, two and one side by side

// bf16 numbers; neighbours differ.
uint16_t value_at(size_t matrix, int64_t i) { return static_cast<uint16_t>(0x3800 + (matrix * 499 + i * 37) % 1021); }

uint16_t half_at(const uint8_t* from, int64_t index) {
  uint16_t half = 0;
  std::memcpy(&half, from + 2 * index, 2);
  return half;
}

// For q_proj, v_proj and down_proj of layer 0 of Qwen2.5-0.5B's shape.
LoraAdapter write_adapter(const TempDir& dir, const ModelConfig& config) {
  std::ofstream(dir / "adapter_config.json") << R"({"peft_type": "LORA", "r": 7, "lora_alpha": 7, "bias": "none"})";
  std::vector<RawTensor> tensors;
  const auto add = [&](const std::string& name, int64_t rows, int64_t cols) {
    std::vector<uint16_t> values;
    for (int64_t i = 0; i < rows * cols; ++i) values.push_back(value_at(tensors.size(), i));
    tensors.push_back({"base_model.model.model.layers.0." + name + ".weight", "BF16", {rows, cols}, bytes_of(values)});
  };
  add("self_attn.q_proj.lora_A", kRank, 896), add("self_attn.q_proj.lora_B", 896, kRank);
  add("self_attn.v_proj.lora_A", kRank, 896), add("self_attn.v_proj.lora_B", 128, kRank);
  add("mlp.down_proj.lora_A", kRank, 4864), add("mlp.down_proj.lora_B", 896, kRank);
  std::ofstream(dir / "adapter_model.safetensors", std::ios::binary) << raw_safetensors(tensors);
  auto adapter = LoraAdapter::open(dir.path(), config);
  REQUIRE_MESSAGE(adapter.ok(), adapter.status().message());
  return std::move(adapter).value();
}

TEST_CASE("packed adapters hold the file's values wherever their memory begins, and any number begins evenly spread") {
  const ModelConfig config = load_model_config(source_dir() + "/data/shapes/qwen2.5-0.5b").value();
  const TempDir dir;
  const LoraAdapter adapter = write_adapter(dir, config);
  const MergeBase base;
  const CpuAdapterPacker packer(config.num_hidden_layers, 0, base, std::nullopt);
  const int64_t num_bytes = packer.num_bytes(adapter);
  std::vector<int64_t> begins;
  for (int i = 0; i < 64; ++i) {
    const auto packed = std::static_pointer_cast<const CpuPackedAdapter>(packer.pack(adapter));
    CHECK(packed->memory.size_bytes() <= num_bytes);
    REQUIRE(packed->matrices.size() == 3);
    const uint8_t *const memory = packed->memory.data(), *const end = memory + packed->memory.size_bytes();
    begins.push_back(packed->matrices[0].a - memory);
    CHECK(begins.back() % kLine == 0);
    int64_t num_wrong = 0;
    for (size_t at = 0; at < 3; ++at) {
      const cpu::LoraMatrices& m = packed->matrices[at];
      REQUIRE((m.rank == kRank && m.is_bf16 && m.b + m.b_bytes() <= end));
      for (int64_t r = 0; r < kRank; ++r) {
        for (int64_t k = 0; k < m.in_features; ++k)
          num_wrong += half_at(m.a, m.a_index(r, k - k % 16) + k % 16) != value_at(2 * at, r * m.in_features + k);
        for (int64_t c = 0; c < m.num_columns; ++c)
          num_wrong += half_at(m.b, m.b_index(r, c)) != value_at(2 * at + 1, c * kRank + r);
      }
    }
    CHECK(num_wrong == 0);
  }
  std::sort(begins.begin(), begins.end());
  int64_t largest_gap = begins.front();
  for (size_t i = 1; i < begins.size(); ++i) largest_gap = std::max(largest_gap, begins[i] - begins[i - 1]);
  CHECK(begins.back() >= num_bytes / 20);  // nearly a 16th
  CHECK(largest_gap <= 2 * begins.back() / 64 + 2 * kLine);
}

}  // namespace
}  // namespace llmb::test
