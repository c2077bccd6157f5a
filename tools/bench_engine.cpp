// Measures a backend's steps: prefill of one prompt, and decode at several batch sizes, each prompt independent of the
// others, or one shared by all. Every figure stands beside the limit that the machine showed right before and after it.
// Products and attention take turns, so it is the sum over both of
//   max(bytes that must be read / bandwidth, operations / peak), the peak being that of the products' arithmetic.
// Bandwidth is that of memory: a model that fits a cache can pass 100 %.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "backend/cpu/processor.h"
#include "backend/make_backend.h"
#include "base/clock.h"
#include "base/rng.h"
#include "core/shared_prefixes.h"
#include "model/config_loader.h"
#include "tools/engine_work.h"

namespace llmb {
namespace {

struct Options {
  std::string model_dir;
  std::string shape;
  std::string device = "auto";
  std::vector<int32_t> batches = {1, 4, 8, 16, 32, 64};
  int32_t context = 512;
  int32_t steps = 8;
  int32_t repeats = 5;
  int32_t threads = 0;
  int32_t block_size = 16;
  Quantization quantization = Quantization::kNone;
  bool rounds_block_activations = false;
  std::string dtype = "auto", kv_dtype = "auto";
  bool is_prompt_shared = false, is_row_by_row = false, runs_in_halves = false;

  int32_t max_batch() const { return *std::max_element(batches.begin(), batches.end()); }
};

struct Sequence {
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
  int32_t state_slot = -1;     // of layers with a recurrent state
  bool is_state_kept = false;  // as it is behind the prompt, in a slot of its own
};

[[noreturn]] void die(const std::string& message) {
  std::fprintf(stderr, "bench_engine: %s\n", message.c_str());
  std::exit(1);
}

void check(const Status& status) {
  if (!status.ok()) die(status.message());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(const Options& options, std::string command) : o_(options), command_(std::move(command)) {}

  void run() {
    load();
    std::printf("%-8s %5s %7s %10s %9s %9s %7s %6s %8s %9s %8s %7s  %s\n", "case", "batch", "context", "tokens/s",
                "ms/step", "limit_ms", "share", "bound", "GB/s", "GFLOP/s", "host_ms", "idle", "hash of tokens");
    for (int32_t i = 0; i < o_.max_batch(); ++i) make_sequence(i);
    prefill();
    for (const int32_t batch : o_.batches) decode(batch);
  }

 private:
  struct Measurement {
    std::vector<double> step_ms, limit_ms;
    std::vector<double> host_ms;     // of a step: making and submitting its plan
    std::vector<double> idle_share;  // of the time that the device had nothing to do, where it says
    double flops_ms = 0;             // of the limit: where operations bind
    uint64_t hash = 0xcbf29ce484222325u;
    void add(TokenId token) { hash = (hash ^ static_cast<uint32_t>(token)) * 0x100000001b3u; }
  };

  void load() {
    const std::string dir = o_.shape.empty() ? o_.model_dir : "data/shapes/" + o_.shape;
    const Result<ModelConfig> config = load_model_config(dir);
    check(config.status());
    config_ = *config;
    Result<std::unique_ptr<Backend>> backend =
        o_.runs_in_halves ? make_splitting_backend(o_.device, /*always=*/true) : make_backend(o_.device);
    check(backend.status());
    backend_ = std::move(*backend);
    LoadOptions load;
    load.model_dir = dir;
    load.load_format = o_.shape.empty() ? LoadFormat::kAuto : LoadFormat::kDummy;
    load.block_size = o_.block_size;
    load.max_num_seqs = o_.max_batch();
    load.max_num_batched_tokens = std::max(o_.context, load.max_num_seqs);
    load.max_model_len = o_.context + o_.steps;
    load.num_threads = o_.threads;
    load.cpu.quantization = o_.quantization;
    load.cpu.rounds_block_activations = o_.rounds_block_activations;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8, DType::kF8}) {
      if (o_.dtype == dtype_name(dtype)) load.dtype = dtype;
      if (o_.kv_dtype == dtype_name(dtype)) load.kv_cache_dtype = dtype;
    }
    blocks_per_seq_ = static_cast<int32_t>(ceil_div(load.max_model_len, load.block_size));
    load.num_blocks_override = blocks_per_seq_ * load.max_num_seqs;
    check(backend_->load(config_, load));
    if (has_states() && o_.steps < 2) die("with recurrent states, the first step is not measured: --steps 2 or more");
    char date[32] = "";
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%F", std::gmtime(&now));
    std::printf("%s, %s, %s, weights %.0f MiB, KV cache %s, loaded in %.1f s\n%s: %s\n", dir.c_str(),
                dtype_name(config_.dtype), backend_->info().device.c_str(),
                double(backend_->info().weight_bytes) / (1 << 20), dtype_name(backend_->info().kv.dtype),
                backend_->info().load_ms / 1e3, date, command_.c_str());
  }

