#include "cli/large_stack.h"

#include <pthread.h>
#include <sys/resource.h>

#include <system_error>
#include <thread>

#include "base/log.h"
#include "cli/exit_code.h"

namespace llmb {

namespace {

constexpr size_t kStackBytes = size_t{8} << 20;  // what most systems give; templates and patterns are bounded by less

bool set_stack_of_threads() {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  const bool is_set = pthread_attr_setstacksize(&attributes, kStackBytes) == 0 &&
                      pthread_setattr_default_np(&attributes) == 0;
  pthread_attr_destroy(&attributes);
  return is_set;
}

}  // namespace

int run_on_large_stack(const std::function<int()>& body) {
  const bool is_set = set_stack_of_threads();
  rlimit limit{};
  if (!is_set || getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur >= kStackBytes)
    return body();
  int exit_code = 0;
  try {
    std::thread([&] { exit_code = body(); }).join();
  } catch (const std::system_error&) {
    log_error("no memory for a stack of 8 MiB; raise the limits on memory or on stacks (ulimit -v, ulimit -s)");
    return kExitOutOfMemory;
  }
  return exit_code;
}

}  // namespace llmb
