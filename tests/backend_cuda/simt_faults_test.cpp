// The CUDA backend on failing devices: missing, old or full ones, and any call failing at any time.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/memory_plan.h"
#include "kernels/simt/settings.h"
#include "model/config_loader.h"
#include "tests/support/plan_builder.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Ends with the device as it was.
struct DeviceSettings {
  ~DeviceSettings() {
    simt::clear_failure();
    simt::set_device_bytes(8192 * kMiB);
    simt::set_num_devices(1);
    simt::set_compute_capability(9, 0);
  }
};

LoadOptions dummy_options() {
  LoadOptions options;
  options.load_format = LoadFormat::kDummy;
  options.max_num_seqs = 5;
  options.max_num_batched_tokens = 24;
  options.max_model_len = 64;
  options.num_blocks_override = 40;
  options.num_threads = 1;
  options.dtype = DType::kBF16;
  return options;
}

std::vector<GenerateRequest> requests() {
  std::vector<GenerateRequest> requests(4);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt.assign(1 + 7 * i, static_cast<TokenId>(3 + i));
    requests[i].num_tokens = 6;
    requests[i].sampling.num_logprobs = i == 0 ? -1 : 2;
    requests[i].sampling.temperature = i % 2 == 0 ? 0.0f : 0.7f;
    requests[i].sampling.top_p = i == 3 ? 0.8f : 1.0f;
    requests[i].sampling.rng = {1, i};
  }
  return requests;
}

TEST_CASE("a device that cannot be used is named in one line that says what to do") {
  const DeviceSettings restore;
  const auto message = [] {
    const Status status = make_cuda_backend(0)->load(tiny_config(), dummy_options());
    CHECK(status.code() == StatusCode::kDeviceError);
    CHECK(status.message().find('\n') == std::string::npos);
    CHECK(status.message().find("--device cpu") != std::string::npos);
    return status.message();
  };
  CHECK(has_cuda_device());
  simt::set_num_devices(0);
  CHECK(message().find("no NVIDIA GPU") != std::string::npos);
  CHECK_FALSE(has_cuda_device());
  simt::set_num_devices(1);
  simt::set_compute_capability(7, 5);
  CHECK(message().find("7.5") != std::string::npos);
  simt::set_compute_capability(9, 0);
  simt::fail_call_after(0, cudaErrorInsufficientDriver, true);
  CHECK(message().find("driver") != std::string::npos);
  CHECK(has_cuda_device());
  simt::clear_failure();
  CHECK(make_cuda_backend(3)->load(tiny_config(), dummy_options()).message().find("no GPU 3") != std::string::npos);
}

TEST_CASE("weights or a pool that do not fit are refused") {
  const DeviceSettings restore;
  ModelConfig config = tiny_config();
  simt::set_device_bytes(kMiB / 16);
  CHECK(make_cuda_backend(0)->load(config, dummy_options()).code() == StatusCode::kResourceExhausted);
  simt::set_device_bytes(256 * kMiB);
  LoadOptions options = dummy_options();
  options.num_blocks_override = 1 << 24;
  CHECK(make_cuda_backend(0)->load(config, options).code() == StatusCode::kResourceExhausted);
  options.num_blocks_override = 0;
  options.cuda.gpu_memory_utilization = 0.01;
  const Status status = make_cuda_backend(0)->load(config, options);
  CHECK(status.code() == StatusCode::kResourceExhausted);
  CHECK(status.message().find("--gpu-memory-utilization") != std::string::npos);
}

