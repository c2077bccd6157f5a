// Stacks that do not depend on `ulimit -s`.
#pragma once

#include <functional>

namespace llmb {

// Calls `body` on a stack of 8 MiB at least: on this thread where the limit allows it, else on one of its own. Threads
// started from now on have as much. An exit code where there is no memory for that, said in one line.
int run_on_large_stack(const std::function<int()>& body);

}  // namespace llmb
