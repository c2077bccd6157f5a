#include <cstdio>
#include <exception>
#include <new>

#include "cli/exit_code.h"
#include "cli/options.h"
#include "cli/run.h"
#include "cli/signals.h"

int main(int argc, char** argv) {
  llmb::install_signal_handlers();
  const llmb::ParsedCommandLine parsed = llmb::parse_command_line(argc, argv);
  if (parsed.exit_code) return *parsed.exit_code;
  try {
    return llmb::run(parsed.options);
  } catch (const std::bad_alloc&) {
    std::fputs("llm-batch: error: out of memory; try a smaller --max-num-seqs or --kv-cache-memory-bytes\n", stderr);
    return llmb::kExitOutOfMemory;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "llm-batch: bug: %s\n", e.what());
    return llmb::kExitBug;
  }
}
