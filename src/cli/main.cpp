#include "base/process_start.h"
#include "cli/exit_code.h"
#include "cli/run.h"
#include "cli/signals.h"

int main(int argc, char** argv) {
  if (!llmb::open_standard_descriptors()) return llmb::kExitOutOfMemory;
  llmb::enlarge_thread_stacks();
  llmb::install_signal_handlers();
  return llmb::run_command_line(argc, argv);
}
