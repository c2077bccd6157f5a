// Small models for tests: random weights of any shape, written to and read from Hugging Face directories by code that
// shares nothing with src/model.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/model_config.h"
#include "tests/support/process.h"  // read_file, write_file

namespace llmb::test {

struct TestTensor {
  std::vector<int64_t> shape;
  std::vector<double> values;  // exactly what is stored
};
using TestTensors = std::map<std::string, TestTensor>;

// A config that every field of is set: 2 layers, hidden 32, 4 heads over 2 KV heads, vocabulary 96, 128 positions,
// fp32.
ModelConfig tiny_config();

// Weights large enough that attention is peaked and tokens differ, rounded to config.dtype.
TestTensors random_tensors(const ModelConfig& config, uint64_t seed);

// Writes config.json and model.safetensors, or num_shards shards and their index.
void write_model(const std::string& dir, const ModelConfig& config, const TestTensors& tensors, int num_shards = 1);

// One file's bytes.
std::string safetensors_bytes(const TestTensors& tensors, DType dtype);

// Every tensor of a directory that write_model or Hugging Face wrote. Throws on anything unexpected.
TestTensors read_tensors(const std::string& dir);

}  // namespace llmb::test
