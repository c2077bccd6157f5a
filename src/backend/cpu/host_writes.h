// Blocks of the host's pool, and state slots, are written from elsewhere, before the plan that is submitted next.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_states.h"
#include "backend/cpu/kv_pool.h"
#include "core/types.h"

namespace llmb {

class HostWrites {
 public:
  // As Backend::write_host_blocks().
  void add(std::span<const BlockId> blocks, int32_t state, std::span<const uint8_t> bytes) {
    writes_.push_back({{blocks.begin(), blocks.end()}, state, {bytes.begin(), bytes.end()}});
  }
  // None are left.
  HostWrites take() { return std::exchange(*this, {}); }
  void run(KvPool& host, CpuStates* states) {
    for (const Write& write : take().writes_) {
      if (!write.blocks.empty()) host.write_blocks(write.blocks, write.bytes.data());
      if (write.state >= 0)
        states->write(write.state, write.bytes.data() + write.bytes.size() - static_cast<size_t>(states->slot_bytes()));
    }
  }

 private:
  struct Write {
    std::vector<BlockId> blocks;
    int32_t state;
    std::vector<uint8_t> bytes;  // [blocks, host.block_bytes()], then [states.slot_bytes()] where state >= 0
  };
  std::vector<Write> writes_;
};

}  // namespace llmb
