// A fiber: a stack of its own with a guard page, and switches that AddressSanitizer and ThreadSanitizer follow.
// A fiber stays on the host thread that made it.
#pragma once

#include <cstddef>

namespace llmb::simt {

class Fiber {
 public:
  using Body = void (*)(void* argument);

  Fiber() = default;  // stands for the host thread's own stack
  // `body(argument)` runs from the first switch on and must never return.
  Fiber(Body body, void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Leaves the running fiber `from` and goes on where `to` left off. Returns when somebody switches back to `from`.
  static void switch_to(Fiber& from, Fiber& to);

 private:
  static void enter(void* transfer_context, void* transfer_data);
  static void arrived(void* transfer_context, Fiber* left, Fiber& self);
  struct Entry;

  void* context_ = nullptr;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  void* mapping_ = nullptr;  // guard page and stack
  const void* stack_bottom_ = nullptr;
  size_t stack_bytes_ = 0;
  void* asan_fake_stack_ = nullptr;
  void* tsan_fiber_ = nullptr;
};

}  // namespace llmb::simt
