// The room in a KV pool, in tokens of sequences: as many as its blocks have slots, and more where layers see windows, since
// these give blocks back.
#pragma once

#include <cstdint>

#include "core/kv_layout.h"

namespace llmb {

// Tokens of sequences with row_tokens each in num_blocks blocks. REQUIRES: row_tokens >= 1.
int64_t tokens_in_blocks(const KvLayout& kv, int64_t num_blocks, int64_t row_tokens);

// Memory of one of these tokens. REQUIRES: row_tokens >= 1.
double kv_bytes_per_token(const KvLayout& kv, int64_t row_tokens);

}  // namespace llmb
