#include "tests/support/engine_job.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "engine/constraint_compiler.h"
#include "engine/constraint_vocabulary.h"
#include "io/resume_scan.h"
#include "job/completed_lines.h"
#include "job/coordinator.h"
#include "job/request_intake.h"

namespace llmb::test {

namespace {

void require(const Status& status) { LLMB_CHECK_MSG(status.ok(), status.message()); }

// Fills `completed`; the number of bytes to keep.
int64_t scan_partial(const std::string& path, CompletedLines* completed) {
  if (read_file(path).empty()) return 0;
  const auto scanned = scan_records(path, [&](const RecordSummary& record, std::string_view) {
    LLMB_CHECK(completed->add(record.index, record.content_hash));
    return Status();
  });
  require(scanned.status());
  LLMB_CHECK(scanned->torn_bytes == 0);
  return scanned->whole_bytes;
}

Status load_backend(const EngineJobOptions& options, const SchedulerConfig& scheduler, Backend* backend) {
  LoadOptions load = options.load;
  load.max_num_drafts = scheduler.max_num_drafts;
  load.block_size = scheduler.block_size;
  load.num_blocks_override = scheduler.num_blocks;
  load.max_num_seqs = scheduler.max_num_seqs;
  load.max_num_batched_tokens = scheduler.max_num_batched_tokens;
  load.max_model_len = scheduler.max_model_len;
  return backend->load(options.config, load);
}

// Returns when all `num_lines` that are not in `completed` are read.
std::unique_ptr<Coordinator> open_input(const EngineJobOptions& options, const std::string& path, size_t num_lines,
                                        const CompletedLines& completed, std::shared_ptr<const Clock> clock) {
  auto model = std::make_shared<ModelContext>();
  model->tokenizer = options.tokenizer;
  model->eos_token_ids = options.eos_token_ids;
  model->vocab_size = options.config.vocab_size;
  model->max_model_len = options.scheduler.max_model_len;
  model->is_indivisible =
      options.config.is_encoder || (options.load.pooling && options.load.pooling->needs_whole_text());
  if (options.tokenizer != nullptr)
    model->constraints = std::make_shared<ConstraintCompiler>([&options] {
      return constraint_vocabulary(*options.tokenizer, options.config.vocab_size, options.eos_token_ids);
    });
  RequestLimits limits;
  limits.vocab_size = options.config.vocab_size;
  if (options.load.pooling) limits.num_labels = static_cast<int32_t>(options.load.pooling->labels.size());
  IntakeOptions intake_options;
  intake_options.completed = &completed;
  auto intake = std::make_unique<RequestIntake>(std::make_unique<LineReader>(std::vector<std::string>{path}),
                                                std::make_unique<RequestParser>(options.defaults, limits),
                                                std::move(model), std::move(clock), intake_options);
  CoordinatorOptions coordinator_options;
  coordinator_options.window = num_lines + 1;
  coordinator_options.order = OutputOrder::kInput;
  coordinator_options.format.metrics = false;
  if (options.load.pooling) coordinator_options.format.labels = options.load.pooling->labels;
  coordinator_options.max_errors = options.max_errors;
  auto coordinator = std::make_unique<Coordinator>(std::move(intake), coordinator_options);
  while (!coordinator->has_read_all()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  require(coordinator->input_status());
  return coordinator;
}

}  // namespace

EngineJob::EngineJob(const std::string& input)
    : num_lines_(static_cast<size_t>(std::count(input.begin(), input.end(), '\n'))) {
  write_file(in_, input);
}

EngineJobOutcome EngineJob::run(const EngineJobOptions& options) const {
  const auto steady = std::make_shared<SteadyClock>();
  Clock& clock = options.ledger.clock ? static_cast<Clock&>(*options.ledger.clock) : *steady;
  SchedulerConfig scheduler = options.scheduler;
  if (scheduler.num_blocks == 0) scheduler.num_blocks = 64;
  ScriptedBackend backend(options.make_backend ? options.make_backend() : make_ledger_backend(options.ledger),
                          options.script);
  require(load_backend(options, scheduler, &backend));

  CompletedLines completed;
  OutputSinkOptions sink_options;
  sink_options.path = out_;
  sink_options.keep_bytes = scan_partial(out_ + ".partial", &completed);
  auto sink = OutputSink::open(sink_options, *steady);
  require(sink.status());
  const auto coordinator = open_input(options, in_, num_lines_, completed, steady);
  coordinator->begin_output(**sink, nullptr);
  std::atomic<int> interrupted{0};
  EngineJobOutcome outcome;
  const auto on_progress = [&](const EngineProgress& progress) {
    outcome.last_progress = progress_of(*coordinator, progress);
    if (options.on_progress) options.on_progress(outcome.last_progress, &interrupted);
  };
  Engine engine(
      {.scheduler = scheduler, .proposer = options.proposer, .step_cost = options.step_cost, .model = options.config},
      backend, options.tokenizer.get(), clock, *coordinator, *coordinator, interrupted, on_progress);
  outcome.status = engine.run();
  LLMB_CHECK_MSG(backend.num_in_flight() == 0, "run() returned with a plan in flight");
  require(coordinator->results().drain());
  const bool is_complete = outcome.status.ok() && interrupted == 0 && !coordinator->has_too_many_errors();
  if (is_complete) require((*sink)->finish());
  const RequestMetrics& requests = coordinator->results().metrics();
  outcome.num_completed = requests.num_completed;
  outcome.num_failed = requests.num_failed;
  outcome.num_left = engine.num_left();
  outcome.num_output_tokens = requests.num_output_tokens;
  outcome.num_preemptions = requests.num_preemptions;
  outcome.num_steps = engine.metrics().num_steps;
  outcome.busy_ms = engine.metrics().busy_ms;
  outcome.num_sampled = backend.num_sampled();
  return outcome;
}

std::map<int64_t, std::string> records_by_index(const std::string& output) {
  LLMB_CHECK(output.empty() || output.back() == '\n');
  std::map<int64_t, std::string> found;
  std::stringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    LLMB_CHECK(found.emplace(nlohmann::json::parse(line)["index"].get<int64_t>(), line).second);
  return found;
}

}  // namespace llmb::test
