#include "job/job.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "base/log.h"
#include "job/data_mapping.h"
#include "job/input_check.h"
#include "job/make_intake.h"
#include "job/prefix_rows.h"
#include "job/tuned_settings.h"
#include "job/worker_setup.h"

namespace llmb {

Job::Job(JobOptions options, const JobEnvironment& environment)
    : options_(std::move(options)), environment_(environment), output_(options_, live_, keep_going_, *clock_) {}

JobEnding Job::run() {
  if (auto stop = prepare()) return ending(std::move(*stop));
  // Nothing is loaded in vain: a load cannot be called off, so the process would have to end with it.
  if (is_interrupted()) return ending({JobEnd::kInterrupted, ""});
  return compute();
}

// Up to the first line that needs an answer.
std::optional<JobStop> Job::prepare() {
  if (const Status status = make_data_mapping(options_.data).status(); !status.ok())
    return JobStop{JobEnd::kOptionRefused, "`template`: " + status.message()};
  reader_ = open_inputs(options_, nullptr);
  if (const Status status = reader_->check_inputs(); !status.ok()) return input_stop(status);
  live_.enter("opening the output");
  if (auto stop = output_.open()) return stop;
  if (auto stop = read_done()) return stop;
  if (auto stop = find_device()) return stop;
  if (options_.speculation.is_default)
    options_.speculation.lookup = guesses_by_default(model_.device.kind, options_.load);
  live_.enter("reading the model's files");
  if (auto stop = read_model()) return stop;
  if (auto stop = choose_arithmetic()) return stop;
  if (auto stop = choose_rows()) return stop;
  if (auto stop = follow_recorded_merging()) return stop;
  if (!output_.is_stream() || !done_.outputs.empty()) {
    live_.enter("looking at the output");
    if (auto stop = examine_output()) return stop;
    live_.enter("reading the model's files");
  }
  if (const Status status = load_context(); !status.ok()) return model_files_stop(status);
  if (auto stop = merge_adapters()) return stop;
  return begin_reading();
}

// A choice that is recorded stays.
std::optional<JobStop> Job::follow_recorded_merging() {
  if (!options_.merges_adapters) return {};
  if (const Status able = check_can_merge(options_, model_.device.kind, model_.files.config); !able.ok())
    return JobStop{JobEnd::kOptionRefused, able.message()};
  if (output_.recorded() != nullptr) merging_ = recorded_choice(*output_.recorded());
  else if (!done_.outputs.empty()) merging_ = recorded_choice(done_.outputs.front().second);
  return {};
}

std::optional<JobStop> Job::merge_adapters() {
  if (!options_.merges_adapters) return {};
  if (!merging_) {
    live_.enter("choosing adapters to merge");
    auto choice = choose_merged(options_, model_.files, keep_going_);
    if (!choice.ok()) return stop_unless_ok(choice.status(), input_stop);
    merging_ = std::move(*choice);
  }
  if (const Status room = check_merged_room(options_, model_.files, merging_->merged); !room.ok())
    return JobStop{JobEnd::kOptionRefused, room.message()};
  for (const std::string& decision : merging_->decisions) log_info(decision);
  mark_merged(merging_->merged, model_.files);
  return {};
}

// Each worker needs a GPU of its own, of the same kind.
std::optional<JobStop> Job::find_device() {
  auto device = choose_device(options_.device);
  if (!device.ok()) return JobStop{JobEnd::kDeviceFault, device.status().message()};
  model_.device = std::move(*device);
  if (!model_.device.note.empty()) log_warning(model_.device.note);
  if (model_.device.kind != DeviceKind::kCuda) return {};
  for (int i = 1; i < options_.num_workers; ++i) {
    const auto other = choose_device("cuda:" + std::to_string(i));
    std::string fault;
    if (!other.ok()) fault = other.status().message();
    else if (other->identity != model_.device.identity)
      fault = "it is " + other->identity + ", GPU 0 is " + model_.device.identity;
    if (fault.empty()) continue;
    return JobStop{JobEnd::kOptionRefused, "`workers` " + std::to_string(options_.num_workers) +
                                               " needs as many equal GPUs; GPU " + std::to_string(i) + ": " + fault};
  }
  return {};
}

std::optional<JobStop> Job::read_model() {
  const bool needs_weights = model_.device.kind != DeviceKind::kLedger;
  if (const Status found = find_model_dirs(&options_.model, needs_weights); !found.ok()) return model_files_stop(found);
  use_tuned_settings(model_.device, &options_);
  Result<ModelInventory> inventory = take_inventory(options_.model);
  if (!inventory.ok()) return model_stop(inventory.status());
  model_.inventory = std::move(*inventory);
  Result<ModelFiles> files = load_model_files(options_);
  if (!files.ok()) return model_files_stop(files.status());
  model_.files = std::move(*files);
  options_.output.row_width = options_.generation.dimensions.value_or(max_dimensions(model_.files));
  if (const Status status = follow_states(model_.files.config, &options_); !status.ok())
    return JobStop{JobEnd::kOptionRefused, status.message()};
  return check_rank_options(options_, model_.device.kind, model_.files);
}

// This run keeps the choices of an earlier one.
std::optional<JobStop> Job::choose_arithmetic() {
  if (model_.device.kind != DeviceKind::kCpu) return {};
  LoadOptions& load = options_.load;
  for (const auto& [name, fingerprint] : done_.outputs)
    if (const Status able = follow_recorded(fingerprint, model_.device, &load); !able.ok())
      return JobStop{JobEnd::kResumeRefused, name + ": begun in a different arithmetic: " + able.message() +
                                                 ". Run on a processor that can, or leave it out of `done`"};
  if (output_.recorded() != nullptr) {
    output_.set_cannot_compute(follow_recorded(*output_.recorded(), model_.device, &load));
    if (!output_.cannot_compute().ok()) return {};  // there may be nothing to do
  }
  Status status =
      choose_cpu_arithmetic(model_.files.config, load.cpu.quantization, load.dtype, load.cpu.arithmetic).status();
  if (status.ok() && load.cpu.arithmetic) status = check_cpu_arithmetic(*load.cpu.arithmetic);
  if (!status.ok()) return model_files_stop(status);
  return {};
}

Status Job::load_context() {
  return model_.files.context ? Status() : load_model_context(options_.model, &model_.files);
}

std::optional<JobStop> Job::read_done() {
  auto done = read_done_rows(options_.done, output_.path(), keep_going_);
  if (!done.ok()) return stop_unless_ok(done.status(), output_stop);
  done_ = std::move(*done);
  return {};
}

std::optional<JobStop> Job::choose_rows() {
  if (options_.shard && options_.shard->by == ShardBy::kPrefix) {
    live_.enter("dividing the input");
    if (const Status status = load_context(); !status.ok()) return model_files_stop(status);
  }
  auto filter = llmb::choose_rows(options_, model_.files, done_, output_.completed(), keep_going_);
  if (!filter.ok()) return stop_unless_ok(filter.status(), input_stop);
  filter_ = std::move(*filter);
  reader_->keep_only(filter_);
  return {};
}

std::optional<JobStop> Job::examine_output() {
  if (output_.recorded() != nullptr || !done_.outputs.empty()) {
    auto fingerprint = compute_fingerprint(options_, model_, output_.recorded(), keep_going_);
    if (!fingerprint.ok()) return stop_unless_ok(fingerprint.status(), model_stop);
    fingerprint_ = std::move(*fingerprint);
    if (merging_) add_merged(merging_->merged, &*fingerprint_);
  }
  if (const Status same = check_done_settings(done_, fingerprint_.value_or(Fingerprint())); !same.ok())
    return output_stop(same);
  return output_.examine(fingerprint_.value_or(Fingerprint()), *reader_, filter_);
}

// Reading and tokenising begin while the weights load, which are loaded only for something to do.
std::optional<JobStop> Job::begin_reading() {
  auto intake = make_intake(options_, model_.files, std::move(reader_), clock_, output_.completed());
  live_.enter("reading the input");
  CoordinatorOptions options;
  options.order = options_.output.order;
  options.format.metrics = !options_.output.no_metrics;
  options.format.rows = options_.output.format == OutputFormat::kNpy;
  if (model_.files.pooling) options.format.labels = model_.files.pooling->labels;
  options.slo = options_.slo;
  if (!options_.request_rate) options.schedule = options_.schedule;  // arrivals are an order
  options.plan_bytes = static_cast<size_t>(options_.plan_memory_bytes);
  options.num_slots = options_.scheduler.max_num_seqs * std::max(1, options_.num_workers);
  options.packs_input = options_.num_workers > 0;
  options.shares_prefixes = options_.scheduler.enable_prefix_caching;
  options.reader = make_row_reader(options_, model_.files);
  // The budget is the output's, not this run's: running again and again must not get around it.
  if (options_.output.max_errors) options.max_errors = *options_.output.max_errors - live_.report().failed;
  options.on_new_error = [this](const ErrorCount& error) { environment_.observer.on_new_error(error); };
  coordinator_ = std::make_unique<Coordinator>(std::move(intake), options);
  if (output_.is_continued())
    if (auto stop = wait_for_new_line()) return stop;
  return output_.refuse_new_lines();
}

// Also where the input is a pipe.
std::optional<JobStop> Job::wait_for_new_line() {
  while (!coordinator_->wait_for_line(100)) {
    if (is_interrupted()) return JobStop{JobEnd::kInterrupted, ""};
    if (!coordinator_->has_read_all()) continue;
    const Status status = coordinator_->input_status();
    if (status.ok()) output_.set_input(coordinator_->input_tally());
    if (!status.ok()) return output_.refuse_input(status);
    return output_.complete_as_found(*fingerprint_);
  }
  return {};
}

// An error that comes of the wish to end is none.
std::optional<JobStop> Job::stop_unless_ok(const Status& status, JobStop (*stop)(const Status&)) const {
  if (status.ok()) return {};
  return is_interrupted() ? JobStop{JobEnd::kInterrupted, ""} : stop(status);
}

JobEnding Job::ending(JobStop stop) const {
  JobEnding ending;
  ending.end = stop.end;
  ending.message = std::move(stop.message);
  ending.report = live_.snapshot().report;
  return ending;
}

}  // namespace llmb
