// 2:4 sparse checkpoints on a GPU: which matrices stay sparse, what they take, and answers beside transformers', the
// CPU's and those of the same numbers stored densely, whatever the schedule.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/stored_blocks.h"
#include "base/float_formats.h"
#include "base/thread_pool.h"
#include "formats/safetensors.h"
#include "kernels/cuda/linear_sparse24.h"
#include "model/config_loader.h"
#include "model/weight_files.h"
#include "tests/support/block_weights.h"
#include "tests/support/check_ok.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/source_dir.h"
#include "tests/support/stored_model.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

TEST_CASE("sparse numbers stay sparse beside activations of 16 bits, where all parts are") {
  const BlockWeights bf16(BlockFormat::kSparse24BF16, 6, 64, 1), f16(BlockFormat::kSparse24F16, 2, 64, 1);
  const std::vector<float> floats(64 * 4, 1.0f);
  const TensorView plain{floats.data(), DType::kF32, 4, 64};
  const auto form = [](std::initializer_list<TensorView> parts, DType dtype) {
    return form_of_blocks({parts.begin(), parts.size()}, dtype);
  };
  CHECK(form({bf16.view}, DType::kBF16) == CudaForm::kSparse24);
  CHECK(form({bf16.view}, DType::kF16) == CudaForm::kSparse24);
  CHECK(form({bf16.view, f16.view}, DType::kF16) == CudaForm::kSparse24);
  CHECK(form({bf16.view}, DType::kF32) == CudaForm::kNumbers);
  CHECK(form({bf16.view, plain}, DType::kBF16) == CudaForm::kNumbers);
  CHECK(form({plain, bf16.view}, DType::kBF16) == CudaForm::kNumbers);
}

struct Golden {
  Golden(const std::string& name, DType dtype)
      : dir(source_dir() + "/data/fixtures/quantized/" + name),
        config(load_model_config(dir).value()),
        options(stored_model_options(dir, dtype)) {
    for (const auto& line : read_json_lines(dir + "/golden.jsonl")) {
      GenerateRequest& r = requests.emplace_back();
      r.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
      tokens.push_back(line.at("token_ids").get<std::vector<TokenId>>());
      logprobs.push_back(line.at("logprobs").get<std::vector<double>>());
      r.num_tokens = static_cast<int32_t>(tokens.back().size());
      r.sampling.num_logprobs = 0;
    }
    REQUIRE(requests.size() >= 3);
  }
  std::string dir;
  ModelConfig config;
  LoadOptions options;
  std::vector<GenerateRequest> requests;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<double>> logprobs;
};

// The checkpoint with its numbers stored densely.
std::string dense_of(const Golden& m, const TempDir& dir) {
  const auto files = WeightFiles::open(m.dir, m.config);
  const auto stored = Checkpoint::open(m.dir);
  REQUIRE((files.ok() && stored.ok()));
  ThreadPool pool(1);
  const auto source = files->make_source(pool);
  const std::string suffix = ".compressed";
  std::vector<RawTensor> raw;
  for (const std::string& name : stored->names()) {
    const StoredTensor t = *stored->find(name);
    std::vector<int64_t> shape(t.shape.begin(), t.shape.end());
    if (name.ends_with(suffix)) {
      shape[1] *= 2;
      const std::string dense = name.substr(0, name.size() - suffix.size()) + ".weight";
      const auto view = source->tensor(dense, shape);
      REQUIRE(view.ok());
      raw.push_back({dense, std::string(t.dtype), shape,
                     std::string(static_cast<const char*>(view->data), static_cast<size_t>(shape[0] * shape[1] * 2))});
    } else if (name.ends_with("weight")) {
      raw.push_back({name, std::string(t.dtype), shape,
                     std::string(reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes))});
    }
  }
  auto config = nlohmann::json::parse(read_file(m.dir + "/config.json"));
  config.erase("quantization_config");
  write_file(dir / "config.json", config.dump());
  write_file(dir / "model.safetensors", raw_safetensors(raw));
  return dir.path();
}

void check_near(const std::vector<Generated>& a, const std::vector<Generated>& b, double tolerance) {
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(a[i].tokens == b[i].tokens);
    for (size_t k = 0; k < a[i].logprobs.size(); ++k)
      CHECK(std::fabs(a[i].logprobs[k] - b[i].logprobs[k]) <= tolerance);
  }
}

