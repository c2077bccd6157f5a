// The order in which the host layer runs the work of several streams.
#pragma once

#include <cstdint>

#include "kernels/simt/settings.h"
#include "kernels/simt/stream_order.h"

namespace llmb::test {

// That of a seed from here on; the usual one behind it. Every third seed keeps to the usual interleaving.
class StreamOrder {
 public:
  explicit StreamOrder(uint64_t seed) {
    simt::set_seed(seed);
    simt::set_interleaving(seed % 3 * 50);
  }
  ~StreamOrder() {
    simt::set_seed(0);
    simt::set_interleaving(0);
  }
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;
};

}  // namespace llmb::test
