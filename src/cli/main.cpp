#include "cli/large_stack.h"
#include "cli/run.h"
#include "cli/signals.h"

int main(int argc, char** argv) {
  llmb::install_signal_handlers();
  return llmb::run_on_large_stack([&] { return llmb::run_command_line(argc, argv); });
}
