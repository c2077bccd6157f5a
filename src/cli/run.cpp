#include "cli/run.h"

#include <unistd.h>

#include <cstdio>
#include <new>
#include <system_error>

#include "base/memory_reserve.h"
#include "cli/batch_run.h"
#include "cli/exit_code.h"
#include "cli/options.h"
#include "job/final_report.h"

namespace llmb {

namespace {

// What is thrown becomes an exit code and a line on stderr, without taking memory.
template <typename Body>
int guarded(const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
  } catch (const std::system_error& e) {  // no memory for another thread
    if (e.code() != std::errc::resource_unavailable_try_again && e.code() != std::errc::not_enough_memory) {
      std::fprintf(stderr, "llm-batch: bug: %s\n", e.what());
      return kExitBug;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "llm-batch: bug: %s\n", e.what());
    return kExitBug;
  }
  std::fputs("llm-batch: error: out of memory; try a smaller --max-num-seqs or --kv-cache-memory-bytes\n", stderr);
  return kExitOutOfMemory;
}

int run(const Options& options, const BackendFactory& make) {
  BatchRun job(options, make);
  const int exit_code = guarded([&] { return job.execute(); });
  const bool is_silent = exit_code == kExitReaderGone || exit_code == kExitUsage || options.dry_run;
  if (!is_silent) std::fputs((final_report_json(job.report(), exit_code) + "\n").c_str(), stderr);
  if (job.must_end_process()) ::_exit(exit_code);  // stderr has no buffer
  return exit_code;
}

}  // namespace

int run_command_line(int argc, const char* const* argv, const BackendFactory& make) {
  hold_memory_reserve();
  return guarded([&] {
    const ParsedCommandLine parsed = parse_command_line(argc, argv);
    return parsed.exit_code ? *parsed.exit_code : run(parsed.options, make);
  });
}

}  // namespace llmb
