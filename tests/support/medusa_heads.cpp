#include "tests/support/medusa_heads.h"

#include <utility>
#include <vector>

#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {

namespace {

TestTensor filled(std::vector<int64_t> shape, double value) {
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  return {std::move(shape), std::vector<double>(size, value)};
}

// block: of all its weights and biases.
void write_heads(const std::string& dir, int32_t num_heads, const std::string& prefix, double block,
                 const TestTensor& lm_head) {
  const int64_t hidden = lm_head.shape[1];
  TestTensors tensors;
  for (int32_t head = 0; head < num_heads; ++head) {
    const std::string name = prefix + std::to_string(head) + ".";
    tensors[name + "0.linear.weight"] = filled({hidden, hidden}, block);
    tensors[name + "0.linear.bias"] = filled({hidden}, block);
    tensors[name + "1.weight"] = lm_head;
  }
  write_file(dir + "/medusa_lm_head.safetensors", safetensors_bytes(tensors, DType::kBF16));
  write_file(dir + "/config.json", R"({"medusa_num_heads": )" + std::to_string(num_heads) + "}");
}

}  // namespace

void write_medusa_heads(const std::string& dir, int32_t num_heads, int64_t hidden_size, int64_t vocab_size,
                        const std::string& prefix) {
  write_heads(dir, num_heads, prefix, 0.25, filled({vocab_size, hidden_size}, 1));
}

void write_heads_of_model(const std::string& dir, const std::string& model_dir) {
  const TestTensors model = read_tensors(model_dir);
  const auto own = model.find("lm_head.weight");
  write_heads(dir, 3, "", 0, own != model.end() ? own->second : model.at("model.embed_tokens.weight"));
}

const std::string& bundled_medusa_heads() {
  static const TempDir dir;
  static const bool is_written = [] {
    write_heads_of_model(dir.path(), source_dir() + "/data/model");
    return true;
  }();
  static_cast<void>(is_written);
  return dir.path();
}

}  // namespace llmb::test
