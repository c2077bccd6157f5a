#include "kernels/cuda/block_copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "base/check.h"
#include "kernels/cuda/memory.h"
#include "tests/support/device_array.h"

namespace llmb::cuda {
namespace {

using test::DeviceArray;
using test::for_each_order;

std::vector<uint8_t> random_bytes(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(n));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng());
  return bytes;
}

// A pool of [num_planes, num_blocks, block_bytes].
BlockPool plane_major(void* data, int64_t num_blocks, int64_t block_bytes) {
  return {data, num_blocks * block_bytes, block_bytes};
}

void copy_on_host(std::vector<uint8_t>* pool, int32_t num_planes, int64_t num_blocks, int64_t block_bytes,
                  const std::vector<BlockPair>& pairs) {
  for (int32_t p = 0; p < num_planes; ++p)
    for (const BlockPair& pair : pairs)
      std::copy_n(pool->begin() + (p * num_blocks + pair.from) * block_bytes, block_bytes,
                  pool->begin() + (p * num_blocks + pair.to) * block_bytes);
}

TEST_CASE("copy-on-write: exactly the named blocks change, in every plane; block sizes at every border") {
  const std::vector<BlockPair> pairs = {{0, 6}, {4, 1}, {4, 5}, {2, 3}};
  for (const int64_t block_bytes : {1, 15, 16, 17, 660, 4080, 4096, 4112, 16384, 16400}) {
    CAPTURE(block_bytes);
    const std::vector<uint8_t> before = random_bytes(3 * 7 * block_bytes, 1);
    std::vector<uint8_t> expected = before;
    copy_on_host(&expected, 3, 7, block_bytes, pairs);
    for (size_t num_pairs : {pairs.size(), size_t{0}}) {
      DeviceArray<uint8_t> pool(before);
      DeviceArray<BlockPair> device_pairs(pairs);
      const BlockPool view = plane_major(pool.data(), 7, block_bytes);
      block_copy(view, view, 3, block_bytes, device_pairs.data(), static_cast<int32_t>(num_pairs), nullptr);
      CHECK(pool.holds(num_pairs == 0 ? before : expected));
      CHECK(pool.check_guards());
      CHECK(device_pairs.holds(pairs));
    }
  }
}

TEST_CASE("out to pinned memory and back in elsewhere, under all orders of threads") {
  constexpr int64_t kBlockBytes = 2064;
  constexpr int32_t kPlanes = 5;
  const std::vector<uint8_t> before = random_bytes(kPlanes * 6 * kBlockBytes, 2);
  for_each_order(4, [&](uint64_t) {
    DeviceArray<uint8_t> pool(before);
    const PinnedMemory host(kPlanes * 2 * kBlockBytes);
    const BlockPool device_view = plane_major(pool.data(), 6, kBlockBytes);
    // The host keeps a block's planes together.
    const BlockPool host_view{host.data(), kBlockBytes, kPlanes * kBlockBytes, true};
    const std::vector<BlockPair> out = {{5, 0}, {1, 1}}, in = {{1, 0}, {0, 3}};
    DeviceArray<BlockPair> device_out(out), device_in(in);
    block_copy(device_view, host_view, kPlanes, kBlockBytes, device_out.data(), 2, nullptr);
    CHECK(pool.holds(before));
    for (int32_t p = 0; p < kPlanes; ++p) {
      CHECK(std::equal(host.data<uint8_t>() + p * kBlockBytes, host.data<uint8_t>() + (p + 1) * kBlockBytes,
                       before.begin() + (p * 6 + 5) * kBlockBytes));
    }
    block_copy(host_view, device_view, kPlanes, kBlockBytes, device_in.data(), 2, nullptr);
    std::vector<uint8_t> expected = before;
    copy_on_host(&expected, kPlanes, 6, kBlockBytes, {{1, 0}, {5, 3}});
    CHECK(pool.holds(expected));
    CHECK(pool.check_guards());
  });
}

