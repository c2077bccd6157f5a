// Where each layer's keys and values lie in a pool of device memory.
//
// Layers that are alike: [num_planes, 2, num_blocks, keys or values of a block], so that blocks are dense for kernels; with
// latents, which are keys and values at once, [num_planes, num_blocks, keys of a block]. Layers whose heads differ:
// [num_planes, num_blocks, block], a block as large as the largest layer's keys and values; it holds one layer's, or those
// of several smaller layers, keys and then values of each. So a block has one place whichever layers it is of.
#pragma once

#include <cstdint>

#include "core/kv_layout.h"

namespace llmb {

class KvPlanes {
 public:
  KvPlanes() = default;
  explicit KvPlanes(const KvLayout& layout);

  // The pool is so many arrays of blocks, one behind the other, of block_bytes() each block. Scales aside.
  int64_t num_arrays() const { return num_arrays_; }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t bytes(int64_t num_blocks) const { return num_arrays_ * num_blocks * block_bytes_; }

  struct Place {
    int64_t keys = 0, values = 0;  // bytes from the pool's begin to block 0's
  };
  // REQUIRES: the layer has keys and values of its own.
  Place place(int32_t layer, int64_t num_blocks) const;
  int64_t half_bytes(int32_t layer) const;  // of the keys of a block, and of its values
  // From a block of the layer to the next, in elements of the cache; 0: they are dense.
  int64_t block_stride() const { return has_parts_ ? block_bytes_ / dtype_bytes(layout_.dtype) : 0; }

 private:
  KvLayout layout_;
  bool has_parts_ = false;  // keys and values differ in size by layer, of this rank's layers or of other stages'
  int64_t num_arrays_ = 0, block_bytes_ = 0;
};

}  // namespace llmb
