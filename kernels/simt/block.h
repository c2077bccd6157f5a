// Runs one grid on the calling host thread: every CUDA thread is a fiber, blocks run one after another, both in an
// order drawn from a seed. Not thread-safe: the stream layer lets one host thread in at a time.
//
// 1. A barrier, a collective or an mbarrier that can never complete throws Fault, as does a barrier that some threads
//    of the block reach at another source line or leave the kernel without.
// 2. A fault unwinds all threads of the block; the grid ends there.
// 3. Dynamic shared memory is a heap allocation of exactly the size asked for; it is all 0xFF when a block starts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/simt/fiber.h"
#include "kernels/simt/types.h"

namespace llmb::simt {

// A mistake in a kernel: which kernel, block and threads, and what they wait for.
class Fault : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct Grid {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;
  const void* kernel = nullptr;  // its host address, for messages
  uint64_t seed = 0;
};

// `thread_body` is the kernel with its arguments; it runs once in every thread.
void run_grid(const Grid& grid, const std::function<void()>& thread_body);

// ---- for what threads call ----------------------------------------------------------------------------------------

struct Site {
  const char* what;
  const char* file;
  int line;
};

// Where a warp's lanes meet. `arguments[lane]` is what each lane of `mask` passed.
using Collective = void (*)(uint32_t mask, void* const* arguments);

struct AsyncCopy {
  void* to;
  const void* from;
  uint32_t num_bytes;
  bool zero_fill;
};
void land(const AsyncCopy& copy);

struct Thread {
  enum class State : uint8_t { kUnstarted, kReady, kBarrier, kCollective, kCondition, kExited };

  State state = State::kExited;
  uint8_t lane = 0;
  uint8_t barrier = 0;
  uint32_t warp = 0;
  uint32_t mask = 0;  // of the collective
  Collective collective = nullptr;
  void* argument = nullptr;
  Site site{};
  uint3 index{};
  std::vector<AsyncCopy> copies;     // cp.async that have not landed
  std::vector<uint32_t> group_ends;  // committed groups: end in `copies`
  std::unique_ptr<Fiber> fiber;
};

// The running thread; null outside kernels.
extern Thread* g_thread;

// Waits until `num_threads` threads (0: the block) have come to barrier `id` (0 to 15; from 16 on the layer's own).
void barrier_sync(uint32_t id, uint32_t num_threads, Site site);
// Counts as arrived without waiting.
void barrier_arrive(uint32_t id, uint32_t num_threads, Site site);
// The last lane of `mask` to arrive runs `collective` for all.
void warp_collective(uint32_t mask, Collective collective, void* argument, Site site);
// Waits until `ready(argument)`; looked at again whenever conditions_changed() was called.
void wait_until(bool (*ready)(void*), void* argument, Site site);
void conditions_changed();
// `block_end` runs whenever all threads of a block have left, from now on; it may call fault().
using BlockEnd = void (*)();
void at_block_end(BlockEnd block_end);
// A block of a kernel that may start before the one ahead of it ended says so, and one of its threads that it waited
// for that one; a block that ends without waiting is a fault.
void starts_ahead();
void waited_for_previous_grid();
// Counts the blocks run so far: what is fresh once a block compares with it.
uint64_t block_epoch();
void* dynamic_shared_memory();
size_t dynamic_shared_bytes();
// Throws Fault with where the thread is.
[[noreturn]] void fault(const std::string& what);
uint32_t random_below(uint32_t bound);

// Fills a __shared__ variable with 0xFF when the first thread of a block comes to its declaration.
template <class Variable>
void fill_once_a_block(Variable& variable, uint64_t& epoch) {
  if (epoch == block_epoch()) return;
  epoch = block_epoch();
  __builtin_memset(static_cast<void*>(&variable), 0xFF, sizeof(variable));
}

}  // namespace llmb::simt

#define LLMB_SIMT_INIT_SHARED(variable)                           \
  do {                                                            \
    static uint64_t llmb_shared_epoch = 0;                        \
    ::llmb::simt::fill_once_a_block(variable, llmb_shared_epoch); \
  } while (false)

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
inline constexpr int warpSize = 32;
