#include "kernels/simt/block_runner.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "kernels/simt/symbol_name.h"

namespace llmb::simt {

BlockRunner* g_runner = nullptr;

namespace {

// Unwinds a thread of a block in which another has failed.
struct Cancelled {};

// Some set bit, where the search starts at a random one.
uint32_t pick_bit(uint32_t bits, uint32_t start) {
  start &= 31;
  return (static_cast<uint32_t>(std::countr_zero(std::rotr(bits, static_cast<int>(start)))) + start) & 31;
}

void free_memory(void* memory) { std::free(memory); }

// Fibers are kept for the next block: they wait at the end of run_thread.
Thread* thread_pool() {
  static thread_local std::vector<Thread> pool(kMaxThreads);
  return pool.data();
}

void fiber_body(void* argument) {
  for (;;) {
    g_thread = static_cast<Thread*>(argument);
    threadIdx = g_thread->index;
    g_runner->run_thread();
  }
}

uint32_t checked_num_threads(const dim3& threads) {
  const uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  if (count == 0 || count > kMaxThreads) throw Fault("a block of " + std::to_string(count) + " threads");
  return static_cast<uint32_t>(count);
}

}  // namespace

BlockRunner::BlockRunner(const Grid& grid, const std::function<void()>& body)
    : grid_(grid),
      body_(body),
      threads_(thread_pool()),
      num_threads_(checked_num_threads(grid.threads)),
      num_warps_((num_threads_ + kWarpLanes - 1) / kWarpLanes),
      shared_(nullptr, free_memory),
      random_(grid.seed) {
  if (grid.shared_bytes > 0) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 1024, grid.shared_bytes) != 0) throw std::bad_alloc();
    shared_.reset(memory);
  }
}

void BlockRunner::start_block(uint3 block) {
  blockIdx = block;
  if (shared_) std::memset(shared_.get(), 0xFF, grid_.shared_bytes);
  num_live_ = num_threads_;
  ready_warps_ = 0;
  cancelled_ = false;
  error_ = nullptr;
  for (Barrier& barrier : barriers_) barrier = {};
  for (uint32_t warp = 0; warp < num_warps_; ++warp) ready_lanes_[warp] = live_lanes_[warp] = meeting_lanes_[warp] = 0;
  uint3 index{0, 0, 0};
  for (uint32_t i = 0; i < num_threads_; ++i) {
    Thread& thread = pool_thread(i / kWarpLanes, i % kWarpLanes);
    thread.lane = static_cast<uint8_t>(i % kWarpLanes);
    thread.warp = i / kWarpLanes;
    thread.index = index;
    thread.copies.clear();
    thread.group_ends.clear();
    if (!thread.fiber) thread.fiber = std::make_unique<Fiber>(fiber_body, &thread);
    live_lanes_[thread.warp] |= 1u << thread.lane;
    set_ready(thread);
    thread.state = Thread::State::kUnstarted;
    if (++index.x == grid_.threads.x) {
      index.x = 0;
      if (++index.y == grid_.threads.y) index.y = 0, ++index.z;
    }
  }
}

void BlockRunner::run_block(uint3 block) {
  start_block(block);
  Thread* first = next_thread();
  Fiber::switch_to(host_, *first->fiber);
  g_thread = nullptr;
  if (error_) std::rethrow_exception(error_);
}

void BlockRunner::set_ready(Thread& thread) {
  thread.state = Thread::State::kReady;
  ready_lanes_[thread.warp] |= 1u << thread.lane;
  ready_warps_ |= 1u << thread.warp;
}

// Mostly another lane of the same warp, so that warps run far ahead of each other: a missing barrier then shows.
Thread* BlockRunner::next_thread() {
  if (ready_warps_ == 0) return nullptr;
  const uint32_t draw = random_.next();
  if (ready_lanes_[current_warp_] == 0 || (draw >> 27) == 0) current_warp_ = pick_bit(ready_warps_, draw >> 8);
  const uint32_t lane = pick_bit(ready_lanes_[current_warp_], draw);
  ready_lanes_[current_warp_] &= ~(1u << lane);
  if (ready_lanes_[current_warp_] == 0) ready_warps_ &= ~(1u << current_warp_);
  Thread* thread = &pool_thread(current_warp_, lane);
  thread->state = Thread::State::kReady;
  return thread;
}

