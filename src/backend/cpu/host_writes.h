// Blocks of the host's pool are written from elsewhere, before the plan that is submitted next.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/cpu/kv_pool.h"
#include "core/types.h"

namespace llmb {

class HostWrites {
 public:
  void add(std::span<const BlockId> blocks, std::span<const uint8_t> bytes) {
    writes_.push_back({{blocks.begin(), blocks.end()}, {bytes.begin(), bytes.end()}});
  }
  // None are left.
  HostWrites take() { return std::exchange(*this, {}); }
  void run(KvPool& host) {
    for (const Write& write : take().writes_) host.write_blocks(write.blocks, write.bytes.data());
  }

 private:
  struct Write {
    std::vector<BlockId> blocks;
    std::vector<uint8_t> bytes;  // [blocks, host.block_bytes()]
  };
  std::vector<Write> writes_;
};

}  // namespace llmb