TEST_CASE("the pool takes what --gpu-memory-utilization leaves, or what the sequences can fill") {
  LoadOptions options = dummy_options();
  options.num_blocks_override = 0;
  const KvLayout kv{2, 4, 64, 16, 0, DType::kBF16};
  const int64_t block = kv.bytes_per_block();
  const auto num_blocks = [&](int64_t total, int64_t free, int64_t reserved) {
    const Result<int32_t> result = plan_num_blocks(options, kv, {total, free, reserved});
    return result.ok() ? *result : -1;
  };
  options.cuda.gpu_memory_utilization = 0.5;
  CHECK(num_blocks(1000 * block, 1000 * block, 0) == 5 * 4);  // max_num_seqs sequences of 64 tokens
  CHECK(num_blocks(100 * block, 60 * block, 0) == 50 - 40);   // half of all, what is taken counts
  CHECK(num_blocks(100 * block, 60 * block, 3 * block) == 10 - 3);
  CHECK(num_blocks(100 * block, 54 * block, 0) == 4);  // just one sequence
  CHECK(num_blocks(100 * block, 53 * block, 0) == -1);
  options.num_blocks_override = 58;  // asked for by number: all that is free
  CHECK(num_blocks(100 * block, 60 * block, 2 * block) == 58);
  CHECK(num_blocks(100 * block, 60 * block, 3 * block) == -1);
  options.num_blocks_override = 0;
  options.kv_cache_bytes = 9 * block + block / 2;
  CHECK(num_blocks(100 * block, 60 * block, 0) == 9);

  // A draft model beside it, with a pool of as many blocks that are half as large.
  options.kv_cache_bytes = 0;
  options.cuda.draft_bytes = 2 * block, options.draft_block_bytes = block / 2;
  CHECK(num_blocks(100 * block, 64 * block, 0) == (14 - 2) * 2 / 3);
  CHECK(num_blocks(100 * block, 57 * block, 0) == -1);
  options.kv_cache_bytes = 9 * block;  // for both
  CHECK(num_blocks(100 * block, 11 * block, 0) == 6);
  CHECK(num_blocks(100 * block, 10 * block, 0) == -1);

  // Ranks that have half of each block: as many tokens fit them as their blocks have for plans. Each block takes as much
  // again beside the pool.
  options.kv_cache_bytes = 0;
  options.cuda.draft_bytes = options.draft_block_bytes = 0;
  options.block_size = 32;
  const auto num_of_rank = [&](int64_t free) {
    const Result<int32_t> result = plan_num_blocks(options, kv, {1000 * block, free, 0, block});
    return result.ok() ? *result : -1;
  };
  CHECK(num_of_rank(1000 * block) == 5 * 2);
  CHECK(num_of_rank(500 * block + 12 * block) == 6);
  CHECK(num_of_rank(500 * block + 4 * block) == 2);
  CHECK(num_of_rank(500 * block + 3 * block) == -1);
  options.swap_space_gib = 7.5 * static_cast<double>(block) / (1 << 30);
  CHECK(num_host_blocks_of_rank(kv, options) == 7);

  options = dummy_options();
  options.num_blocks_override = 0;
  const auto backend = make_cuda_backend(0);
  REQUIRE(backend->load(tiny_config(), options).ok());
  CHECK(backend->info().kv.num_blocks == 5 * 4);
}

TEST_CASE("nothing is allocated after load, on the device or pinned") {
  auto backend = make_cuda_backend(0);
  REQUIRE(backend->load(tiny_config(), dummy_options()).ok());
  const uint64_t count = simt::num_allocations();
  const size_t bytes = simt::device_bytes_in_use();
  generate_at_random(*backend, requests(), 24, 5, 1);
  CHECK(simt::num_allocations() == count);
  CHECK(simt::device_bytes_in_use() == bytes);
}

TEST_CASE("any call failing while loading is an error, and gives all memory back") {
  const DeviceSettings restore;
  LoadOptions options = dummy_options();
  options.max_num_seqs = 2;
  ModelConfig config = tiny_config();
  config.num_hidden_layers = 1;
  const size_t bytes_before = simt::device_bytes_in_use();
  const uint64_t calls_before = simt::num_calls();
  REQUIRE(make_cuda_backend(0)->load(config, options).ok());
  const uint64_t calls = simt::num_calls() - calls_before;
  CHECK(calls > 100);
  for (const cudaError_t error : {cudaErrorMemoryAllocation, cudaErrorIllegalAddress})
    for (uint64_t n = 0; n < calls; n += n < 16 ? 3 : 37) {
      CAPTURE(n);
      simt::fail_call_after(n, error, error == cudaErrorIllegalAddress);
      auto backend = make_cuda_backend(0);
      const Status status = backend->load(config, options);
      simt::clear_failure();
      if (!status.ok()) {
        const bool expected =
            status.code() == StatusCode::kResourceExhausted || status.code() == StatusCode::kDeviceError;
        CHECK_MESSAGE(expected, status.message());
        CHECK(status.message().size() > 10);
      }
      backend.reset();
      CHECK(simt::device_bytes_in_use() == bytes_before);
    }
}

TEST_CASE("a fault in a step is the error of that step or of its wait") {
  const DeviceSettings restore;
  for (uint64_t n = 0; n < 40; n += 6) {
    CAPTURE(n);
    auto backend = make_cuda_backend(0);
    REQUIRE(backend->load(tiny_config(), dummy_options()).ok());
    const StepPlan plan = PlanBuilder(16).add({1, 2, 3}, 0, 3, {0}, SampleRow()).plan();
    StepOutput output;
    REQUIRE(backend->submit(plan).ok());
    REQUIRE(backend->wait(&output).ok());
    simt::fail_call_after(n, cudaErrorLaunchFailure, true);
    Status status = backend->submit(plan);
    if (status.ok()) status = backend->wait(&output);
    simt::clear_failure();
    if (!status.ok()) CHECK(status.code() == StatusCode::kDeviceError);
    if (n < 3) CHECK(!status.ok());
  }
}

TEST_CASE("sizes that the kernels do not have are refused by name") {
  LoadOptions options = dummy_options();
  options.block_size = 12;
  CHECK(make_cuda_backend(0)->load(tiny_config(), options).message().find("block_size") != std::string::npos);
}

}  // namespace
}  // namespace llmb::test
