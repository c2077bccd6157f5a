// A fixed set of threads that run one parallel loop at a time, for kernels: low latency, no allocation per loop.
#pragma once

#include <cstdint>
#include <memory>

namespace llmb {

// parallel_for may be called from one thread at a time; that thread takes part in the work.
class ThreadPool {
 public:
  // num_threads >= 1 counts the calling thread; num_threads - 1 are started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(task, thread) once for each task in [0, num_tasks), thread in [0, num_threads). Thread i begins with
  // task i, the others are handed out one by one, in order, to whichever thread is free; returns when all are done. An
  // exception in a body is rethrown here after all threads have stopped.
  template <typename Body>
  void parallel_for(int64_t num_tasks, const Body& body) {
    run(
        num_tasks, [](const void* b, int64_t task, int thread) { (*static_cast<const Body*>(b))(task, thread); },
        &body);
  }

 private:
  using Call = void (*)(const void* body, int64_t task, int thread);
  void run(int64_t num_tasks, Call call, const void* body);

  struct State;
  std::unique_ptr<State> state_;
};

// Cores this process may run on (affinity mask and cgroup quota considered), at least 1.
int usable_cpu_count();

}  // namespace llmb
