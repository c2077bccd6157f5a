// A fiber: a stack of its own with a guard page, and switches that AddressSanitizer follows. A fiber stays on the host
// thread that made it. To ThreadSanitizer all fibers of a thread are that thread, which they are as far as races go:
// told of each, it compares clocks of a thousand threads at every switch. Calls in its reports can then be another
// fiber's.
#pragma once

#include <boost/context/detail/fcontext.hpp>
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
  struct Step {
    Fiber* from;
    Fiber* to;
  };

  static void enter(boost::context::detail::transfer_t transfer);
  void about_to_leave(Fiber& to);
  void arrived(boost::context::detail::transfer_t transfer);

  void* context_ = nullptr;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  void* mapping_ = nullptr;  // guard page and stack
  const void* stack_bottom_ = nullptr;
  size_t stack_bytes_ = 0;
  void* asan_fake_stack_ = nullptr;
};

#if !defined(__SANITIZE_ADDRESS__)
inline void Fiber::about_to_leave(Fiber&) {}
inline void Fiber::arrived(boost::context::detail::transfer_t transfer) {
  static_cast<Step*>(transfer.data)->from->context_ = transfer.fctx;
}
#endif

// Inline, since the processor predicts no return after a switch.
inline void Fiber::switch_to(Fiber& from, Fiber& to) {
  Step step{&from, &to};
  from.about_to_leave(to);
  from.arrived(boost::context::detail::jump_fcontext(to.context_, &step));
}

}  // namespace llmb::simt