// As swapping does it: some blocks out, their places overwritten, and in again elsewhere. The host's blocks keep their
// planes together, from an address of its own alignment on.
void check_swap(int64_t block_bytes, int32_t num_planes, int32_t num_pairs, int64_t host_offset) {
  const int32_t num_blocks = 2 * num_pairs + 1;
  const int64_t host_bytes = num_pairs * num_planes * block_bytes;
  const std::vector<uint8_t> before = random_bytes(num_planes * num_blocks * block_bytes, 4);
  DeviceArray<uint8_t> pool(before);
  const PinnedMemory host(host_offset + host_bytes + 16);
  std::fill_n(host.data<uint8_t>(), host.bytes(), uint8_t{0xA5});
  const BlockPool device_view = plane_major(pool.data(), num_blocks, block_bytes);
  const BlockPool host_view{host.data<uint8_t>() + host_offset, block_bytes, num_planes * block_bytes, true};
  std::vector<BlockPair> out, in, within;
  for (int32_t i = 0; i < num_pairs; ++i) {
    out.push_back({2 * i + 1, num_pairs - 1 - i});
    in.push_back({num_pairs - 1 - i, 2 * i});
    within.push_back({2 * i + 1, 2 * i});
  }
  const DeviceArray<BlockPair> device_out(out), device_in(in);
  const Stream stream;
  block_copy(device_view, host_view, num_planes, block_bytes, device_out.data(), num_pairs, stream.get());
  stream.synchronize();
  CHECK(pool.holds(before));
  for (int32_t i = 0; i < num_pairs; ++i)
    for (int32_t p = 0; p < num_planes; ++p)
      CHECK(std::equal(host.data<uint8_t>() + host_offset + (out[i].to * num_planes + p) * block_bytes,
                       host.data<uint8_t>() + host_offset + (out[i].to * num_planes + p + 1) * block_bytes,
                       before.begin() + (p * num_blocks + out[i].from) * block_bytes));
  for (int64_t i = 0; i < host_offset; ++i) CHECK(host.data<uint8_t>()[i] == 0xA5);
  for (int64_t i = host_offset + host_bytes; i < host.bytes(); ++i) CHECK(host.data<uint8_t>()[i] == 0xA5);
  block_copy(host_view, device_view, num_planes, block_bytes, device_in.data(), num_pairs, stream.get());
  stream.synchronize();
  std::vector<uint8_t> expected = before;
  copy_on_host(&expected, num_planes, num_blocks, block_bytes, within);
  CHECK(pool.holds(expected));
  CHECK(pool.check_guards());
}

TEST_CASE("pinned memory: block sizes around every border, aligned and not, and next to nothing else") {
  for (const int64_t block_bytes : {1, 15, 16, 17, 1024, 4096, 16368, 16384, 16400, 32768})
    for (const int64_t host_offset : {0, 16, 8}) {
      CAPTURE(block_bytes);
      CAPTURE(host_offset);
      check_swap(block_bytes, 2, 2, host_offset);
    }
}

TEST_CASE("pinned memory: as many copies as the grid to the host has blocks, and one fewer and more; none") {
  for (const auto& [num_planes, num_pairs] : {std::pair(1, 1), {5, 3}, {8, 2}, {17, 1}, {4, 10}, {3, 0}, {0, 3}}) {
    CAPTURE(num_planes);
    CAPTURE(num_pairs);
    check_swap(256, num_planes, num_pairs, 0);
  }
}

TEST_CASE("more blocks than the grid has") {
  constexpr int32_t kPlanes = 70, kBlocks = 62;
  const std::vector<uint8_t> before = random_bytes(kPlanes * kBlocks * 16, 3);
  std::vector<BlockPair> pairs;
  for (int32_t i = 0; i < kBlocks / 2; ++i) pairs.push_back({i, kBlocks - 1 - i});
  std::vector<uint8_t> expected = before;
  copy_on_host(&expected, kPlanes, kBlocks, 16, pairs);
  DeviceArray<uint8_t> pool(before);
  DeviceArray<BlockPair> device_pairs(pairs);
  const BlockPool view = plane_major(pool.data(), kBlocks, 16);
  block_copy(view, view, kPlanes, 16, device_pairs.data(), static_cast<int32_t>(pairs.size()), nullptr);
  CHECK(pool.holds(expected));
}

TEST_CASE("mistakes of the caller are refused") {
  CHECK_THROWS_AS(block_copy({}, {}, -1, 16, nullptr, 1, nullptr), CheckFailure);
}

}  // namespace
}  // namespace llmb::cuda
