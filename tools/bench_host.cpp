// Measures what the host does for each step beside the device: intake, planning, checking the plan, taking over tokens,
// detokenizing, emitting. The engine runs on the ledger backend, whose own computing is left out; the time is that of
// the engine's thread on a CPU, so that other work on the machine hardly counts. The limit to hold is 0.25 ms a step at
// 256 running sequences.
//
//     make tools && build/tools/bench_host
//
// 2026-11-20, `bench_host`, Release, a busy shared 2-core x86-64 machine: 0.11 ms for a step that decodes 256
// sequences; 0.12 ms with 6,000 prompt tokens each, 0.24 ms where all have penalties, 0.5 ms where all ask for 5
// log-probabilities.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "base/clock.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "job/coordinator.h"
#include "model/config_loader.h"
#include "tokenizer/tokenizer.h"

namespace llmb {
namespace {

struct Options {
  std::string model_dir = "data/model";
  int32_t num_seqs = 256;
  int32_t num_requests = 1024;
  int32_t num_prompt_tokens = 512;
  int32_t num_output_tokens = 256;
  std::string extra_members;
};

[[noreturn]] void die(const std::string& message) {
  std::fprintf(stderr, "bench_host: %s\n", message.c_str());
  std::exit(1);
}

void check(const Status& status) {
  if (!status.ok()) die(status.message());
}

double thread_cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

// Counts the time between its calls, and that of checking plans, which is the host's work on any device.
class TimedBackend final : public Backend {
 public:
  explicit TimedBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}
  Status load(const ModelConfig& config, const LoadOptions& options) override { return inner_->load(config, options); }
  const BackendInfo& info() const override { return inner_->info(); }

  Status submit(const StepPlan& plan) override {
    LLMB_RETURN_IF_ERROR(validate_step_plan(plan, info().kv.num_blocks, num_in_flight_ > 0 ? newest_ : nullptr));
    newest_ = &plan;
    ++num_in_flight_;
    leave_host();
    const Status status = inner_->submit(plan);
    full_.push_back(plan.num_entries());
    prefill_.push_back(plan.num_tokens() > plan.num_entries());
    enter_host();
    return status;
  }

  Status wait(StepOutput* output) override {
    leave_host();
    step_ms_.push_back(host_ms_);
    host_ms_ = 0;
    const Status status = inner_->wait(output);
    --num_in_flight_;
    for (const TokenId token : output->tokens) hash_ = (hash_ ^ static_cast<uint32_t>(token)) * 0x100000001b3u;
    enter_host();
    return status;
  }

  void start() { enter_host(); }
  uint64_t hash() const { return hash_; }
  // Host milliseconds between two outputs, of steps that decode `num_seqs` sequences and nothing else.
  std::vector<double> decode_step_ms(int32_t num_seqs) const {
    std::vector<double> ms;
    for (size_t i = 1; i < step_ms_.size(); ++i)
      if (full_[i] == num_seqs && !prefill_[i]) ms.push_back(step_ms_[i]);
    return ms;
  }
  const std::vector<double>& all_step_ms() const { return step_ms_; }

 private:
  void enter_host() { entered_ms_ = thread_cpu_ms(); }
  void leave_host() { host_ms_ += thread_cpu_ms() - entered_ms_; }

