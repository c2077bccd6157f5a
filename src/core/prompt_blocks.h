// Keys and values of a prompt's first whole blocks, and the recurrent state behind them, on their way from the engine that
// computed them to the one that goes on (prefill and decode apart).
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace llmb {

// One of a sequence's blocks.
struct BlockPlace {
  int32_t layer_group = 0;
  int32_t index = 0;  // in the sequence's table
};

struct PromptBlocks {
  int32_t num_tokens = 0;           // of the prompt, in whole blocks
  std::vector<BlockPlace> places;   // those that a row behind these tokens sees
  std::vector<uint8_t> bytes;       // [places, BackendInfo::block_bytes], then [BackendInfo::state_bytes]
  double scheduled_ms = 0;          // the first step that held the request, on the engine's clock
  int32_t num_cached_tokens = 0;    // of the prompt, that other requests had computed
};

// Where a block of the host's pool is to hold what a sequence has in that place.
struct HostPlace {
  BlockPlace place;
  BlockId host_block = 0;
};

// The places for what a sequence has that was computed elsewhere.
struct PlacesToFill {
  std::vector<HostPlace> blocks;
  int32_t state_slot = -1;  // for the state behind them; -1: none is needed, or it is there
  bool empty() const { return blocks.empty() && state_slot < 0; }
};

}  // namespace llmb
