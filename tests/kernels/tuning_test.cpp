#include "kernels/cpu/tuning.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cpu/caches.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/paged_attention.h"
#include "tests/support/kernel_support.h"
#include "tests/support/kv_bytes.h"
#include "tests/support/temp_dir.h"

namespace llmb::cpu {
namespace {

using test::same_bytes;

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr CacheSizes kSmall{8 * kKiB, 64 * kKiB}, kMiddle{32 * kKiB, 512 * kKiB}, kLarge{1024 * kKiB, 256 * kMiB};

// Gives the caches back at its end.
struct WithCaches {
  CacheSizes before = cache_sizes();
  ~WithCaches() { set_cache_sizes(before); }
};

std::vector<float> products(const PackedLinear& weight, int64_t rows, ThreadPool& pool) {
  const std::vector<float> x = test::random_normal(rows * weight.in_features(), 2);
  std::vector<float> out(static_cast<size_t>(rows * weight.out_features()), std::nanf(""));
  linear(weight, x.data(), rows, out.data(), pool);
  return out;
}

}  // namespace

TEST_CASE("blocks are as fitted with the fitted caches and larger ones, and smaller with smaller ones") {
  for (const CacheSizes& caches : {kFittedCaches, kLarge}) {
    CHECK(linear_block_k(caches) == 640);
    CHECK(int8_block_words(caches) == 160);
    CHECK(bf16_block_words(caches, 4) == 96);
    CHECK(bf16_block_words(caches, 22) == 96);
    CHECK(max_item_rows(caches) == 432);
  }
  CHECK(linear_block_k(kMiddle) == 320);
  CHECK(int8_block_words(kMiddle) == 106);
  CHECK(bf16_block_words(kMiddle, 4) == 64);
  CHECK(bf16_block_words(kMiddle, 22) == 64);
  CHECK(bf16_block_words(kMiddle, 2) == 32);
  CHECK(max_item_rows(kMiddle) == 216);
  CHECK(linear_block_k(kSmall) == 32);
  CHECK(int8_block_words(kSmall) == 26);
  CHECK(bf16_block_words(kSmall, 4) == 16);
  CHECK(bf16_block_words(kSmall, 2) == 16);
  CHECK(max_item_rows(kSmall) == 108);
}

TEST_CASE("blocks of bf16 and int8 are shorter where few tiles share them") {
  CHECK(int8_pair_words(kFittedCaches) == 72);
  CHECK(int8_pair_words(kSmall) == 16);
  CHECK(int8_pair_words(kLarge) == 160);
  CHECK(bf16_block_words(kFittedCaches, 2) == 48);
  CHECK(bf16_block_words(kFittedCaches, 3) == 72);
}

TEST_CASE("caches are read as Linux tells them; what is not told or cannot be is the fitted machine's") {
  test::TempDir dir;
  const auto add = [&](int index, const std::string& level, const std::string& type, const std::string& size) {
    const std::filesystem::path at = std::filesystem::path(dir.path()) / ("index" + std::to_string(index));
    std::filesystem::create_directories(at);
    std::ofstream(at / "level") << level << "\n";
    std::ofstream(at / "type") << type << "\n";
    std::ofstream(at / "size") << size << "\n";
  };
  const auto read = [&] { return read_cache_sizes(std::string(dir.path())); };
  CHECK(read().first_level == kFittedCaches.first_level);
  CHECK(read().second_level == kFittedCaches.second_level);
  add(0, "1", "Data", "32K");
  add(1, "1", "Instruction", "64K");
  add(2, "2", "Unified", "1M");
  add(3, "3", "Unified", "32768K");
  CHECK(read().first_level == 32 * kKiB);
  CHECK(read().second_level == kMiB);
  for (const char* odd : {"", "0K", "-1K", "1K", "99999999999999999999K", "2047M", "x", "32"}) {
    CAPTURE(odd);
    add(0, "1", "Data", odd);
    add(2, "2", "Unified", odd);
    CHECK(read().first_level == kFittedCaches.first_level);
    CHECK(read().second_level == kFittedCaches.second_level);
  }
}

TEST_CASE("products have the same bytes whatever the caches, on every target") {
  const WithCaches restore;
  ThreadPool pool(2);
  constexpr int64_t kN = 100, kK = 1301;
  const std::vector<float> wide = test::random_normal(kN * kK, 1, 0.1f);
  std::vector<uint16_t> halves;
  for (const float x : wide) halves.push_back(f32_to_bf16(x));
  struct Format {
    const void* data;
    DType dtype, activations;
    Quantization quantization;
  };
  test::for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Format& f : {Format{wide.data(), DType::kF32, DType::kF32, Quantization::kNone},
                            Format{halves.data(), DType::kBF16, DType::kF32, Quantization::kNone},
                            Format{halves.data(), DType::kBF16, DType::kBF16, Quantization::kNone},
                            Format{halves.data(), DType::kBF16, DType::kF32, Quantization::kInt8},
                            Format{halves.data(), DType::kBF16, DType::kF32, Quantization::kInt4},
                            Format{halves.data(), DType::kBF16, DType::kF32, Quantization::kW4A8}}) {
      const TensorView view{f.data, f.dtype, kN, kK};
      const PackedLinear weight = PackedLinear::pack({&view, 1}, {}, pool, f.quantization, f.activations);
      for (const int64_t rows : {1, 8, 13, 130}) {
        set_cache_sizes(kFittedCaches);
        const std::vector<float> expected = products(weight, rows, pool);
        for (const CacheSizes& caches : {kSmall, kMiddle, kLarge}) {
          set_cache_sizes(caches);
          CHECK(same_bytes(products(weight, rows, pool), expected));
        }
      }
    }
  });
}

