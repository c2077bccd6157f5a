// A reserve for the moment when memory runs out: for destructors, messages and an end in good order.
#pragma once

namespace llmb {

// From now on an allocation by `new` that fails takes a part of the reserve and is retried, a few times; after that
// it throws as usual. Libraries may allocate where nothing can be thrown, and code that cleans up does. Once, early.
void hold_memory_reserve();

// The reserve has been touched: work should come to an end. Thread-safe.
bool is_memory_short();

}  // namespace llmb
