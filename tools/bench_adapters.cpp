// Decode steps of rows with LoRA adapters on a CPU backend with random weights, measured in pairs that take turns: all
// rows with one adapter, and each row with one of its own, against the same rows without any. The adapters are of one
// rank and target all linear projections, or PEFT's defaults, q_proj and v_proj.
//
//     make tools && build/tools/bench_adapters --shape qwen2.5-0.5b --targets all
//     make tools && build/tools/bench_adapters --shape qwen2.5-0.5b --targets q,v
//     make tools && build/tools/bench_adapters --shape qwen2.5-0.5b --merged    the one adapter is merged into the weights
//
// Prints medians of processor time and of each pair's ratio, with the 95 % interval of that median. The first command,
// with --steps 1 and 31 pairs, 2026-11-27, two cores of an AMD EPYC 7003 that did nothing else, three times: one adapter
// 1.042 [1.029, 1.064], 1.019 [0.993, 1.041] and 1.037 [1.029, 1.052] (bar 1.08), one for each of 64 rows 1.119
// [1.090, 1.190], 1.146 [1.103, 1.179] and 1.143 [1.122, 1.172] (bar 1.15).
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#include "model/adapter_library.h"
#include "model/config_loader.h"

namespace llmb {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kBlockSize = 16, kContext = 64;  // tokens before the rows
constexpr const char* kTargets[] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};

