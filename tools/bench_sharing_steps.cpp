// Decode steps of rows that share a prefix, on a backend with random weights, measured in pairs that take turns:
//  1. 64 rows that attend to it together, against the same rows one by one, which read the same blocks;
//  2. with --unshared, against the same rows with blocks of their own, as without the prefix cache: 4 GB, and minutes for
//     the prompts;
//  3. 128 rows against 64, by which --max-num-seqs is chosen: the steps of a run halve.
//
//     make tools && build/tools/bench_sharing_steps --shape smollm2-135m
//
// Prints medians of wall and processor time, and of each pair's ratio, with the 95 % interval of that median.
#include <sys/resource.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/make_backend.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "model/config_loader.h"
#include "scheduler/scheduler.h"

namespace llmb {
namespace {

constexpr int32_t kFewRows = 64, kManyRows = 128, kMaxStepTokens = 512;

struct Options {
  std::string shape = "smollm2-135m", device = "auto";
  int32_t shared = 2048, own = 64, pairs = 25, threads = 0;
  Quantization quantization = Quantization::kNone;
  bool unshared = false;
};

void check(const Status& status) { LLMB_CHECK_MSG(status.ok(), status.message()); }

double processor_ms() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto ms = [](const timeval& t) {
    return 1e3 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_usec);
  };
  return ms(used.ru_utime) + ms(used.ru_stime);
}

struct Time {
  double wall_ms, processor_ms;
};

// Rows that decode, with a scheduler of their own. Several fleets use one backend, and overwrite each other's keys and
// values: that changes no time.
class Fleet {
 public:
  Fleet(const Options& o, Backend* backend, int32_t num_rows, int32_t max_new_tokens, int32_t vocab_size, bool shares)
      : backend_(*backend),
        num_rows_(num_rows),
        scheduler_(config_for(o, backend->info(), num_rows, max_new_tokens, shares)) {
    for (int32_t row = 0; row < num_rows; ++row) {
      auto request = std::make_shared<Request>();
      for (int32_t i = 0; i < o.shared + o.own; ++i) {
        const uint32_t key = i < o.shared ? 0 : 1 + static_cast<uint32_t>(row);
        request->prompt_tokens.push_back(
            static_cast<TokenId>(philox4x32({static_cast<uint32_t>(i), key, 0, 0}, {0, 0})[0] % vocab_size));
      }
      request->params.stop.max_tokens = max_new_tokens;
      request->params.stop.ignore_eos = true;
      LLMB_CHECK(std::holds_alternative<SeqId>(scheduler_.add(request, 0)));
    }
    while (!is_decoding_) step(true);
  }

  Time step(bool is_together) {
    LLMB_CHECK(scheduler_.schedule(0, false, &plan_));
    is_decoding_ = plan_.num_entries() == num_rows_ && plan_.num_tokens() == num_rows_;
    if (!is_together) plan_.shared_prefixes.clear(), plan_.shared_entries.clear();
    const double wall = clock_.now_ms(), processor = processor_ms();
    check(backend_.submit(plan_));
    check(backend_.wait(&output_));
    const Time time{clock_.now_ms() - wall, processor_ms() - processor};
    scheduler_.apply(plan_, output_, &updates_);
    for (const SequenceUpdate& update : updates_) LLMB_CHECK(!update.numeric_error);
    return time;
  }

 private:
  static SchedulerConfig config_for(const Options& o, const BackendInfo& info, int32_t num_rows, int32_t max_new,
                                    bool shares) {
    SchedulerConfig config;
    config.max_num_seqs = num_rows;
    config.max_num_batched_tokens = kMaxStepTokens;
    config.block_size = info.kv.block_size;
    config.num_blocks = info.kv.num_blocks;
    config.max_model_len = o.shared + o.own + max_new;
    config.enable_prefix_caching = shares;
    return config;
  }

  Backend& backend_;
  const int32_t num_rows_;
  Scheduler scheduler_;
  bool is_decoding_ = false;
  StepPlan plan_;
  StepOutput output_;
  std::vector<SequenceUpdate> updates_;
  SteadyClock clock_;
};

// With the ranks between which a median lies with 95 % (binomial, by its normal approximation).
void print_median(const char* name, std::vector<double> values, const char* format) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  const double half = 0.98 * std::sqrt(n);
  const auto at = [&](double rank) { return values[static_cast<size_t>(std::clamp(rank, 0.0, n - 1))]; };
  std::printf("  %-22s", name);
  std::printf(format, at(n / 2), at(std::floor(n / 2 - half)), at(std::ceil(n / 2 + half)));
}

