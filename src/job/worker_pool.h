// Several workers in processes of their own, on this machine: each has a GPU or a part of the cores. They take rows
// from the job and give answers back (worker_messages.h), so the job's output, order and resume are those of one
// worker.
//
// A worker that ends, or gives no sign of life, costs its rows in hand, which others compute again. One that ended is
// started again as long as it answers rows in between; one that hung is not, as that would take as long again to be
// seen. The run fails where none is left.
//
// Prefill and decode apart: some workers compute the whole blocks of rows' prompts and give them to the job, which hands
// row and blocks to one of the others. A prompt whose blocks a dying worker had is computed by the one that answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "job/row_dealer.h"
#include "job/worker_process.h"
#include "job/workforce.h"

namespace llmb {

struct WorkerPoolOptions {
  int count = 1;
  int num_slots = 1;                // rows that a worker runs at one time
  std::vector<WorkerOrder> orders;  // [count]
  // The first one writes the packed weights that the others map: they start when it is ready.
  bool starts_one_first = false;
  bool measures_limits = false;
  double silence_ms = 60000;  // without a sign of life; then a worker is taken to hang
  double grace_ms = 0;        // for running rows, after the job was asked to end
  std::function<void(const std::string& message)> warn;  // of workers that were lost
};

// One thread drives it, and lives as long as the workers do.
class WorkerPool final : public Workforce {
 public:
  // `interrupted` outlives the pool.
  WorkerPool(WorkerPoolOptions options, StartWorker start, const std::atomic<int>& interrupted);
  ~WorkerPool() override;

  // Until the first worker is ready; the others follow. Needs no backend.
  std::optional<JobStop> load(const BackendFactory& make_backend) override;
  const BackendInfo& info() const override { return info_; }
  int count() const override { return options_.count; }
  Status run(RequestSource& requests, CompletionSink& completions, const Tokenizer* tokenizer, Clock& clock,
             const std::atomic<int>& interrupted,
             const std::function<void(const EngineProgress&)>& on_progress) override;

  StepMetrics metrics() const override { return metrics_; }
  SpeculationMetrics speculation() const override { return speculation_; }
  int64_t num_left() const override { return num_left_; }
  void set_step_cost(const StepCost& cost) override { step_cost_ = cost; }
  const StepCost& step_cost() const override { return step_cost_; }
  MachineLimits measure_limits() override { return limits_; }
  double ending_ms() const override { return ending_ms_; }
  DeviceWatch& watch() override { return watch_; }

 private:
  // A place that a worker takes, and after it the next.
  struct Place {
    std::unique_ptr<WorkerProcess> process;                         // null: none
    bool is_ready = false, has_start = false, has_no_more = false;  // the process
    bool has_finished = false;                                      // or the one that was here last
    bool is_given_up = false;
    int num_vain = 0;          // ends in a row without an answer between them
    double restart_at_ms = 0;  // monotonic_ms()
    double silent_ms = 0;
    WorkerReport report;  // of the process
    std::optional<WorkerFailure> failure;
  };
  // The job's side, while run() lasts.
  struct Run {
    RequestSource& source;
    CompletionSink& sink;
    Clock& clock;
    const std::function<void(const EngineProgress&)>& on_progress;
    double start_ms = 0, start_monotonic_ms = 0;
    std::optional<WorkItem> held;  // arrives later
    int num_interrupts = 0;
    double overdue_ms = 0;  // since the workers were to have ended
  };

  void start(int index);
  void start_those_due();
  void exchange(double timeout_ms);
  void take(int index, const Message& message);
  void take_answer(int index, const Message& message);
  void take_blocks(int index, const Message& message);
  void lose(int index, const std::string& how, bool hangs = false);
  void put_error(const WorkItem& row, const std::string& how);
  void warn(const std::string& words);
  void count_silence();
  WorkerRole role_of(int index) const { return options_.orders[static_cast<size_t>(index)].role; }
  RowDealer& dealer_of(int index) { return role_of(index) == WorkerRole::kDecode ? *decoder_ : dealer_; }
  size_t num_in_hand() const { return dealer_.num_in_hand() + (decoder_ ? decoder_->num_in_hand() : 0); }
  size_t num_waiting() const { return dealer_.num_waiting() + (decoder_ ? decoder_->num_waiting() : 0); }
  bool has_all(int index);
  size_t drop_waiting();
  bool is_any_left() const;
  std::optional<JobStop> stop_of_load() const;

  Status run_rows();
  bool is_interrupted();
  void take_rows();
  void deal_rows();
  void deal_row(WorkItem row);
  void send_row(int index, const WorkItem& row);
  void finish_workers();
  void add_report(const WorkerReport& report, bool is_prefill);
  void report_progress();
  std::string name_of(int index) const;
  std::string workers_in_words() const;

  const WorkerPoolOptions options_;
  const StartWorker start_;
  const std::atomic<int>& interrupted_;
  DeviceWatch watch_;  // of no call: workers watch their own
  BackendInfo info_;
  std::vector<Place> places_;
  std::string last_words_;             // of the worker that ended last
  std::vector<std::string> warnings_;  // that are held back
  RowDealer dealer_;                  // to workers that take rows first
  std::optional<RowDealer> decoder_;  // to those that go on behind prompts; none: no worker does only that
  std::unordered_map<int64_t, std::string> blocks_;  // by ordinals of rows that wait in it
  int64_t num_block_bytes_ = 0;                      // of these
  Run* run_ = nullptr;
  bool is_ending_ = false;  // workers are not started any more
  double last_look_ms_ = 0;
  StepMetrics metrics_;
  SpeculationMetrics speculation_;
  int64_t num_left_ = 0;
  int64_t num_ended_input_tokens_ = 0, num_ended_output_tokens_ = 0;  // of processes that have ended
  StepCost step_cost_;
  MachineLimits limits_;
  double ending_ms_ = 0;
};

}  // namespace llmb
