#include "kernels/simt/block.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/simt/block_runner.h"

uint3 threadIdx{};
uint3 blockIdx{};
dim3 blockDim;
dim3 gridDim;

namespace llmb::simt {

Thread* g_thread = nullptr;

namespace {

uint64_t g_block_epoch = 0;
std::vector<BlockEnd> g_block_ends;
uint64_t g_ahead_epoch = 0, g_waited_epoch = 0;  // the last blocks that did so

void check_waited() {
  if (g_ahead_epoch == g_block_epoch && g_waited_epoch != g_block_epoch)
    fault("a block that may start before the kernel ahead of it has ended did not wait for that one");
}

}  // namespace

void land(const AsyncCopy& copy) {
  if (copy.zero_fill) std::memset(copy.to, 0, copy.num_bytes);
  else std::memcpy(copy.to, copy.from, copy.num_bytes);
}

void run_grid(const Grid& grid, const std::function<void()>& thread_body) {
  BlockRunner runner(grid, thread_body);
  const uint64_t num_blocks = uint64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  std::vector<uint64_t> order(num_blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  for (uint64_t i = num_blocks; i > 1; --i) {
    std::swap(order[i - 1], order[runner.random().below(static_cast<uint32_t>(i))]);
  }
  BlockRunner* const outer = g_runner;
  g_runner = &runner;
  blockDim = grid.threads;
  gridDim = grid.blocks;
  try {
    for (const uint64_t block : order) {
      const uint64_t row = block / grid.blocks.x;
      ++g_block_epoch;
      runner.run_block({static_cast<uint32_t>(block % grid.blocks.x), static_cast<uint32_t>(row % grid.blocks.y),
                        static_cast<uint32_t>(row / grid.blocks.y)});
      for (const BlockEnd block_end : g_block_ends) block_end();
    }
  } catch (...) {
    g_runner = outer;
    throw;
  }
  g_runner = outer;
}

void barrier_sync(uint32_t id, uint32_t num_threads, Site site) { g_runner->sync(id, num_threads, site, true); }
void barrier_arrive(uint32_t id, uint32_t num_threads, Site site) { g_runner->sync(id, num_threads, site, false); }
void warp_collective(uint32_t mask, Collective collective, void* argument, Site site) {
  g_runner->meet(mask, collective, argument, site);
}
void wait_until(bool (*ready)(void*), void* argument, Site site) { g_runner->wait_until(ready, argument, site); }
void conditions_changed() { g_runner->wake_conditions(); }
void at_block_end(BlockEnd block_end) {
  if (std::find(g_block_ends.begin(), g_block_ends.end(), block_end) == g_block_ends.end()) {
    g_block_ends.push_back(block_end);
  }
}
void starts_ahead() {
  g_ahead_epoch = g_block_epoch;
  at_block_end(check_waited);
}
void waited_for_previous_grid() { g_waited_epoch = g_block_epoch; }
uint64_t block_epoch() { return g_block_epoch; }
void* dynamic_shared_memory() { return g_runner->shared(); }
size_t dynamic_shared_bytes() { return g_runner->grid().shared_bytes; }
void fault(const std::string& what) { g_runner->fail(what); }
uint32_t random_below(uint32_t bound) { return g_runner->random().below(bound); }

}  // namespace llmb::simt