  const std::unique_ptr<Backend> inner_;
  const StepPlan* newest_ = nullptr;  // of the plans in flight
  int num_in_flight_ = 0;
  double entered_ms_ = 0, host_ms_ = 0;
  std::vector<double> step_ms_;  // [steps]
  std::vector<int32_t> full_;    // [steps]  sequences
  std::vector<bool> prefill_;    // [steps]
  uint64_t hash_ = 0xcbf29ce484222325u;
};

void write_requests(const Options& o, int32_t vocab_size, const std::string& path) {
  std::ofstream out(path);
  for (int32_t r = 0; r < o.num_requests; ++r) {
    out << R"({"prompt_token_ids":[)";
    for (int32_t i = 0; i < o.num_prompt_tokens; ++i)
      out << (i > 0 ? "," : "") << philox4x32({uint32_t(i), uint32_t(r), 0, 0}, {0, 0})[0] % vocab_size;
    // Lengths spread around the mean, so that sequences do not end together.
    const int32_t length = o.num_output_tokens / 2 + r * 7919 % std::max(o.num_output_tokens, 1);
    out << R"(],"ignore_eos":true,"max_tokens":)" << std::max(length, 1) << o.extra_members << "}\n";
  }
  if (!out) die("cannot write " + path);
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

void report(const char* name, const std::vector<double>& ms) {
  std::printf("%-28s %8zu steps   mean %.4f   p50 %.4f   p99 %.4f   max %.4f ms\n", name, ms.size(), mean(ms),
              quantile(ms, 0.5), quantile(ms, 0.99), quantile(ms, 1));
}

void run(const Options& o, const std::string& directory) {
  const auto config = load_model_config(o.model_dir);
  check(config.status());
  auto tokenizer = Tokenizer::load(o.model_dir);
  check(tokenizer.status());
  SchedulerConfig scheduler;
  scheduler.max_num_seqs = o.num_seqs;
  scheduler.max_num_batched_tokens = std::max(2048, o.num_seqs);
  scheduler.max_model_len = o.num_prompt_tokens + 2 * o.num_output_tokens;
  scheduler.num_blocks = o.num_seqs * static_cast<int32_t>(ceil_div(scheduler.max_model_len, scheduler.block_size) + 1);
  LoadOptions load;
  load.block_size = scheduler.block_size;
  load.num_blocks_override = scheduler.num_blocks;
  TimedBackend backend(make_ledger_backend({}));
  check(backend.load(*config, load));

  auto model = std::make_shared<ModelContext>();
  model->tokenizer = std::move(*tokenizer);
  model->vocab_size = config->vocab_size;
  model->max_model_len = scheduler.max_model_len;
  RequestLimits limits;
  limits.vocab_size = config->vocab_size;
  const std::string in = directory + "/in.jsonl";
  write_requests(o, config->vocab_size, in);
  const auto clock = std::make_shared<SteadyClock>();
  Coordinator coordinator(std::make_unique<RequestIntake>(std::make_unique<LineReader>(std::vector<std::string>{in}),
                                                          std::make_unique<RequestParser>(GenerationParams(), limits),
                                                          model, clock, IntakeOptions()),
                          {});
  OutputSinkOptions sink_options;
  sink_options.path = directory + "/out.jsonl";
  auto sink = OutputSink::open(sink_options, *clock);
  check(sink.status());
  coordinator.begin_output(**sink, nullptr);
  const std::atomic<int> interrupted{0};
  Engine engine({.scheduler = scheduler, .model = *config}, backend, model->tokenizer.get(), *clock, coordinator,
                coordinator, interrupted, [](const EngineProgress&) {});
  backend.start();
  check(engine.run());
  check(coordinator.results().drain());
  const RequestMetrics& requests = coordinator.results().metrics();
  if (requests.num_failed > 0) die(std::to_string(requests.num_failed) + " requests failed");
  report("decode, all sequences", backend.decode_step_ms(o.num_seqs));
  report("all steps", backend.all_step_ms());
  std::printf("%lld tokens out, hash of sampled rows %016llx; limit at 256 sequences: 0.25 ms\n",
              static_cast<long long>(requests.num_output_tokens), static_cast<unsigned long long>(backend.hash()));
}

}  // namespace
}  // namespace llmb

int main(int argc, char** argv) {
  llmb::Options o;
  CLI::App app("Measures the host's work a step. Run it from the top of the source tree.");
  app.add_option("-m,--model", o.model_dir, "for its tokenizer and vocabulary")->capture_default_str();
  app.add_option("--max-num-seqs", o.num_seqs, "sequences that run at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--requests", o.num_requests)->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--prompt-tokens", o.num_prompt_tokens)->check(CLI::Range(1, 1 << 16))->capture_default_str();
  app.add_option("--output-tokens", o.num_output_tokens, "on average")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--members", o.extra_members, R"(of every request, such as ',"stop":["zzz"]')");
  CLI11_PARSE(app, argc, argv);
  char date[32] = "";
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%F", std::gmtime(&now));
  std::printf("%s: bench_host", date);
  for (int i = 1; i < argc; ++i) std::printf(" %s", argv[i]);
  std::printf("\n");
  std::string directory = (std::filesystem::temp_directory_path() / "bench-host-XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr) llmb::die("cannot make " + directory);
  llmb::run(o, directory);
  std::filesystem::remove_all(directory);
  return 0;
}