  void make_sequence(int32_t index) {
    Sequence& s = sequences_.emplace_back();
    if (has_states()) s.state_slot = index;
    const uint32_t prompt = o_.is_prompt_shared ? 0 : uint32_t(index);
    for (int32_t i = 0; i < o_.context; ++i)
      s.tokens.push_back(static_cast<TokenId>(philox4x32({uint32_t(i), prompt, 0, 0}, {0, 0})[0] % config_.vocab_size));
    for (int32_t b = 0; b < blocks_per_seq_; ++b)
      s.blocks.push_back((b < num_shared_blocks() ? 0 : index * blocks_per_seq_) + b);
  }

  bool has_states() const { return backend_->info().num_state_slots > 0; }

  // Blocks of the first sequence that every other one begins with.
  int32_t num_shared_blocks() const { return o_.is_prompt_shared ? o_.context / o_.block_size : 0; }

  // Appends tokens [begin, end) of a sequence, the last one sampled greedily.
  void add(const Sequence& s, int32_t begin, int32_t end) {
    const bool is_unseen = s.tokens[begin] < 0;
    plan_.tokens.insert(plan_.tokens.end(), s.tokens.begin() + begin, s.tokens.begin() + end);
    const int32_t index = plan_.num_entries();
    StepEntry& entry = plan_.entries.emplace_back();
    entry.seq = index;
    entry.base = is_unseen ? begin - 1 : begin;
    entry.follows = is_unseen ? -1 - s.tokens[begin] : kNoGroup;
    entry.max_ahead = is_unseen ? 1 : 0;
    entry.state_slot = s.state_slot;
    plan_.query_start.push_back(plan_.num_tokens());
    plan_.block_ids.insert(plan_.block_ids.end(), s.blocks.begin(), s.blocks.end());
    plan_.block_start.push_back(static_cast<int32_t>(plan_.block_ids.size()));
    plan_.groups.push_back({index, index, index, index + 1, SampleMode::kSample});
    SampleRow& row = plan_.sample_rows.emplace_back();
    row.group = index;
    row.token_row = plan_.num_tokens() - 1;
  }

  // Runs plan_; its milliseconds.
  double step() {
    const double start = clock_.now_ms();
    check(backend_->submit(plan_));
    check(backend_->wait(&output_));
    const double ms = clock_.now_ms() - start;
    for (const uint8_t finite : output_.is_finite)
      if (!finite) die("logits are not finite");
    return ms;
  }

  // `body` runs steps and returns the median of their milliseconds; the limits are taken right before and after.
  template <typename Body>
  void measure(const EngineWork& work, Measurement* m, const Body& body) {
    const MachineLimits before = backend_->measure_limits();
    m->step_ms.push_back(body());
    const MachineLimits after = backend_->measure_limits();
    double limit_ms = 0;
    for (const Work& part : {work.products, work.attention}) {
      const double compute_ms = part.compute_ms((before.flops_per_s + after.flops_per_s) / 2);
      const double memory_ms = part.memory_ms((before.bytes_per_s + after.bytes_per_s) / 2);
      limit_ms += std::max(compute_ms, memory_ms);
      m->flops_ms += compute_ms > memory_ms ? compute_ms / o_.repeats : 0;
    }
    m->limit_ms.push_back(limit_ms);
  }

