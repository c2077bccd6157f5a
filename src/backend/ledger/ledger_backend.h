// A backend without a network, which keeps books: every KV slot remembers the token and position written to it and the
// hash of the prefix that ends there, and the sampled token is a hash of the prefix as read back through the block
// table. So any mistake of the scheduler, the cache or a plan changes tokens or is refused, at millions of tokens a
// second.
//
// Driven by one thread, as every Backend. Invariants, each broken one an internal error of submit():
//  1. The plan is valid (validate_step_plan) and has the pool's block size.
//  2. What a sequence reads is its own prefix: in its first block, at every later block border, and at its last cached
//     token, the slot holds the expected position and its hash continues the slot before. check_every_slot: everywhere.
//     So it is in each layer group, from the beginning of the first row's window on.
//  3. That is so also when all entries of the plan have written: devices write before they read, layer by layer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/ledger/ledger_model.h"
#include "base/clock.h"

namespace llmb {

struct LedgerOptions {
  uint64_t seed = 0;
  std::optional<double> eos_rate;  // see LedgerModel
  bool check_every_slot = false;   // O(context) a sample instead of O(blocks)
  VirtualClock* clock = nullptr;   // not owned; advanced by step_ms in every wait()
  double step_ms = 0;
  int32_t max_plans_in_flight = kMaxPlansInFlight;
  int32_t max_num_snapshots = INT32_MAX;  // of states, where fewer are kept than the layout has room for
};

// The model that such a backend computes after load(config), for ledger_reference().
LedgerModel make_ledger_model(const ModelConfig& config, const LedgerOptions& options);

// load() reads no files. Blocks: num_blocks_override, else kv_cache_bytes by the config's KV layout, else what
// max_num_seqs sequences of max_model_len need, but no more than 2^20 slots unless one sequence needs them.
std::unique_ptr<Backend> make_ledger_backend(const LedgerOptions& options);

}  // namespace llmb
