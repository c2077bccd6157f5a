// Predicts tokens a second of 8 and 16 H100 for a dense model of 70B and a mixture of 8 experts of 22B, by layout and
// workload, from the step model (step_model.h, whose constants name their sources), and prints published figures of
// TensorRT-LLM beside them. The tables are in data/measurements/predicted-clusters.md:
//
//     make tools && build/tools/simulate_cluster > data/measurements/predicted-clusters.md
#include <cstdio>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tools/cluster_model.h"
#include "tools/step_model.h"

namespace llmb {

namespace {

constexpr ClusterLimits kLimits;
constexpr int64_t kNodeSize = 8;  // devices that NVLink joins

// Output tokens a second of an H100 80GB HBM3 server in fp8: NVIDIA/TensorRT-LLM,
// docs/source/performance/perf-overview.md, "All data in the table below was generated using version 0.17". 0: not
// published there.
struct Published {
  Lengths lengths;
  double dense_tp2 = 0, dense_tp8 = 0, experts_tp8 = 0;
};
constexpr Published kPublished[] = {
    {{128, 128}, 6645.12, 14730.69, 21876.08}, {{128, 2048}, 6169.58, 17061.82, 25150.03},
    {{500, 2000}, 4972.57, 14679.33, 21421.86}, {{1000, 1000}, 4390.53, 11451.16, 16573.24},
    {{2048, 128}, 772.66, 1923.41, 2794.97},    {{2048, 2048}, 2898.16, 8801.95, 12244.93},
    {{5000, 500}, 919.73, 2457.42, 3645.27},
};

std::string tokens(double per_s) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f", per_s);
  return text;
}

void print_row(const std::string& name, const std::function<std::string(const Published&)>& cell) {
  std::printf("| %s |", name.c_str());
  for (const Published& workload : kPublished) std::printf(" %s |", cell(workload).c_str());
  std::printf("\n");
}

void print_head(const char* first) {
  std::printf("| %s |", first);
  for (const Published& w : kPublished) std::printf(" %.0f, %.0f |", w.lengths.prompt, w.lengths.output);
  std::printf("\n|---|");
  for (size_t i = 0; i < std::size(kPublished); ++i) std::printf("---|");
  std::printf("\n");
}

std::optional<InstancePrediction> pool(const ModelShape& model, const Precision& precision, const RankGrid& grid,
                                       double num_plans, const Lengths& lengths) {
  return predict_pool(StepModel(model, precision, kH100, kNvLink, grid), lengths, kLimits, num_plans);
}

void print_pool(const ModelShape& model, const Precision& precision, int64_t num_devices, const RankGrid& grid,
                double num_plans, const std::string& name) {
  const auto replicas = static_cast<double>(num_devices / grid.num_ranks());
  print_row(name, [&](const Published& workload) {
    const auto p = pool(model, precision, grid, num_plans, workload.lengths);
    if (!p) return std::string("-");
    return tokens(replicas * p->output_tokens_per_s) + " (" + tokens(p->step_ms) + " ms)";
  });
}

// Instances on either side of a node's border send over the network.
void print_apart(const ModelShape& model, const Precision& precision, int64_t num_devices, const RankGrid& grid) {
  const StepModel step(model, precision, kH100, kNvLink, grid);
  const LinkModel& between = num_devices > kNodeSize ? kInfiniBand : kNvLink;
  print_row("apart, TP " + std::to_string(grid.tensor_size), [&](const Published& workload) {
    const auto p = predict_apart(step, grid, between, workload.lengths, kLimits, num_devices / grid.num_ranks());
    if (!p) return std::string("-");
    return tokens(p->output_tokens_per_s) + " (" + std::to_string(p->num_prefill) + " + " +
           std::to_string(p->num_decode) + ", " + tokens(p->step_ms) + " ms)";
  });
}

void print_tables(const ModelShape& model, const Precision& precision, int64_t num_devices) {
  std::printf("\n## %s, %s, %lld × H100\n\n", model.name, precision.name, static_cast<long long>(num_devices));
  print_head("layout");
  const std::string replicas = num_devices == kNodeSize ? "" : " × " + std::to_string(num_devices / kNodeSize);
  print_pool(model, precision, num_devices, {8, 1}, 1, "TP 8" + replicas);
  print_pool(model, precision, num_devices, {1, 8}, 8, "PP 8, 8 plans in flight" + replicas);
  print_pool(model, precision, num_devices, {1, 8}, 2, "PP 8, 2 plans in flight" + replicas);
  print_pool(model, precision, num_devices, {4, 1}, 1, "TP 4 × " + std::to_string(num_devices / 4));
  print_pool(model, precision, num_devices, {2, 1}, 1, "TP 2 × " + std::to_string(num_devices / 2));
  for (const int64_t tensor_size : {2, 4, 8})
    if (num_devices / tensor_size >= 2) print_apart(model, precision, num_devices, {tensor_size, 1});
}

void print_published(const ModelShape& model, const RankGrid& grid, const std::function<double(const Published&)>& of) {
  const std::string layout = "TP " + std::to_string(grid.tensor_size);
  print_row(std::string(model.name) + ", " + layout + ", TensorRT-LLM",
            [&](const Published& workload) { return tokens(of(workload)); });
  print_row(std::string(model.name) + ", " + layout + ", predicted", [&](const Published& workload) {
    const auto p = pool(model, kFp8, grid, 1, workload.lengths);
    if (!p) return std::string("-");
    char text[64];
    std::snprintf(text, sizeof text, "%.0f (%.2f ×)", p->output_tokens_per_s, p->output_tokens_per_s / of(workload));
    return std::string(text);
  });
}

void print_all() {
  std::printf(
      "# Predicted rates of clusters\n\n"
      "Nothing here was measured: `build/tools/simulate_cluster` writes this file from the step model\n"
      "(tools/step_model.h, whose constants name their sources). tests/unit/step_model_test holds that against recorded\n"
      "steps: within 6 %% on an H200, within 30 %% on two CPU threads. It gives two CPU ranks 0.98 of the rate of two\n"
      "threads; 0.98 was measured where cores were even, 0.87 where they were not (tools/time_workers.py).\n\n"
      "Output tokens a second, in brackets the time from a request's token to its next, with more requests than can run,\n"
      "at most %.0f of them on an instance, %.0f rows a step and %.0f %% of memory for weights and KV cache. Columns:\n"
      "prompt and output tokens. \"Apart\": instances that compute prompts + instances that go on, the best division.\n\n"
      "Not in the model: the host's work between steps, imbalance of experts, memory for activations, sums that the\n"
      "switch adds up, sums hidden behind products. This program's kernels multiply in bf16 and int8 on a GPU, not in\n"
      "fp8, and it holds two plans in flight; eight are what eight stages would need.\n\n"
      "## Beside published figures\n\n"
      "TensorRT-LLM 0.17 on H100 80GB HBM3, fp8: docs/source/performance/perf-overview.md of NVIDIA/TensorRT-LLM.\n\n",
      kLimits.max_num_seqs, kLimits.max_num_batched_tokens, 100 * kLimits.memory_share);
  print_head("");
  print_published(kLlama70B, {2, 1}, [](const Published& p) { return p.dense_tp2; });
  print_published(kLlama70B, {8, 1}, [](const Published& p) { return p.dense_tp8; });
  print_published(kMixtral8x22B, {8, 1}, [](const Published& p) { return p.experts_tp8; });
  for (const ModelShape* model : {&kLlama70B, &kMixtral8x22B})
    for (const Precision* precision : {&kFp8, &kBf16})
      for (const int64_t num_devices : {8, 16}) print_tables(*model, *precision, num_devices);
}

}  // namespace

}  // namespace llmb

int main() {
  llmb::print_all();
  return 0;
}
