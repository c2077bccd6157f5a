// LoRA adapters on the CUDA backend: PEFT's answers (tools/golden/make_golden_adapters.py), whatever runs beside them.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_pages.h"
#include "backend/cuda/packed_for_device.h"
#include "tests/support/short_adapted_requests.h"

namespace llmb::test {
namespace {

std::unique_ptr<Backend> load(const std::string& name, const AdaptedModel& model, DType dtype, int64_t adapter_bytes) {
  return loaded(make_cuda_backend(0), model.config, short_adapted_options(name, model, dtype, adapter_bytes));
}

TEST_CASE("tokens equal PEFT's and log probabilities the CPU's, adapters mixed in steps with each other and with none") {
  for (const char* name : {"llama-gqa", "phi3", "gpt_neox", "gemma4", "gemma4-experts", "gemma4-keys", "qwen3_5-text",
                           "qwen3_next", "gpt_oss", "lfm2", "granitemoehybrid", "nemotron_h"}) {
    CAPTURE(name);
    const AdaptedModel model = short_adapted_requests(name);
    const LoadOptions options = short_adapted_options(name, model, DType::kF32, kRoomForAdapters);
    const auto cpu = loaded(make_cpu_backend(), model.config, options);
    const auto expected = generate_one_by_one(*cpu, model.requests, 32);
    const auto gpu = load(name, model, DType::kF32, kRoomForAdapters);
    check_adapted_answers(model, generate_at_random(*gpu, model.requests, 30, 6, 1), expected);
  }
}

TEST_CASE("the bits of a row do not depend on what runs beside it, nor on how many adapters the device holds") {
  for (const std::string name : {"llama-gqa", "gpt_oss"}) {
    CAPTURE(name);
    const AdaptedModel model = short_adapted_requests(name);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto expected = generate_one_by_one(*load(name, model, dtype, kRoomForAdapters), model.requests, 32);
      for (const int64_t pages : {0, 3, 6}) {  // none, for one of the largest, for some
        CAPTURE(pages);
        const auto few_kept = load(name, model, dtype, pages * adapter_page_bytes(model.config, dtype));
        CHECK((expected == generate_at_random(*few_kept, model.requests, 23, 5, 2)));
      }
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
  const AdaptedModel model = short_adapted_requests("llama-gqa");
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
