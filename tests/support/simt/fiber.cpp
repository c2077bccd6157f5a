#include "tests/support/simt/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace llmb::simt {

namespace context = boost::context::detail;

namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
// Stacks that begin at the same offset of a page compete for the same few lines of the cache.
constexpr size_t kStackShift = 5 * 64;
constexpr size_t kNumShifts = 64;

}  // namespace

struct Fiber::Entry {
  static void start(context::transfer_t transfer) { enter(transfer.fctx, transfer.data); }
};

Fiber::Fiber(Body body, void* argument) : body_(body), argument_(argument), stack_bytes_(kStackBytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  mapping_ =
      mmap(nullptr, page + stack_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  LLMB_CHECK(mapping_ != MAP_FAILED);
  LLMB_CHECK(mprotect(mapping_, page, PROT_NONE) == 0);
  char* bottom = static_cast<char*>(mapping_) + page;
  stack_bottom_ = bottom;
  static thread_local size_t num_made = 0;
  const size_t used_bytes = stack_bytes_ - num_made++ % kNumShifts * kStackShift;
  context_ = context::make_fcontext(bottom + used_bytes, used_bytes, &Entry::start);
#if defined(__SANITIZE_THREAD__)
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(tsan_fiber_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_bottom_, stack_bytes_);
#endif
  munmap(mapping_, static_cast<size_t>(sysconf(_SC_PAGESIZE)) + stack_bytes_);
}

// Runs first on the stack that was switched to.
void Fiber::arrived(void* transfer_context, Fiber* left, Fiber& self) {
  left->context_ = transfer_context;
#if defined(__SANITIZE_ADDRESS__)
  const void* left_bottom = nullptr;
  size_t left_bytes = 0;
  __sanitizer_finish_switch_fiber(self.asan_fake_stack_, &left_bottom, &left_bytes);
  left->stack_bottom_ = left_bottom;  // how the host's own stack becomes known
  left->stack_bytes_ = left_bytes;
#else
  (void)self;
#endif
}

namespace {

struct Switch {
  Fiber* from;
  Fiber* to;
};

}  // namespace

void Fiber::enter(void* transfer_context, void* transfer_data) {
  const Switch step = *static_cast<Switch*>(transfer_data);
  arrived(transfer_context, step.from, *step.to);
  step.to->body_(step.to->argument_);
  __builtin_trap();
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
  Switch step{&from, &to};
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.asan_fake_stack_, to.stack_bottom_, to.stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  if (from.tsan_fiber_ == nullptr) from.tsan_fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.tsan_fiber_, 0);
#endif
  const context::transfer_t back = context::jump_fcontext(to.context_, &step);
  arrived(back.fctx, static_cast<Switch*>(back.data)->from, from);
}

}  // namespace llmb::simt