// `one` and `other` run steps in turn.
template <class One, class Other>
void compare(const Options& o, const char* title, const One& one, const Other& other) {
  std::vector<double> wall[2], processor[2], wall_ratio, processor_ratio;
  for (int32_t pair = 0; pair <= o.pairs; ++pair) {
    Time times[2];
    const bool is_turned = pair % 2 == 1;
    for (const bool is_other : {is_turned, !is_turned}) times[is_other] = is_other ? other() : one();
    if (pair == 0) continue;  // to warm up
    for (int i = 0; i < 2; ++i) {
      wall[i].push_back(times[i].wall_ms);
      processor[i].push_back(times[i].processor_ms);
    }
    wall_ratio.push_back(times[1].wall_ms / times[0].wall_ms);
    processor_ratio.push_back(times[1].processor_ms / times[0].processor_ms);
  }
  std::printf("%s\n", title);
  const char* const ms = "%9.2f ms  [%.2f, %.2f]\n";
  const char* const ratio = "%9.3f     [%.3f, %.3f]\n";
  print_median("first, wall", wall[0], ms);
  print_median("second, wall", wall[1], ms);
  print_median("second/first, wall", wall_ratio, ratio);
  print_median("first, processor", processor[0], ms);
  print_median("second, processor", processor[1], ms);
  print_median("second/first, proc.", processor_ratio, ratio);
  std::fflush(stdout);
}

void run(const Options& o) {
  const std::string dir = "data/shapes/" + o.shape;
  const Result<ModelConfig> config = load_model_config(dir);
  check(config.status());
  Result<std::unique_ptr<Backend>> backend = make_backend(o.device);
  check(backend.status());
  LoadOptions load;
  load.model_dir = dir;
  load.load_format = LoadFormat::kDummy;
  load.max_num_seqs = kManyRows;
  load.max_num_batched_tokens = kMaxStepTokens;
  // Some rows decode while others still compute prompts.
  const int32_t num_prompt_steps = o.unshared ? kFewRows * (o.shared + o.own) / (kMaxStepTokens - kFewRows) : kManyRows;
  const int32_t max_new_tokens = num_prompt_steps + 6 * o.pairs + 16;
  load.max_model_len = o.shared + o.own + max_new_tokens;
  load.num_threads = o.threads;
  load.cpu.quantization = o.quantization;
  const int32_t num_own_blocks = (o.own + max_new_tokens) / load.block_size + 3;
  load.num_blocks_override = o.shared / load.block_size + kManyRows * num_own_blocks;
  if (o.unshared) load.num_blocks_override += kFewRows * (o.shared / load.block_size + 1);
  check((*backend)->load(*config, load));
  std::printf("%s, %s, KV cache %s, rows of %d shared and %d own tokens, %d pairs\n", o.shape.c_str(),
              (*backend)->info().device.c_str(), dtype_name((*backend)->info().kv.dtype), o.shared, o.own, o.pairs);
  const auto fleet = [&](int32_t num_rows, bool shares) {
    return Fleet(o, backend->get(), num_rows, max_new_tokens, config->vocab_size, shares);
  };
  Fleet few = fleet(kFewRows, true);
  compare(
      o, "64 rows: first together, second one by one", [&] { return few.step(true); }, [&] { return few.step(false); });
  if (o.unshared) {
    Fleet alone = fleet(kFewRows, false);
    compare(
        o, "64 rows: first together, second with blocks of their own", [&] { return few.step(true); },
        [&] { return alone.step(false); });
  }
  Fleet many = fleet(kManyRows, true);
  compare(
      o, "first 64 rows, second 128 rows", [&] { return few.step(true); }, [&] { return many.step(true); });
}

}  // namespace
}  // namespace llmb

int main(int argc, char** argv) {
  llmb::Options o;
  CLI::App app("Measures decode steps of rows that share a prefix. Run it from the top of the source tree.");
  app.add_option("--shape", o.shape, "a shape of data/shapes")->capture_default_str();
  app.add_option("--device", o.device, "auto, cpu, …")->capture_default_str();
  app.add_option("--shared", o.shared, "tokens of the prefix")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--own", o.own, "tokens of each row behind it")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--pairs", o.pairs, "steps of each kind")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--threads", o.threads, "0: all usable cores")->check(CLI::Range(0, 1024))->capture_default_str();
  app.add_flag("--unshared", o.unshared, "also against rows with blocks of their own");
  static const std::map<std::string, llmb::Quantization> kQuantizations = {
      {"none", llmb::Quantization::kNone}, {"int8", llmb::Quantization::kInt8}, {"int4", llmb::Quantization::kInt4},
      {"w4a8", llmb::Quantization::kW4A8}};
  app.add_option("--quantization", o.quantization, "of the weights")
      ->transform(CLI::CheckedTransformer(kQuantizations));
  CLI11_PARSE(app, argc, argv);
  try {
    llmb::run(o);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_sharing_steps: %s\n", e.what());
    return 1;
  }
  return 0;
}
