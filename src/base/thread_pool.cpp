#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"

namespace llmb {

namespace {

// A loop in a forward pass follows the previous one within microseconds: waiting threads spin this many times before
// they sleep, which is some tens of microseconds.
constexpr int kMaxSpins = 4000, kMinSpins = 500;

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins while one waits, half as many times after a wait in vain: where other programs have the cores, spinning would
// take their time and gain nothing.
class Spinner {
 public:
  explicit Spinner(int max_spins) : max_spins_(max_spins), spins_(max_spins) {}

  template <typename IsOver>
  void wait(const IsOver& is_over) {
    for (int i = 0; i < spins_; ++i) {
      if (is_over()) {
        spins_ = std::min(max_spins_, 2 * spins_);
        return;
      }
      cpu_relax();
    }
    spins_ = std::min(max_spins_, std::max(kMinSpins, spins_ / 2));
  }

 private:
  const int max_spins_;
  int spins_;
};

}  // namespace

struct ThreadPool::State {
  explicit State(int spins) : max_spins(spins), end_spinner(spins) {}

  std::vector<std::thread> threads;
  const int max_spins;  // 0 where threads share cores: spinning would keep the others from their work
  Spinner end_spinner;  // for the end of a loop
  std::mutex mutex;
  std::condition_variable wake, done;
  std::atomic<uint64_t> generation{0};  // one per loop; odd/even has no meaning
  std::atomic<bool> stop{false};
  // The current loop. Written before `generation` is raised.
  Call call = nullptr;
  const void* body = nullptr;
  int64_t num_tasks = 0;
  std::atomic<int64_t> next_task{0};
  std::atomic<int> num_busy{0};  // started threads that have not finished this loop
  std::exception_ptr error;      // guarded by mutex

  void work(int thread) {
    try {
      for (int64_t task = thread; task < num_tasks; task = next_task.fetch_add(1, std::memory_order_relaxed))
        call(body, task, thread);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next_task.store(num_tasks, std::memory_order_relaxed);
    }
  }

  void thread_main(int thread) {
    uint64_t seen = 0;
    Spinner spinner(max_spins);
    while (true) {
      spinner.wait([&] { return generation.load(std::memory_order_acquire) != seen; });
      if (generation.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return generation.load(std::memory_order_acquire) != seen; });
      }
      seen = generation.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      work(thread);
      if (num_busy.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard lock(mutex);  // pairs with the wait in run(): no lost wake-up
        done.notify_one();
      }
    }
  }

  void end_threads() {
    stop.store(true, std::memory_order_release);
    raise_generation();
    for (std::thread& thread : threads) thread.join();
  }

  void raise_generation() {
    std::lock_guard lock(mutex);
    generation.fetch_add(1, std::memory_order_release);
    wake.notify_all();
  }
};

ThreadPool::ThreadPool(int num_threads)
    : state_(std::make_unique<State>(num_threads <= usable_cpu_count() ? kMaxSpins : 0)) {
  LLMB_CHECK(num_threads >= 1);
  try {
    for (int i = 1; i < num_threads; ++i) state_->threads.emplace_back([s = state_.get(), i] { s->thread_main(i); });
  } catch (...) {  // no memory for another thread
    state_->end_threads();
    throw;
  }
}

ThreadPool::~ThreadPool() { state_->end_threads(); }

int ThreadPool::num_threads() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::run(int64_t num_tasks, Call call, const void* body) {
  State& s = *state_;
  if (s.threads.empty() || num_tasks <= 1) {
    for (int64_t task = 0; task < num_tasks; ++task) call(body, task, 0);
    return;
  }
  s.call = call;
  s.body = body;
  s.num_tasks = num_tasks;
  s.next_task.store(num_threads(), std::memory_order_relaxed);
  s.num_busy.store(static_cast<int>(s.threads.size()), std::memory_order_relaxed);
  s.raise_generation();
  s.work(0);
  s.end_spinner.wait([&] { return s.num_busy.load(std::memory_order_acquire) == 0; });
  std::unique_lock lock(s.mutex);
  s.done.wait(lock, [&] { return s.num_busy.load(std::memory_order_acquire) == 0; });
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

int usable_cpu_count() {
  cpu_set_t set;
  int count = 1;
  if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
  // cgroup v2: "max 100000" or "200000 100000".
  if (FILE* f = std::fopen("/sys/fs/cgroup/cpu.max", "re")) {
    long long quota = 0, period = 0;
    if (std::fscanf(f, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0) {
      const int limit = static_cast<int>((quota + period - 1) / period);
      if (limit >= 1 && limit < count) count = limit;
    }
    std::fclose(f);
  }
  return count >= 1 ? count : 1;
}

}  // namespace llmb