struct Options {
  std::string shape = "qwen2.5-0.5b", targets = "all";
  int32_t rows = 64, rank = 16, pairs = 11, steps = 2, threads = 0;
  bool merged = false;
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

// An adapter of a Llama-like model in PEFT's layout, all values 2^-10.
void write_adapter(const fs::path& dir, const ModelConfig& c, const Options& o) {
  const int64_t rank = o.rank;
  fs::create_directories(dir);
  std::ofstream(dir / "adapter_config.json")
      << nlohmann::json{{"peft_type", "LORA"}, {"r", rank}, {"lora_alpha", rank}, {"bias", "none"}};
  nlohmann::ordered_json header;
  int64_t end = 0;
  const auto add = [&](const std::string& name, int64_t rows, int64_t cols) {
    header[name] = {{"dtype", "BF16"}, {"shape", {rows, cols}}, {"data_offsets", {end, end + rows * cols * 2}}};
    end += rows * cols * 2;
  };
  const int64_t hidden = c.hidden_size, wide = c.intermediate_size;
  const int64_t in[] = {hidden, hidden, hidden, c.q_size(), hidden, hidden, wide};
  const int64_t out[] = {c.q_size(), c.kv_size(), c.kv_size(), hidden, wide, wide, hidden};
  for (int32_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    for (size_t t = 0; t < std::size(kTargets); ++t) {
      if (o.targets != "all" && t != 0 && t != 2) continue;
      const std::string module = "base_model.model.model.layers." + std::to_string(layer) +
                                 (t < 4 ? ".self_attn." : ".mlp.") + kTargets[t];
      add(module + ".lora_A.weight", rank, in[t]);
      add(module + ".lora_B.weight", out[t], rank);
    }
  }
  const std::string text = header.dump();
  std::ofstream file(dir / "adapter_model.safetensors", std::ios::binary);
  const auto size = static_cast<uint64_t>(text.size());
  file.write(reinterpret_cast<const char*>(&size), sizeof size);
  file << text;
  std::string values(static_cast<size_t>(end), '\0');
  for (size_t i = 1; i < values.size(); i += 2) values[i] = 0x3a, values[i - 1] = static_cast<char>(0x80);
  file << values;
}

// One row of each sequence; adapter_of: -1: none.
template <typename AdapterOf>
StepPlan decode_plan(int32_t rows, const AdapterOf& adapter_of) {
  StepPlan plan;
  plan.clear();
  plan.block_size = kBlockSize;
  const int32_t num_blocks = kContext / kBlockSize + 1;
  for (int32_t row = 0; row < rows; ++row) {
    plan.tokens.push_back(row + 10);
    StepEntry& entry = plan.entries.emplace_back();
    entry.seq = row;
    entry.base = kContext;
    entry.adapter = adapter_of(row);
    plan.query_start.push_back(row + 1);
    for (int32_t b = 0; b < num_blocks; ++b) plan.block_ids.push_back(row * num_blocks + b);
    plan.block_start.push_back(static_cast<int32_t>(plan.block_ids.size()));
    plan.groups.push_back({row, row, row, row + 1, SampleMode::kSample});
    SampleRow& sample = plan.sample_rows.emplace_back();
    sample.group = sample.token_row = row;
  }
  return plan;
}

double step_ms(Backend& backend, const StepPlan& plan, int32_t steps) {
  StepOutput output;
  const double begin = processor_ms();
  for (int32_t i = 0; i < steps; ++i) {
    check(backend.submit(plan));
    check(backend.wait(&output));
  }
  return (processor_ms() - begin) / steps;
}

// Processor time of reading an adapter, and of merging it where it is to be.
double read_ms(AdapterStore& store, int32_t id) {
  const double begin = processor_ms();
  store.want(id);
  while (store.state(id) == AdapterState::kOnItsWay) store.wait_for_read(100);
  const double ms = processor_ms() - begin;
  store.release(id);
  return ms;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

void print(const char* name, const std::vector<double>& with, const std::vector<double>& without) {
  std::vector<double> ratios;
  for (size_t i = 0; i < with.size(); ++i) ratios.push_back(with[i] / without[i]);
  std::sort(ratios.begin(), ratios.end());
  // The order statistics between which the median lies with 95 %.
  const double n = static_cast<double>(ratios.size()), reach = 0.98 * std::sqrt(n);
  const auto low = static_cast<size_t>(std::max(0.0, std::floor(n / 2 - reach)));
  const auto high = static_cast<size_t>(std::min(n - 1, std::ceil(n / 2 + reach) - 1));
  std::printf("%-22s %9.1f ms a step, %9.1f without: x %.3f (95 %%: %.3f to %.3f)\n", name, median(with), median(without),
              median(ratios), ratios[low], ratios[high]);
}

void run(const Options& o) {
  const ModelConfig config = load_model_config("data/shapes/" + o.shape).value();
  const fs::path dir = fs::temp_directory_path() / ("llm-batch-adapters." + std::to_string(getpid()));
  write_adapter(dir / "one", config, o);
  std::vector<AdapterFolder> folders;
  for (int32_t i = 0; i < o.rows; ++i) folders.push_back({"a" + std::to_string(1000 + i), dir / "one"});
  LoadOptions load;
  load.load_format = LoadFormat::kDummy;
  load.block_size = kBlockSize;
  load.num_blocks_override = o.rows * (kContext / kBlockSize + 1);
  load.max_num_seqs = load.max_num_batched_tokens = o.rows;
  load.max_model_len = 2 * kContext;
  load.num_threads = o.threads;
  load.adapters = std::make_shared<AdapterLibrary>(folders, config);
  load.adapter_bytes = int64_t{64} << 30;
  for (int32_t id = 0; id < o.rows; ++id) check(load.adapters->prepare(id));
  if (o.merged) load.adapters->merge(0);
  const auto backend = make_cpu_backend();
  check(backend->load(config, load));
  const StepPlan plans[] = {decode_plan(o.rows, [](int32_t) { return -1; }), decode_plan(o.rows, [](int32_t) { return 0; }),
                            decode_plan(o.rows, [](int32_t row) { return row; })};
  std::printf("%s, %d rows, rank %d, targets %s, %s\n", o.shape.c_str(), o.rows, o.rank, o.targets.c_str(),
              backend->info().device.c_str());
  std::printf("reading one%s: %.1f ms\n", o.merged ? " and merging it" : "", read_ms(*backend->adapters(), 0));
  std::vector<double> times[3];
  for (int32_t pair = -1; pair < o.pairs; ++pair) {  // the first warms up, and packs the adapters
    for (int p = 0; p < 3; ++p) {
      const double ms = step_ms(*backend, plans[p], o.steps);
      if (pair >= 0) times[p].push_back(ms);
    }
  }
  print(o.merged ? "one adapter, merged" : "one adapter", times[1], times[0]);
  print("one for each row", times[2], times[0]);
  fs::remove_all(dir);
}

}  // namespace
}  // namespace llmb

int main(int argc, char** argv) {
  llmb::Options o;
  CLI::App app("Measures decode steps with LoRA adapters against steps without.");
  app.add_option("--shape", o.shape, "Folder below data/shapes");
  app.add_option("--rows", o.rows)->check(CLI::Range(1, 512));
  app.add_option("--targets", o.targets)->check(CLI::IsMember({"all", "q,v"}));
  app.add_option("--rank", o.rank)->check(CLI::Range(1, 256));
  app.add_flag("--merged", o.merged, "The one adapter is merged into the weights");
  app.add_option("--pairs", o.pairs)->check(CLI::Range(1, 1000));
  app.add_option("--steps", o.steps, "Of a turn")->check(CLI::Range(1, 1000));
  app.add_option("--threads", o.threads)->check(CLI::Range(0, 1024));
  CLI11_PARSE(app, argc, argv);
  llmb::run(o);
}
