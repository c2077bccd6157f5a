// LoRA adapters on the CUDA backend: PEFT's answers (tools/golden/make_golden_adapters.py), whatever runs beside them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_pages.h"
#include "backend/cuda/packed_for_device.h"
#include "model/adapter_library.h"
#include "model/config_loader.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/source_dir.h"

namespace llmb::test {
namespace {

using Json = nlohmann::json;

struct Adapted {
  std::string model_dir;
  ModelConfig config;
  std::shared_ptr<AdapterLibrary> library;
  std::vector<GenerateRequest> requests;  // short golden lines of all adapters, each also without one
  std::vector<Json> lines;                // null: without
};

Adapted adapted_model(const std::string& name) {
  const std::string fixtures = source_dir() + "/data/fixtures/", folder = fixtures + "adapters/" + name;
  Adapted model;
  model.model_dir = fixtures + "models/" + name;
  model.config = load_model_config(model.model_dir).value();
  model.library = std::make_shared<AdapterLibrary>(adapters_below(folder).value(), model.config, model.model_dir);
  for (int32_t id = 0; id < model.library->size(); ++id) {
    REQUIRE(model.library->prepare(id).ok());
    for (const Json& line : read_json_lines(folder + "/" + model.library->name(id) + "/golden.jsonl")) {
      GenerateRequest with;
      with.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
      if (with.prompt.size() > 7) continue;
      with.num_tokens = 4;
      with.sampling.num_logprobs = 3;
      with.adapter = id;
      GenerateRequest without = with;
      without.adapter = -1;
      without.num_tokens = 2;
      model.requests.insert(model.requests.end(), {with, without});
      model.lines.push_back(line);
      model.lines.emplace_back();
    }
  }
  return model;
}

std::unique_ptr<Backend> load(const Adapted& model, std::unique_ptr<Backend> backend, DType dtype, int64_t adapter_bytes) {
  LoadOptions options;
  options.model_dir = model.model_dir;
  options.block_size = 8;
  options.num_blocks_override = 64;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 32;
  options.max_model_len = std::min(model.config.max_position_embeddings, 64);
  options.num_threads = 1;
  options.dtype = dtype;
  options.kv_cache_dtype = dtype;
  options.cuda.deterministic = true;
  options.adapters = model.library;
  options.adapter_bytes = adapter_bytes;
  return loaded(std::move(backend), model.config, options);
}

constexpr int64_t kRoom = int64_t{16} << 20;

TEST_CASE("tokens equal PEFT's and log probabilities the CPU's, adapters mixed in steps with each other and with none") {
  for (const char* name : {"llama-gqa", "phi3", "gpt_neox"}) {
    CAPTURE(name);
    const Adapted model = adapted_model(name);
    const auto cpu = load(model, make_cpu_backend(), DType::kF32, kRoom);
    const auto expected = generate_one_by_one(*cpu, model.requests, 32);
    const auto answers = generate_at_random(*load(model, make_cuda_backend(0), DType::kF32, kRoom), model.requests, 30, 6, 1);
    for (size_t i = 0; i < answers.size(); ++i) {
      CAPTURE(i);
      CHECK(answers[i].tokens == expected[i].tokens);
      for (size_t k = 0; k < answers[i].logprobs.size(); ++k)
        CHECK(std::fabs(answers[i].logprobs[k] - expected[i].logprobs[k]) <= 1e-4);
      if (model.lines[i].is_null()) continue;
      auto golden = model.lines[i].at("token_ids").get<std::vector<TokenId>>();
      golden.resize(answers[i].tokens.size());
      CHECK(answers[i].tokens == golden);
    }
  }
}

TEST_CASE("the bits of a row do not depend on what runs beside it, nor on how many adapters the device holds") {
  const Adapted model = adapted_model("llama-gqa");
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto expected = generate_one_by_one(*load(model, make_cuda_backend(0), dtype, kRoom), model.requests, 32);
    for (const int64_t pages : {0, 3, 6}) {  // none, for one of the largest, for some
      CAPTURE(pages);
      const auto few_kept = load(model, make_cuda_backend(0), dtype, pages * adapter_page_bytes(model.config, dtype));
      CHECK((expected == generate_at_random(*few_kept, model.requests, 23, 5, 2)));
    }
  }
}

TEST_CASE("pages: adapters of any size fit whatever was taken and given back before, as long as so many pages are free") {
  std::vector<uint8_t> memory(100);
  DevicePages pages(memory.data(), 10, 10);
  CHECK(pages.address(9) == memory.data() + 90);
  std::vector<std::vector<int32_t>> taken;
  for (const int32_t count : {1, 3, 1, 2, 1, 2}) taken.push_back(pages.take(count).value());
  CHECK(pages.num_free() == 0);
  CHECK_FALSE(pages.take(1));
  for (const size_t i : {0, 2, 4}) pages.give_back(taken[i]);  // with holes between
  CHECK_FALSE(pages.take(4));
  CHECK(pages.num_free() == 3);
  std::vector<int32_t> all = pages.take(3).value();
  for (const size_t i : {1, 3, 5}) all.insert(all.end(), taken[i].begin(), taken[i].end());
  std::sort(all.begin(), all.end());
  for (int32_t page = 0; page < 10; ++page) CHECK(all[static_cast<size_t>(page)] == page);
  pages.give_back({4});
  CHECK_THROWS(pages.give_back({4}));
}

TEST_CASE("pages: an adapter's rows fill its pages, whatever ranks its modules have") {
  const Adapted model = adapted_model("llama-gqa");
  const PackerForDevice packer(model.config, DType::kBF16);
  for (int32_t id = 0; id < model.library->size(); ++id) {
    const auto adapter = model.library->open(id);
    REQUIRE(adapter.ok());
    const int64_t page = adapter_page_bytes(model.config, DType::kBF16), bytes = 2 * adapter->num_parameters();
    const int64_t widest_row = 2 * 256;
    CAPTURE(model.library->name(id));
    const int64_t modules = adapter->num_modules();
    CHECK(packer.num_bytes(*adapter) <= (bytes + 32 * modules) / (page - widest_row) * page + page);
    const auto packed = std::static_pointer_cast<const PackedForDevice>(packer.pack(*adapter));
    CHECK(static_cast<int64_t>(packed->bytes.size()) == packer.num_bytes(*adapter));
  }
}

}  // namespace
}  // namespace llmb::test