  void print(const char* name, int32_t batch, double tokens_per_step, const EngineWork& work, const Measurement& m) {
    const double ms = median(m.step_ms), limit_ms = median(m.limit_ms);
    char idle[16] = "-";
    if (!m.idle_share.empty()) std::snprintf(idle, sizeof idle, "%.1f%%", 100 * median(m.idle_share));
    std::printf("%-8s %5d %7d %10.1f %9.3f %9.3f %6.1f%% %6s %8.2f %9.1f %8.3f %7s  %016llx\n", name, batch, o_.context,
                tokens_per_step / ms * 1e3, ms, limit_ms, 100 * limit_ms / ms,
                2 * m.flops_ms > limit_ms ? "flops" : "bytes", work.bytes() / ms / 1e6, work.flops() / ms / 1e6,
                m.host_ms.empty() ? 0.0 : median(m.host_ms), idle, static_cast<unsigned long long>(m.hash));
    std::fflush(stdout);
  }

  EngineWork work_of(const EngineStep& step) const {
    const BackendInfo& info = backend_->info();
    return engine_work(config_, step, double(info.kv.bytes_per_token()), double(info.weight_bytes));
  }

  // Fills every sequence's cache, one prompt a step; the first `repeats` are measured after one to warm up.
  void prefill() {
    const EngineWork work = work_of({.rows_of_seq = o_.context});
    Measurement m;
    const auto run_one = [&](Sequence& s) {
      plan_.clear();
      plan_.block_size = o_.block_size;
      add(s, 0, o_.context);
      const double ms = step();
      s.tokens.push_back(output_.tokens[0]);
      return ms;
    };
    for (Sequence& s : sequences_) run_one(s);
    for (int32_t i = 0; i < o_.repeats; ++i) {
      Sequence& s = sequences_[i % sequences_.size()];
      s.tokens.resize(o_.context);
      measure(work, &m, [&] { return run_one(s); });
      m.add(s.tokens.back());
    }
    print("prefill", 1, o_.context, work, m);
  }

  void decode(int32_t batch) {
    const double mean_position = o_.context + 0.5 * (o_.steps - 1), shared = num_shared_blocks() * o_.block_size;
    const EngineWork work = work_of({.num_seqs = double(batch), .first_position = mean_position, .num_shared = shared});
    Measurement m;
    for (int32_t i = 0; i < o_.repeats; ++i) measure(work, &m, [&] { return decode_steps(batch, &m); });
    for (int32_t i = 0; i < batch; ++i)
      for (int32_t s = 0; s <= o_.steps; ++s) m.add(sequences_[i].tokens[o_.context + s]);
    print("decode", batch, batch, work, m);
  }

  // Keys and values of tokens behind the prompt are written anew. States have to be those behind the prompt again: kept
  // the first time, then copied back.
  void turn_back(int32_t batch, StepPlan* plan) {
    for (int32_t i = 0; i < batch && has_states(); ++i) {
      Sequence& s = sequences_[i];
      const int32_t kept = o_.max_batch() + s.state_slot;
      plan->state_copies.push_back(s.is_state_kept ? StateCopy{kept, s.state_slot} : StateCopy{s.state_slot, kept});
      s.is_state_kept = true;
    }
  }

  // Milliseconds of one of `steps` steps, of which as many are in flight as the backend takes, as in a run. The first one
  // does not count where states are copied before it.
  double decode_steps(int32_t batch, Measurement* m) {
    const bool is_ahead = backend_->info().max_plans_in_flight > 1;
    const int32_t num_unmeasured = has_states() ? 1 : 0;
    for (int32_t i = 0; i < batch; ++i) sequences_[i].tokens.resize(o_.context + 1);
    double host_ms = 0, device_ms = 0, start = clock_.now_ms();
    int32_t num_fetched = 0;
    const auto fetch = [&] {
      check(backend_->wait(&output_));
      if (num_fetched++ < num_unmeasured) start = clock_.now_ms();
      else device_ms += output_.device_ms;
      for (const uint8_t finite : output_.is_finite)
        if (!finite) die("logits are not finite");
      for (int32_t i = 0; i < batch; ++i) {
        std::vector<TokenId>& tokens = sequences_[i].tokens;
        if (is_ahead) *std::find(tokens.begin() + o_.context, tokens.end(), -1 - i) = output_.tokens[i];
        else tokens.push_back(output_.tokens[i]);
      }
    };
    for (int32_t s = 0; s < o_.steps; ++s) {
      const double begin = clock_.now_ms();
      StepPlan& plan = plans_[s % 2];
      plan.clear();
      plan.block_size = o_.block_size;
      std::swap(plan, plan_);
      for (int32_t i = 0; i < batch; ++i) add(sequences_[i], o_.context + s, o_.context + s + 1);
      std::swap(plan, plan_);
      if (s == 0) turn_back(batch, &plan);
      if (o_.is_prompt_shared && !o_.is_row_by_row) find_shared_prefixes(&plan);
      check(backend_->submit(plan));
      host_ms += clock_.now_ms() - begin;
      if (is_ahead && s > 0) fetch();
      if (is_ahead)
        for (int32_t i = 0; i < batch; ++i) sequences_[i].tokens.push_back(-1 - i);
      else fetch();
    }
    if (is_ahead) fetch();
    const double wall_ms = clock_.now_ms() - start;
    m->host_ms.push_back(host_ms / o_.steps);
    if (device_ms > 0) m->idle_share.push_back(1 - device_ms / wall_ms);
    return wall_ms / (o_.steps - num_unmeasured);
  }