// transformers' answers are in fp32, from which bfloat16 is further away than some of their tokens are from each other.
TEST_CASE(
    "the golden models: transformers' tokens in float16, those of dense numbers, the same bytes in any schedule") {
  for (const char* name : {"sparse24", "sparse24-f16"})
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      CAPTURE(std::string(name));
      CAPTURE(dtype_name(dtype));
      const Golden m(name, dtype);
      const auto gpu = loaded(make_cuda_backend(0), m.config, m.options);
      const auto answers = generate_one_by_one(*gpu, m.requests, 64);
      for (size_t i = 0; dtype == DType::kF16 && i < m.requests.size(); ++i) {
        CAPTURE(i);
        CHECK(answers[i].tokens == m.tokens[i]);
        for (size_t k = 0; k < m.tokens[i].size(); ++k)
          CHECK(std::fabs(answers[i].logprobs[k] - m.logprobs[i][k]) <= 0.02);
      }
      const TempDir dir;
      const std::string dense = dense_of(m, dir);
      const auto as_dense =
          loaded(make_cuda_backend(0), load_model_config(dense).value(), stored_model_options(dense, dtype));
      check_near(answers, generate_one_by_one(*as_dense, m.requests, 64), dtype == DType::kF16 ? 0.01 : 0.05);
      for (const uint64_t seed : {1, 2}) {
        const bool same = generate_at_random(*gpu, m.requests, seed == 1 ? 64 : 7, 8, seed) == answers;
        CHECK(same);
      }
    }
}

// Random weights of which each four neighbours of a row of a projection keep the two that are largest; a step of many
// rows, and requests.
class Pruned {
 public:
  Pruned() : config(tiny_config()) {
    config.hidden_size = 128, config.head_dim = 32, config.intermediate_size = 224;
    config.dtype = DType::kBF16;
    tensors_ = random_tensors(config, 5);
    for (auto& [name, tensor] : tensors_) {
      if (!is_projection(name)) continue;
      for (size_t at = 0; at < tensor.values.size(); at += 4) {
        std::array<size_t, 4> order = {at, at + 1, at + 2, at + 3};
        std::sort(order.begin(), order.end(),
                  [&](size_t a, size_t b) { return std::fabs(tensor.values[a]) < std::fabs(tensor.values[b]); });
        tensor.values[order[0]] = tensor.values[order[1]] = 0;
      }
      num_pruned += static_cast<int64_t>(tensor.values.size());
    }
    for (const int32_t length : {1, 7, 17, 40}) {
      GenerateRequest& r = requests.emplace_back();
      for (int32_t i = 0; i < length; ++i) r.prompt.push_back((11 * i + length) % config.vocab_size);
      r.num_tokens = 5;
      r.sampling.num_logprobs = 0;
    }
  }

  std::string dense(const TempDir& dir) const {
    write_model(dir.path(), config, tensors_);
    return dir.path();
  }
  std::string sparse(const TempDir& dir) const {
    write_model(dir.path(), config, tensors_);
    std::string text = read_file(dir / "config.json");
    text.insert(text.find('{') + 1, R"("quantization_config": {"quant_method": "compressed-tensors", "sparsity_config":
        {"format": "sparse-24-bitmask", "sparsity_structure": "2:4"}},)");
    write_file(dir / "config.json", text);
    std::vector<RawTensor> raw;
    for (const auto& [name, tensor] : tensors_) {
      std::vector<uint16_t> numbers;
      std::vector<uint8_t> bits(tensor.values.size() / 8);
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        if (is_projection(name) && tensor.values[i] == 0) continue;
        numbers.push_back(f32_to_bf16(static_cast<float>(tensor.values[i])));
        if (is_projection(name)) bits[i / 8] |= static_cast<uint8_t>(1 << i % 8);
      }
      if (!is_projection(name)) {
        raw.push_back({name, "BF16", tensor.shape, bytes_of(numbers)});
        continue;
      }
      const std::string stem = name.substr(0, name.size() - std::string(".weight").size());
      REQUIRE(numbers.size() * 2 == tensor.values.size());
      raw.push_back({stem + ".compressed", "BF16", {tensor.shape[0], tensor.shape[1] / 2}, bytes_of(numbers)});
      raw.push_back({stem + ".bitmask", "U8", {tensor.shape[0], tensor.shape[1] / 8}, bytes_of(bits)});
    }
    write_file(dir / "model.safetensors", raw_safetensors(raw));
    return dir.path();
  }

  ModelConfig config;
  int64_t num_pruned = 0;
  std::vector<GenerateRequest> requests;

 private:
  static bool is_projection(const std::string& name) { return name.ends_with("_proj.weight"); }
  TestTensors tensors_;
};

