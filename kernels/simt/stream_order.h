// The order of work on streams that nothing orders. Thread-safe.
#pragma once

#include <cstdint>

namespace llmb::simt {

// So many in a hundred pieces of work that somebody waits for are preceded by a piece of another stream, drawn by the seed.
// At 0, as at the start, streams run when somebody waits for them; at 100 all others run as far as they can first.
void set_interleaving(uint32_t percent);

// The layer's own, under its lock.
bool draw_interleaved();
uint64_t draw_below(uint64_t count);

}  // namespace llmb::simt