TEST_CASE("attention has the same bytes whatever the caches, on every target") {
  const WithCaches restore;
  ThreadPool pool(1);
  constexpr int32_t kTokens = 700, kBlockSize = 16, kBlocks = 44, kHeads = 4, kKvHeads = 2, kDim = 32;
  const int64_t stride = (kHeads + 2 * kKvHeads) * kDim;
  const std::vector<float> k = test::random_normal(kTokens * kKvHeads * kDim, 3);
  const std::vector<float> v = test::random_normal(kTokens * kKvHeads * kDim, 4);
  const std::vector<float> qkv = test::random_normal(kTokens * stride, 5);
  test::KvBytes cache(DType::kBF16, kBlocks, kBlockSize, kKvHeads, kDim);
  for (int64_t slot = 0; slot < kTokens; ++slot)
    for (int64_t h = 0; h < kKvHeads; ++h) {
      const size_t at = static_cast<size_t>((slot * kKvHeads + h) * kDim);
      cache.store(slot, h, std::span(k).subspan(at, kDim), std::span(v).subspan(at, kDim));
    }
  std::vector<BlockId> ids(kBlocks);
  for (int32_t i = 0; i < kBlocks; ++i) ids[static_cast<size_t>(i)] = i;
  const int32_t query_start[] = {0, kTokens}, context_len[] = {kTokens}, block_start[] = {0, kBlocks};
  const AttentionBatch batch{1, query_start, context_len, block_start, ids.data()};
  test::for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const auto run = [&](const CacheSizes& caches) {
      set_cache_sizes(caches);
      std::vector<float> out(static_cast<size_t>(kTokens * kHeads * kDim), std::nanf(""));
      paged_attention(qkv.data(), stride, out.data(), batch, {kHeads, 0.2f}, cache.view(), pool);
      return out;
    };
    const std::vector<float> expected = run(kFittedCaches);
    for (const CacheSizes& caches : {kSmall, kMiddle, kLarge}) CHECK(same_bytes(run(caches), expected));
  });
}

}  // namespace llmb::cpu