TEST_CASE("a pruned model takes 9 bits a weight, and answers as the same numbers do where they are dense") {
  const Pruned m;
  const TempDir dense_dir, sparse_dir;
  const std::string dense = m.dense(dense_dir), sparse = m.sparse(sparse_dir);
  const ModelConfig config = load_model_config(sparse).value();
  const auto as_sparse = loaded(make_cuda_backend(0), config, stored_model_options(sparse, DType::kBF16));
  const auto as_dense = loaded(make_cuda_backend(0), m.config, stored_model_options(dense, DType::kBF16));
  // qkv, o, gate_up, down: units of 128 features by 64 k, which reach beyond 448 features and 224 k.
  const int64_t units = 2 * (2 * 2 + 1 * 2 + 4 * 2 + 1 * 4);
  CHECK(as_dense->info().weight_bytes - as_sparse->info().weight_bytes == m.num_pruned * 2 - units * 9216);
  CHECK(as_sparse->info().weight_bytes < as_dense->info().weight_bytes);
  const auto answers = generate_one_by_one(*as_sparse, m.requests, 64);
  check_near(answers, generate_one_by_one(*as_dense, m.requests, 64), 0.05);
  for (const uint64_t seed : {1, 2, 3}) {
    const bool same = generate_at_random(*as_sparse, m.requests, seed == 1 ? 64 : 7, 8, seed) == answers;
    CHECK(same);
  }
}

TEST_CASE(
    "other dtypes: float16 of bfloat16's numbers stays sparse, near the CPU's answers; float32 gets dense numbers") {
  const Pruned m;
  const TempDir dense_dir, sparse_dir;
  const std::string dense = m.dense(dense_dir), sparse = m.sparse(sparse_dir);
  const ModelConfig config = load_model_config(sparse).value();
  const auto cpu = loaded(make_cpu_backend(), config, stored_model_options(sparse, DType::kF32));
  const auto of_cpu = generate_one_by_one(*cpu, m.requests, 64);
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    CAPTURE(dtype_name(dtype));
    const auto as_sparse = loaded(make_cuda_backend(0), config, stored_model_options(sparse, dtype));
    const auto as_dense = loaded(make_cuda_backend(0), m.config, stored_model_options(dense, dtype));
    const bool is_less = as_sparse->info().weight_bytes < as_dense->info().weight_bytes;
    CHECK(is_less == (dtype == DType::kF16));
    const auto answers = generate_one_by_one(*as_sparse, m.requests, 64);
    const auto expected = generate_one_by_one(*as_dense, m.requests, 64);
    check_near(answers, expected, 0.01);
    check_near(answers, of_cpu, 0.02);
    const bool same = answers == expected;
    if (dtype == DType::kF32) CHECK(same);
  }
}

// Where rows are many, numbers are written to memory, unless the run is deterministic.
TEST_CASE("a step of more rows than are multiplied as they are") {
  constexpr int32_t kNumSeqs = 8, kLength = 70;
  static_assert(kNumSeqs * kLength > cuda::LinearSparse24::kMaxRows);
  const Pruned m;
  const TempDir dir;
  LoadOptions options = stored_model_options(m.sparse(dir), DType::kBF16);
  options.max_num_batched_tokens = kNumSeqs * kLength;
  const ModelConfig config = load_model_config(options.model_dir).value();
  PlanBuilder builder(options.block_size);
  SampleRow sampling;
  sampling.num_logprobs = 0;
  for (int32_t s = 0; s < kNumSeqs; ++s) {
    std::vector<TokenId> tokens;
    for (int32_t i = 0; i < kLength; ++i) tokens.push_back((7 * i + 13 * s) % config.vocab_size);
    std::vector<BlockId> blocks;
    for (int32_t b = 0; b < ceil_div(kLength, options.block_size); ++b) blocks.push_back(s * 8 + b);
    builder.add(tokens, 0, kLength, blocks, sampling);
  }
  StepOutput outputs[2];
  for (const bool deterministic : {false, true}) {
    options.cuda.deterministic = deterministic;
    const auto gpu = loaded(make_cuda_backend(0), config, options);
    check_ok(gpu->submit(builder.plan()));
    check_ok(gpu->wait(&outputs[deterministic ? 1 : 0]));
  }
  for (int32_t s = 0; s < kNumSeqs; ++s) {
    CHECK(outputs[0].tokens[s] == outputs[1].tokens[s]);
    CHECK(std::fabs(outputs[0].logprobs[s] - outputs[1].logprobs[s]) <= 0.05);
  }
}

}  // namespace
}  // namespace llmb::test