// The running thread has noted what it waits for; returns once somebody has made it ready.
[[gnu::always_inline]] inline void BlockRunner::suspend() {
  Thread* self = g_thread;
  Thread* next = next_thread();
  if (next == nullptr) fail("deadlock: " + where_threads_are());
  if (next != self) {
    Fiber::switch_to(*self->fiber, *next->fiber);
    g_thread = self;
    threadIdx = self->index;
  }
  if (cancelled_) throw Cancelled{};
}

void BlockRunner::run_thread() {
  Thread* self = g_thread;
  if (!cancelled_) {
    try {
      body_();
    } catch (const Cancelled&) {
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
  }
  try {
    leave_thread();
  } catch (...) {
    if (!error_) error_ = std::current_exception();
  }
  if (error_ && !cancelled_) cancel_all();
  Thread* next = next_thread();
  Fiber::switch_to(*self->fiber, next == nullptr ? host_ : *next->fiber);
}

void BlockRunner::leave_thread() {
  Thread* self = g_thread;
  self->state = Thread::State::kExited;
  live_lanes_[self->warp] &= ~(1u << self->lane);
  --num_live_;
  if (cancelled_ || error_) return;
  for (const AsyncCopy& copy : self->copies) land(copy);  // at last: the hardware does not drop it either
  // Lanes that named this one in their mask need not wait for it.
  for (uint32_t rest = meeting_lanes_[self->warp]; rest != 0; rest &= rest - 1) {
    const uint32_t mask = pool_thread(self->warp, static_cast<uint32_t>(std::countr_zero(rest))).mask;
    if ((mask >> self->lane & 1) != 0 && all_met(self->warp, mask)) {
      complete_meeting(self->warp, mask);
      break;
    }
  }
  if (ready_warps_ == 0 && num_live_ > 0) fail("deadlock: " + where_threads_are());
}

void BlockRunner::cancel_all() {
  cancelled_ = true;
  for (uint32_t i = 0; i < num_threads_; ++i) {
    Thread& thread = pool_thread(i / kWarpLanes, i % kWarpLanes);
    if (thread.state != Thread::State::kExited) {
      ready_lanes_[thread.warp] |= 1u << thread.lane;
      ready_warps_ |= 1u << thread.warp;
    }
  }
}

void BlockRunner::check_same_site(const Barrier& barrier, uint32_t id, Site site) const {
  // Named barriers join threads that run different code; barrier 0 of the whole block does not.
  if (id != 0 || barrier.expected != num_threads_ || barrier.arrived == 0) return;
  if (barrier.site.line == site.line && barrier.site.file == site.file) return;
  if (barrier.site.line == site.line && std::strcmp(barrier.site.file, site.file) == 0) return;
  fail("divergent " + std::string(site.what) + " at line " + std::to_string(site.line) + " while " +
       where_threads_are());
}

void BlockRunner::sync(uint32_t id, uint32_t num_threads, Site site, bool wait) {
  if (id >= kNumBarriers) fail("barrier " + std::to_string(id) + " does not exist");
  Barrier& barrier = barriers_[id];
  const uint32_t expected = num_threads == 0 ? num_threads_ : num_threads;
  if (barrier.arrived > 0 && barrier.expected != expected) {
    fail("barrier " + std::to_string(id) + " is awaited by different numbers of threads; " + where_threads_are());
  }
  barrier.expected = expected;
  check_same_site(barrier, id, site);
  barrier.site = site;
  Thread* self = g_thread;
  if (++barrier.arrived < expected) {
    if (!wait) return;
    self->state = Thread::State::kBarrier;
    self->barrier = static_cast<uint8_t>(id);
    self->site = site;
    if (id == 0 && expected > num_live_) {
      fail("threads that have left the kernel are missing at " + std::string(site.what) + "; " + where_threads_are());
    }
    suspend();
    return;
  }
  barrier = {};
  for (uint32_t i = 0; i < num_threads_; ++i) {
    Thread& thread = pool_thread(i / kWarpLanes, i % kWarpLanes);
    if (thread.state == Thread::State::kBarrier && thread.barrier == id) set_ready(thread);
  }
  if (!wait) return;
  set_ready(*self);  // who comes last need not go on first
  suspend();
}

void BlockRunner::meet(uint32_t mask, Collective collective, void* argument, Site site) {
  Thread* self = g_thread;
  const uint32_t warp = self->warp;
  const uint32_t bit = 1u << self->lane;
  if ((mask & bit) == 0) fail(std::string(site.what) + ": the calling lane is not in its own mask");
  self->state = Thread::State::kCollective;
  self->mask = mask;
  self->collective = collective;
  self->argument = argument;
  self->site = site;
  meeting_lanes_[warp] |= bit;
  if (!all_met(warp, mask)) {
    suspend();
    return;
  }
  complete_meeting(warp, mask);
  ready_lanes_[warp] &= ~bit;  // the last to come goes on
  if (ready_lanes_[warp] == 0) ready_warps_ &= ~(1u << warp);
  self->state = Thread::State::kReady;
}

bool BlockRunner::all_met(uint32_t warp, uint32_t mask) const {
  const uint32_t present = mask & live_lanes_[warp];
  return (meeting_lanes_[warp] & present) == present;
}

void BlockRunner::complete_meeting(uint32_t warp, uint32_t mask) {
  const uint32_t present = mask & live_lanes_[warp];
  if (present == 0) return;
  const Collective collective = pool_thread(warp, static_cast<uint32_t>(std::countr_zero(present))).collective;
  void* arguments[kWarpLanes];
  for (uint32_t rest = present; rest != 0; rest &= rest - 1) {
    const uint32_t lane = static_cast<uint32_t>(std::countr_zero(rest));
    Thread& thread = pool_thread(warp, lane);
    if (thread.mask != mask || thread.collective != collective) {
      fail("the lanes of a warp are in different collectives, or with different masks: " + where_threads_are());
    }
    arguments[lane] = thread.argument;
  }
  collective(present, arguments);
  meeting_lanes_[warp] &= ~present;
  for (uint32_t rest = present; rest != 0; rest &= rest - 1) {
    set_ready(pool_thread(warp, static_cast<uint32_t>(std::countr_zero(rest))));
  }
}

void BlockRunner::wait_until(bool (*ready)(void*), void* argument, Site site) {
  while (!ready(argument)) {
    g_thread->state = Thread::State::kCondition;
    g_thread->site = site;
    suspend();
  }
}

void BlockRunner::wake_conditions() {
  for (uint32_t i = 0; i < num_threads_; ++i) {
    Thread& thread = pool_thread(i / kWarpLanes, i % kWarpLanes);
    if (thread.state == Thread::State::kCondition) set_ready(thread);
  }
}

std::string BlockRunner::place() const {
  std::string text = "kernel " + symbol_name(grid_.kernel) + ", block (" + std::to_string(blockIdx.x) + "," +
                     std::to_string(blockIdx.y) + "," + std::to_string(blockIdx.z) + ")";
  if (g_thread != nullptr) {
    const uint3 index = g_thread->index;
    text +=
        ", thread (" + std::to_string(index.x) + "," + std::to_string(index.y) + "," + std::to_string(index.z) + ")";
  }
  return text + ", seed " + std::to_string(grid_.seed);
}

// "12 threads (first 3) wait at __syncthreads (x.cu:7); ...": grouped by what they wait for.
std::string BlockRunner::where_threads_are() const {
  struct Group {
    uint32_t count = 0;
    uint32_t first = 0;
  };
  std::map<std::string, Group> groups;
  for (uint32_t i = 0; i < num_threads_; ++i) {
    const Thread& thread = pool_thread(i / kWarpLanes, i % kWarpLanes);
    std::string what = "run";
    if (thread.state == Thread::State::kExited) what = "have left the kernel";
    if (thread.state == Thread::State::kBarrier || thread.state == Thread::State::kCollective ||
        thread.state == Thread::State::kCondition) {
      what = "wait at " + std::string(thread.site.what) + " (" + thread.site.file + ":" +
             std::to_string(thread.site.line) + ")";
      if (thread.state == Thread::State::kCollective) {
        char mask[16];
        std::snprintf(mask, sizeof(mask), "%08x", thread.mask);
        what += " with mask " + std::string(mask);
      }
    }
    Group& group = groups[what];
    if (group.count++ == 0) group.first = i;
  }
  std::string text;
  for (const auto& [what, group] : groups) {
    if (!text.empty()) text += "; ";
    text += std::to_string(group.count) + " threads (first " + std::to_string(group.first) + ") " + what;
  }
  return text;
}

void BlockRunner::fail(const std::string& what) const { throw Fault(place() + ": " + what); }

}  // namespace llmb::simt
