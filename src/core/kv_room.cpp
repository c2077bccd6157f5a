#include "core/kv_room.h"

namespace llmb {

namespace {

int64_t num_live_blocks(const KvLayout& kv, int64_t row_blocks) {
  return max_live_blocks(kv.groups.windows, row_blocks, 1, kv.block_size);
}

}  // namespace

int64_t tokens_in_blocks(const KvLayout& kv, int64_t num_blocks, int64_t row_tokens) {
  const int64_t row_blocks = ceil_div(row_tokens, kv.block_size);
  return num_blocks * row_blocks / num_live_blocks(kv, row_blocks) * kv.block_size;
}

double kv_bytes_per_token(const KvLayout& kv, int64_t row_tokens) {
  const int64_t row_blocks = ceil_div(row_tokens, kv.block_size);
  return static_cast<double>(kv.bytes_per_block() * num_live_blocks(kv, row_blocks)) /
         static_cast<double>(row_blocks * kv.block_size);
}

}  // namespace llmb