  const Options o_;
  const std::string command_;
  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
  int32_t blocks_per_seq_ = 0;
  std::vector<Sequence> sequences_;
  StepPlan plan_;
  StepPlan plans_[2];  // in flight
  StepOutput output_;
  SteadyClock clock_;
};

}  // namespace
}  // namespace llmb

int main(int argc, char** argv) {
  llmb::Options o;
  CLI::App app("Measures prefill and decode steps against the machine's limits. Run it at the top of the source tree.");
  auto* model = app.add_option("-m,--model", o.model_dir, "model directory, weights included");
  app.add_option("--shape", o.shape, "a shape of data/shapes with random weights: smollm2-135m, qwen2.5-0.5b, …")
      ->excludes(model);
  app.add_option("--device", o.device, "auto, cpu, …")->capture_default_str();
  app.add_option("--batch", o.batches, "batch sizes of the decode steps")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option_function<std::string>(
      "--cpu-target", [](const std::string& name) { llmb::check(llmb::force_cpu_target(name)); },
      "SIMD target of the CPU's kernels; default: the best one");
  app.add_option("--context", o.context, "tokens of each prompt")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--steps", o.steps, "decode steps in a measurement")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--repeats", o.repeats, "measurements; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--threads", o.threads, "0: all usable cores")->check(CLI::Range(0, 1024))->capture_default_str();
  app.add_option("--block-size", o.block_size, "tokens of a KV block")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  static const std::map<std::string, llmb::Quantization> kQuantizations = {
      {"none", llmb::Quantization::kNone}, {"int8", llmb::Quantization::kInt8}, {"int4", llmb::Quantization::kInt4},
      {"w4a8", llmb::Quantization::kW4A8},
      {"fp8", llmb::Quantization::kFp8}};
  app.add_option("--quantization", o.quantization, "of the weights")
      ->transform(CLI::CheckedTransformer(kQuantizations));
  app.add_option("--gguf-activations", o.rounds_block_activations, "over GGUF's blocks: float32 or int8")
      ->transform(CLI::CheckedTransformer(std::map<std::string, bool>{{"float32", false}, {"int8", true}}));
  app.add_option("--dtype", o.dtype, "of activations; auto: what a run takes")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}))
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", o.kv_dtype, "of the KV cache; auto: what a run takes")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16", "int8", "fp8"}))
      ->capture_default_str();
  app.add_flag("--shared-prompt", o.is_prompt_shared,
               "all sequences have one prompt, whose whole blocks are cached once");
  app.add_flag("--in-halves", o.runs_in_halves, "on a GPU: each step in two halves, attention beside products");
  app.add_flag("--row-by-row", o.is_row_by_row, "attend to a shared prompt for each sequence on its own");
  CLI11_PARSE(app, argc, argv);
  if (o.model_dir.empty() == o.shape.empty()) llmb::die("give either --shape or --model");
  std::string command = "bench_engine";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  try {
    llmb::Bench(o, command).run();
  } catch (const std::exception& e) {
    llmb::die(e.what());
  }
  return 0;
}
