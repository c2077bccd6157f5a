#include "kernels/simt/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace llmb::simt {

namespace context = boost::context::detail;

namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
// Stacks that begin at the same offset of a page compete for the same few lines of the cache.
constexpr size_t kStackShift = 5 * 64;
constexpr size_t kNumShifts = 64;

}  // namespace

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
  context_ = context::make_fcontext(bottom + used_bytes, used_bytes, &Fiber::enter);
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_bottom_, stack_bytes_);
#endif
  munmap(mapping_, static_cast<size_t>(sysconf(_SC_PAGESIZE)) + stack_bytes_);
}

#if defined(__SANITIZE_ADDRESS__)

void Fiber::about_to_leave(Fiber& to) {
  __sanitizer_start_switch_fiber(&asan_fake_stack_, to.stack_bottom_, to.stack_bytes_);
}

// Runs first on the stack that was switched to.
void Fiber::arrived(context::transfer_t transfer) {
  Fiber* left = static_cast<Step*>(transfer.data)->from;
  left->context_ = transfer.fctx;
  const void* left_bottom = nullptr;
  size_t left_bytes = 0;
  __sanitizer_finish_switch_fiber(asan_fake_stack_, &left_bottom, &left_bytes);
  left->stack_bottom_ = left_bottom;  // how the host's own stack becomes known
  left->stack_bytes_ = left_bytes;
}

#endif

void Fiber::enter(context::transfer_t transfer) {
  Fiber* self = static_cast<Step*>(transfer.data)->to;
  self->arrived(transfer);
  self->body_(self->argument_);
  __builtin_trap();
}

}  // namespace llmb::simt
