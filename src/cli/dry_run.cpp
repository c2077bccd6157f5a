#include "cli/dry_run.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "cli/exit_code.h"
#include "cli/signals.h"

namespace llmb {

int dry_run(RequestIntake& intake) {
  constexpr int64_t kMaxShown = 20;
  int64_t num_ok = 0, num_bad = 0, num_tokens = 0, longest = 0, num_cut = 0;
  while (!intake.at_end() && interrupt_count() == 0) {
    const auto item = intake.next(100);
    if (!item) continue;
    if (item->request) {
      const auto size = static_cast<int64_t>(item->request->prompt_tokens.size());
      num_ok++;
      num_tokens += size;
      num_cut += item->request->num_truncated_tokens > 0;
      longest = std::max(longest, size);
      continue;
    }
    if (++num_bad > kMaxShown) continue;
    const LineRef& line = item->failure.line;
    log_error(line.source + ":" + std::to_string(line.line_number) + ": " + item->failure.error->code + ": " +
              item->failure.error->message);
  }
  if (num_bad > kMaxShown) log_error("… and " + std::to_string(num_bad - kMaxShown) + " more bad lines");
  if (interrupt_count() > 0) return interrupted_exit_code();
  if (const Status status = intake.status(); !status.ok()) return fail(kExitInputUnreadable, status);
  log_info("dry run: " + std::to_string(num_ok) + " lines ok, " + std::to_string(num_bad) + " bad, " +
           std::to_string(num_tokens) + " prompt tokens, longest prompt " + std::to_string(longest) +
           (num_cut > 0 ? ", " + std::to_string(num_cut) + " prompts cut" : ""));
  return num_bad > 0 ? kExitSomeFailed : kExitOk;
}

}  // namespace llmb
