#include "kernels/cpu/block_copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/cpu/kv_cache.h"

namespace llmb::cpu {
namespace {

std::vector<uint8_t> random_bytes(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(n));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng());
  return bytes;
}

TEST_CASE("exactly the named blocks change, in every plane, for 0, 1 and many copies") {
  constexpr int64_t kPlanes = 3, kBlocks = 41;
  for (const int64_t block_bytes : {1, 15, 64, 4097})
    for (const int num_copies : {0, 1, 2, 20})
      for (const int num_threads : {1, 3}) {
        CAPTURE(block_bytes);
        CAPTURE(num_copies);
        const std::vector<uint8_t> before = random_bytes(kPlanes * kBlocks * block_bytes, 1);
        std::vector<BlockCopy> copies;
        for (int i = 0; i < num_copies; ++i)  // one block to many, the last block, the first
          copies.push_back({0, static_cast<BlockId>(i % 3 == 0 ? 0 : kBlocks - 1 - i), i + 1});
        std::vector<uint8_t> pool = before, expected = before;
        for (int64_t plane = 0; plane < kPlanes; ++plane)
          for (const BlockCopy& copy : copies)
            std::copy_n(before.begin() + (plane * kBlocks + copy.from) * block_bytes, block_bytes,
                        expected.begin() + (plane * kBlocks + copy.to) * block_bytes);
        const BlockPool view{pool.data(), kBlocks * block_bytes, block_bytes};
        ThreadPool threads(num_threads);
        block_copy(view, view, kPlanes, block_bytes, copies, threads);
        CHECK(pool == expected);
        CHECK((num_copies == 0) == (pool == before));
      }
}

TEST_CASE("from one pool to another with other strides, and back") {
  constexpr int64_t kPlanes = 5, kBlockBytes = 48;
  std::vector<uint8_t> pool = random_bytes(kPlanes * 6 * kBlockBytes, 2), swapped(kPlanes * 2 * kBlockBytes, 0);
  const std::vector<uint8_t> before = pool;
  const BlockPool by_plane{pool.data(), 6 * kBlockBytes, kBlockBytes};
  const BlockPool by_block{swapped.data(), kBlockBytes, kPlanes * kBlockBytes};
  ThreadPool threads(2);
  block_copy(by_plane, by_block, kPlanes, kBlockBytes, std::vector<BlockCopy>{{0, 5, 0}, {0, 1, 1}}, threads);
  CHECK(pool == before);
  block_copy(by_block, by_plane, kPlanes, kBlockBytes, std::vector<BlockCopy>{{0, 1, 0}, {0, 0, 3}}, threads);
  std::vector<uint8_t> expected = before;
  for (int64_t plane = 0; plane < kPlanes; ++plane) {
    const auto at = [&](int64_t block) { return (plane * 6 + block) * kBlockBytes; };
    std::copy_n(before.begin() + at(1), kBlockBytes, expected.begin() + at(0));
    std::copy_n(before.begin() + at(5), kBlockBytes, expected.begin() + at(3));
  }
  CHECK(pool == expected);
}

TEST_CASE("copy_kv_slot leaves what write_kv_slot would have written there, and nothing else") {
  constexpr int kHeads = 2, kBlocks = 3;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8})
    for (const int32_t block_size : {1, 5, 16})
      for (const int32_t head_dim : {1, 7, 32, 129})
        for (int64_t from = 0; from < kBlocks * block_size; from += 3)
          for (int64_t to = 0; to < kBlocks * block_size; to += 2) {
            if (from == to) continue;
            KvCacheView kv{nullptr, dtype, block_size, kHeads, head_dim};
            std::vector<uint8_t> copied(static_cast<size_t>(kBlocks * kv.block_bytes()), 0x5a), written = copied;
            std::vector<float> k(kHeads * head_dim), v(kHeads * head_dim);
            for (size_t i = 0; i < k.size(); ++i) {
              k[i] = static_cast<float>(i) - 3.25f;
              v[i] = 0.37f * static_cast<float>(i + 1);
            }
            kv.data = copied.data();
            write_kv_slot(k.data(), v.data(), from, kv);
            copy_kv_slot(from, to, kv);
            kv.data = written.data();
            write_kv_slot(k.data(), v.data(), from, kv);
            write_kv_slot(k.data(), v.data(), to, kv);
            const bool same = copied == written;
            CHECK(same);
          }
}

}  // namespace
}  // namespace llmb::cpu
