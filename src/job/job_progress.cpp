#include "job/job_progress.h"

namespace llmb {

JobProgress progress_of(const Coordinator& coordinator, const EngineProgress& engine, std::optional<int64_t> num_lines) {
  JobProgress p;
  p.engine = engine;
  p.num_done = coordinator.num_done();
  p.num_failed = coordinator.num_failed();
  p.num_read = coordinator.num_read();
  p.input_bytes = coordinator.input_bytes();
  p.total_bytes = coordinator.total_bytes();
  p.num_lines = num_lines;
  if (!num_lines && coordinator.has_read_all()) p.num_lines = p.num_read;
  p.forecast = coordinator.forecast();
  p.num_finished_tokens = coordinator.num_finished_tokens();
  if (p.num_done > 0 && p.num_failed == p.num_done) p.only_error = coordinator.errors().only_code();
  return p;
}

}  // namespace llmb
