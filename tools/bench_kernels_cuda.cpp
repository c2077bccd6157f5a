// Times every CUDA kernel at the shapes of published models, each as a share of what this device was measured to do in
// the same run. One line a case; --json writes them as JSON lines too. See kernels/README.md.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/step_plan.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/gather.h"
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_int8.h"
#include "kernels/cuda/linear_int8_lt.h"
#include "kernels/cuda/linear_wgmma8.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/tuning.h"
#include "tools/cuda_bench.h"
#include "tools/cuda_bench_attention.h"
#include "tools/cuda_bench_copies.h"
#include "tools/cuda_bench_expert_lora.h"
#include "tools/cuda_bench_fp8.h"
#include "tools/cuda_bench_bytes.h"
#include "tools/cuda_bench_int4.h"
#include "tools/cuda_bench_lora.h"
#include "tools/cuda_bench_more_ops.h"
#include "tools/cuda_bench_slices.h"
#include "tools/cuda_bench_sparse24.h"
#include "tools/cuda_bench_states.h"
#include "tools/cuda_bench_steps.h"
#include "tools/cuda_bench_texts.h"
#include "tools/cuda_bench_w4a8.h"
#include "tools/cuda_bench_wide.h"

namespace llmb::bench {
namespace {

using T = __nv_bfloat16;

// As in data/shapes/*/config.json; tiny only shows that everything runs.
struct Shape {
  const char* name;
  int32_t hidden, intermediate, heads, kv_heads, head_dim, vocab;

  int32_t q() const { return heads * head_dim; }
  int32_t kv() const { return kv_heads * head_dim; }
  int32_t qkv() const { return q() + 2 * kv(); }
  bool is_tiny() const { return vocab < 1000; }
};
constexpr Shape kShapes[] = {
    {"llama-3.1-8b", 4096, 14336, 32, 8, 128, 128256}, {"llama-3.2-1b", 2048, 8192, 32, 8, 64, 128256},
    {"qwen2.5-0.5b", 896, 4864, 14, 2, 64, 151936},    {"qwen3-0.6b", 1024, 3072, 16, 8, 128, 151936},
    {"smollm2-135m", 576, 1536, 9, 3, 64, 49152},      {"tiny", 64, 96, 4, 2, 32, 500}};

struct Options {
  std::vector<std::string> ops = {"linear",      "paged_attention", "add_rms_norm", "rope_and_kv_write",
                                  "silu_mul",    "embedding",       "gather_rows",  "sample",
                                  "block_copy",  "resolve_step",    "lora",         "more",
                                  "linear_int4", "linear_fp8",      "states",       "wide",
                                  "texts",       "linear_sparse24", "int8_groups",  "w4a8",
                                  "slices"};
  std::string shape = "llama-3.1-8b";

  bool wants(const std::string& op) const { return std::find(ops.begin(), ops.end(), op) != ops.end(); }
};

class KernelCases {
 public:
  KernelCases(CudaBench& bench, const Options& options, const Shape& shape)
      : bench_(bench),
        options_(options),
        s_(shape),
        is_hopper_(cuda::has_hopper_code(bench.stream())),
        linear_({DType::kBF16, false, is_hopper_, bench.num_sms()}, bench.stream()),
        cublas_({DType::kBF16, false, false, bench.num_sms()}, bench.stream()),
        deterministic_({DType::kBF16, true, is_hopper_, bench.num_sms()}, bench.stream()) {
    if (is_hopper_) wgmma8_.emplace(bench.num_sms(), bench.stream());
  }

  // The rate of a product large enough that nothing but arithmetic binds it.
  double matrix_flops_per_s() {
    const int64_t n = s_.is_tiny() ? 64 : 8192;
    const Copies x = normal(n * n), weight = normal(n * n, 0.02f), out(n * n * 2);
    const cuda::LinearView view{weight.at<T>(0), nullptr, n, n};
    linear_.tune(view, x.at<T>(0), n, out.at<T>(0), DType::kBF16, bench_.stream());
    const double seconds =
        bench_.time_s(1, [&](int) { linear_.run(view, x.at<T>(0), n, out.at<T>(0), DType::kBF16, bench_.stream()); });
    return 2.0 * static_cast<double>(n * n) * static_cast<double>(n) / seconds;
  }

  void linear_cases() {
    linear_case("qkv", s_.qkv(), s_.hidden, DType::kBF16);
    linear_case("o", s_.hidden, s_.q(), DType::kBF16);
    linear_case("gate_up", 2 * s_.intermediate, s_.hidden, DType::kBF16);
    linear_case("down", s_.hidden, s_.intermediate, DType::kBF16);
    linear_case("lm_head", s_.vocab, s_.hidden, DType::kF32);
  }

  void row_cases() {
    for (const int64_t rows :
         s_.is_tiny() ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{1, 32, 256, 2048, 8192}) {
      if (options_.wants("add_rms_norm")) norm_case(rows);
      if (options_.wants("rope_and_kv_write")) rope_case(rows);
      if (options_.wants("silu_mul")) silu_case(rows);
      if (options_.wants("embedding")) embedding_case(rows);
      if (options_.wants("gather_rows")) gather_case(rows);
    }
  }

  void sample_cases() {
    struct Kind {
      const char* name;
      float temperature, top_p;
      int32_t top_k, num_logprobs, num_penalties;
    };
    for (const int32_t rows : s_.is_tiny() ? std::vector<int32_t>{3} : std::vector<int32_t>{1, 32, 256})
      for (const Kind& k :
           {Kind{"greedy", 0, 1, 0, -1, 0}, Kind{"temperature", 0.6f, 1, 0, -1, 0}, Kind{"top-k 50", 1, 1, 50, -1, 0},
            Kind{"top-p 0.9", 1, 0.9f, 0, -1, 0}, Kind{"top-k 20 top-p 0.95", 0.6f, 0.95f, 20, -1, 0},
            Kind{"greedy, 5 logprobs", 0, 1, 0, 5, 0}, Kind{"best 20, for beams", 0, 1, 0, 20, 0},
            Kind{"greedy, 500 penalties", 0, 1, 0, -1, 500}})
        sample_case(k.name, rows, k.temperature, k.top_p, k.top_k, k.num_logprobs, k.num_penalties);
  }

 private:
  static std::string rows_of(int64_t rows) { return std::to_string(rows) + " rows"; }
  std::string named(const std::string& what) const { return std::string(s_.name) + " " + what; }

  Copies normal(int64_t count, float deviation = 1, int num_copies = 1, DType dtype = DType::kBF16) {
    return bench::normal(bench_, count, deviation, num_copies, dtype);
  }

  void linear_case(const char* name, int64_t n, int64_t k, DType out_dtype) {
    const int copies = bench_.num_copies(n * k * 2);
    const Copies weight = normal(n * k, 0.02f, copies);
    for (const int64_t rows :
         s_.is_tiny() ? std::vector<int64_t>{1, 20} : std::vector<int64_t>{1, 8, 16, 32, 64, 128, 256, 512, 4096}) {
      if (rows * n > int64_t{1} << 28) continue;  // logits of a whole prefill are never wanted
      const Copies x = normal(rows * k), out(rows * n * 4);
      const auto view = [&](int copy) { return cuda::LinearView{weight.at<T>(copy), nullptr, n, k}; };
      const double flops = 2.0 * static_cast<double>(rows * n) * static_cast<double>(k);
      const auto bytes = static_cast<double>(n * k * 2 + rows * k * 2 + rows * n * dtype_bytes(out_dtype));
      const std::string what =
          named(std::string(name) + " " + std::to_string(rows) + "x" + std::to_string(n) + "x" + std::to_string(k));
      // As in a run; without kernels for Hopper; as in a deterministic run.
      for (const auto& [op, linear] :
           {std::pair{"linear", &linear_}, {"linear_cublas", &cublas_}, {"linear_det", &deterministic_}}) {
        if (linear != &linear_ && !options_.wants("linear")) continue;
        linear->tune(view(0), x.at<T>(0), rows, out.at<void>(0), out_dtype, bench_.stream());
        const auto body = [&](int copy) {
          linear->run(view(copy), x.at<T>(0), rows, out.at<void>(0), out_dtype, bench_.stream());
        };
        bench_.report_either(op, what, bench_.time_s(copies, body), bytes, flops);
      }
      if (options_.wants("linear")) int8_case(what, n, k, rows, weight, x, out);
      // The LM head is int8 beside int4 and fp8.
      if (options_.wants("linear_fp8") && out_dtype != DType::kF32)
        fp8_cases(bench_, wgmma8_ ? &*wgmma8_ : nullptr, what, n, k, rows, weight, x, out);
      if (options_.wants("linear_int4") && out_dtype != DType::kF32)
        int4_cases(bench_, &linear_, is_hopper_, {what, n, k, rows}, options_.wants("int4_shares"), weight, x, out);
      if (options_.wants("linear_sparse24") && out_dtype != DType::kF32)  // pruned models keep their LM head
        sparse24_cases(bench_, &linear_, what, n, k, rows, x, out);
      if (options_.wants("int8_groups") && out_dtype != DType::kF32)
        bytes_cases(bench_, &linear_, is_hopper_, {what, n, k, rows}, x, out);
      if (options_.wants("w4a8") && out_dtype != DType::kF32) w4a8_case({what, n, k, rows}, x, out);
    }
  }

  // The same product of int8 weights with the rounding of its rows before it, as a step has it. `bf16`: the weight's
  // copies, of which those of int8 are made.
  void int8_case(const std::string& what, int64_t n, int64_t k, int64_t rows, const Copies& bf16, const Copies& x,
                 const Copies& out) {
    const int64_t row_bytes = cuda::int8_row_bytes(k);
    const int copies = static_cast<int>(bf16.bytes() / bf16.stride());
    const Copies weight(n * row_bytes, copies), scales(n * 4, copies), x_int8(rows * row_bytes), x_scales(rows * 4);
    for (int c = 0; c < copies; ++c)
      cuda::quantize_rows(bf16.at<T>(c), n, k, weight.at<int8_t>(c), scales.at<float>(c), bench_.stream());
    cuda::LinearInt8Lt lt(std::min(rows * n, cuda::tuning::kMaxInt8Sums));
    const double flops = 2.0 * static_cast<double>(rows * n) * static_cast<double>(k);
    const auto bytes = static_cast<double>((n + rows) * row_bytes + rows * (n + k) * 2);
    // As in a run; by wgmma where a run does not take it, by cuBLASLt where it could make the sums, and by our own kernel
    // there. All have the same bits.
    const auto time = [&](const char* op, bool by_wgmma, bool by_lt) {
      const auto product = [&](int c) {
        cuda::quantize_rows(x.at<T>(0), rows, k, x_int8.at<int8_t>(0), x_scales.at<float>(0), bench_.stream());
        const cuda::Int8View view{weight.at<int8_t>(c), scales.at<float>(c), nullptr, n, k};
        const cuda::Int8Rows rounded{x_int8.at<int8_t>(0), x_scales.at<float>(0)};
        if (by_wgmma) return wgmma8_->run(view, rounded, rows, out.at<T>(0), bench_.stream());
        if (by_lt && lt.run(view, rounded, rows, out.at<T>(0), bench_.stream())) return;
        cuda::linear_int8(view, rounded, rows, out.at<T>(0), bench_.stream());
      };
      product(0);  // what cuBLASLt gives is compared
      bench_.report_either(op, what, bench_.time_s(copies, product), bytes, flops);
    };
    const bool takes_wgmma = wgmma8_ && rows >= cuda::tuning::kMinInt8WgmmaRows;
    time("linear_int8", takes_wgmma, true);
    if (wgmma8_ && !takes_wgmma) time("linear_int8_wgmma", true, false);
    if (takes_wgmma && rows > cuda::tuning::kMaxInt8FewRows) time("linear_int8_lt", false, true);
    if (takes_wgmma || rows > cuda::tuning::kMaxInt8FewRows) time("linear_int8_own", false, false);
  }

  void w4a8_case(const ProductShape& shape, const Copies& x, const Copies& out) {
    cuda::LinearInt8Lt lt(std::min(shape.rows * shape.n, cuda::tuning::kMaxInt8Sums));
    w4a8_cases(bench_, shape, x, out, [&](const cuda::Int8View& weight, const cuda::Int8Rows& rounded) {
      if (wgmma8_) return wgmma8_->run(weight, rounded, shape.rows, out.at<T>(0), bench_.stream());
      if (lt.run(weight, rounded, shape.rows, out.at<T>(0), bench_.stream())) return;
      cuda::linear_int8(weight, rounded, shape.rows, out.at<T>(0), bench_.stream());
    });
  }

  void norm_case(int64_t rows) {
    const int64_t count = rows * s_.hidden;
    const int copies = bench_.num_copies(count * 12);
    const Copies residual = normal(count, 1, copies, DType::kF32), delta = normal(count, 1, copies),
                 weight = normal(s_.hidden, 1, 1, DType::kF32), out(count * 2, copies);
    const double seconds = bench_.time_s(copies, [&](int c) {
      cuda::add_rms_norm(residual.at<float>(c), delta.at<T>(c), weight.at<float>(0), 1e-5f, rows, s_.hidden,
                         out.at<T>(c), bench_.stream());
    });
    bench_.report_copy("add_rms_norm", named(rows_of(rows)), seconds, static_cast<double>(count * 12));
  }

  void rope_case(int64_t rows) {
    constexpr int32_t kBlockSize = 16;
    const int64_t pool = ceil_div(rows, kBlockSize) * kBlockSize * s_.kv();
    const int copies = bench_.num_copies((rows * s_.qkv() + 2 * pool) * 2);
    const Copies qkv = normal(rows * s_.qkv(), 1, copies), k(pool * 2, copies), v(pool * 2, copies),
                 angles = normal(rows * s_.head_dim / 2, 0.5f, 2, DType::kF32);
    std::vector<int32_t> places(static_cast<size_t>(rows));
    std::iota(places.begin(), places.end(), 0);
    const Copies positions = upload(places, bench_.stream());
    const cuda::RopeShape shape{s_.heads, s_.kv_heads, s_.head_dim, s_.head_dim, kBlockSize};
    const double seconds = bench_.time_s(copies, [&](int c) {
      cuda::rope_and_kv_write(qkv.at<T>(c), positions.at<int32_t>(0), positions.at<int32_t>(0), rows, shape,
                              angles.at<float>(0), angles.at<float>(1), k.at<T>(c), v.at<T>(c), bench_.stream());
    });
    bench_.report_copy("rope_and_kv_write", named(rows_of(rows)), seconds,
                       static_cast<double>(rows * (2 * s_.q() + 4 * s_.kv()) * 2));
  }

  void silu_case(int64_t rows) {
    const int64_t count = rows * s_.intermediate;
    const int copies = bench_.num_copies(count * 6);
    const Copies gate_up = normal(2 * count, 1, copies), out(count * 2, copies);
    const double seconds = bench_.time_s(
        copies, [&](int c) { cuda::silu_mul(gate_up.at<T>(c), rows, s_.intermediate, out.at<T>(c), bench_.stream()); });
    bench_.report_copy("silu_mul", named(rows_of(rows)), seconds, static_cast<double>(count * 6));
  }

  void embedding_case(int64_t rows) {
    const int64_t count = rows * s_.hidden;
    const int copies = bench_.num_copies(count * 4);
    const Copies table = normal(int64_t{s_.vocab} * s_.hidden), out(count * 4, copies);
    std::vector<TokenId> ids(static_cast<size_t>(rows));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i * 7919 % static_cast<size_t>(s_.vocab));
    const Copies tokens = upload(ids, bench_.stream());
    const double seconds = bench_.time_s(copies, [&](int c) {
      cuda::embedding(table.at<T>(0), tokens.at<TokenId>(0), rows, s_.hidden, out.at<float>(c), bench_.stream());
    });
    bench_.report_copy("embedding", named(rows_of(rows)), seconds, static_cast<double>(count * 6));
  }

  void gather_case(int64_t rows) {
    const int64_t count = rows * s_.hidden;
    const int copies = bench_.num_copies(count * 4);
    const Copies x = normal(count, 1, copies), out(count * 2, copies);
    std::vector<int32_t> chosen(static_cast<size_t>(rows));
    std::iota(chosen.rbegin(), chosen.rend(), 0);
    const Copies indices = upload(chosen, bench_.stream());
    const double seconds = bench_.time_s(copies, [&](int c) {
      cuda::gather_rows(x.at<T>(c), indices.at<int32_t>(0), rows, s_.hidden, out.at<T>(c), bench_.stream());
    });
    bench_.report_copy("gather_rows", named(rows_of(rows)), seconds, static_cast<double>(count * 4));
  }

  // Against one read of the logits.
  void sample_case(const char* name, int32_t rows, float temperature, float top_p, int32_t top_k, int32_t num_logprobs,
                   int32_t num_penalties) {
    const int64_t count = int64_t{rows} * s_.vocab;
    const int copies = bench_.num_copies(count * 4);
    const Copies logits = normal(count, 2.5f, copies, DType::kF32);
    std::vector<SampleRow> params;
    std::vector<TokenPenalty> penalties;
    num_penalties = std::min(num_penalties, s_.vocab);
    for (int32_t i = 0; i < rows; ++i) {
      SampleRow row;
      row.token_row = i, row.position = static_cast<uint32_t>(i);
      row.temperature = temperature, row.top_p = top_p, row.top_k = top_k, row.num_logprobs = num_logprobs;
      row.repetition_penalty = 1.1f;
      row.penalty_begin = static_cast<int32_t>(penalties.size());
      for (int32_t t = 0; t < num_penalties; ++t) penalties.push_back({t * (s_.vocab / num_penalties), 1});
      row.penalty_end = static_cast<int32_t>(penalties.size());
      params.push_back(row);
    }
    const cuda::SampleLimits limits{rows, s_.vocab, static_cast<int64_t>(penalties.size()), 0};
    const int32_t max_top = std::max(num_logprobs, 1);
    const Copies params_memory = upload(params, bench_.stream()), penalty_memory = upload(penalties, bench_.stream()),
                 tokens(rows * 4), logprobs(rows * 4), is_finite(rows), top(int64_t{rows} * max_top * 4, 2),
                 workspace(cuda::sample_workspace_bytes(limits));
    check(cudaMemsetAsync(workspace.at<void>(0), 0, static_cast<size_t>(workspace.bytes()), bench_.stream()),
          "cudaMemset");
    const cuda::SampleResult result{tokens.at<TokenId>(0), logprobs.at<float>(0), is_finite.at<uint8_t>(0),
                                    top.at<TokenId>(0),    top.at<float>(1),      max_top};
    const cuda::SampleNeeds needs = cuda::sample_needs(params);
    const double seconds = bench_.time_s(copies, [&](int c) {
      const cuda::SampleInput input{logits.at<float>(c),
                                    params_memory.at<SampleRow>(0),
                                    nullptr,
                                    penalty_memory.at<TokenPenalty>(0),
                                    rows,
                                    s_.vocab};
      cuda::sample(input, needs, result, limits, workspace.at<void>(0), bench_.stream());
    });
    bench_.report_read("sample", named(rows_of(rows) + ", " + name), seconds, static_cast<double>(count * 4));
  }

  CudaBench& bench_;
  const Options& options_;
  const Shape& s_;
  const bool is_hopper_;
  cuda::Linear linear_, cublas_, deterministic_;
  std::optional<cuda::LinearWgmma8> wgmma8_;  // on Hopper
};

int run(const Options& options, Settings settings) {
  if (options.shape == "tiny") settings.max_copies = 2;
  CudaBench bench(settings);
  bool found = false;
  for (const Shape& shape : kShapes) {
    if (options.shape != shape.name) continue;
    found = true;
    KernelCases cases(bench, options, shape);
    bench.measure_limits(shape.is_tiny() ? 1 << 16 : int64_t{1} << 30, [&] { return cases.matrix_flops_per_s(); });
    const auto is_wanted = [&](const char* op) { return options.wants(op); };
    const auto products = {"linear", "linear_int4", "linear_fp8", "linear_sparse24", "int8_groups",  "w4a8"};
    if (std::any_of(products.begin(), products.end(), is_wanted)) cases.linear_cases();
    if (options.wants("paged_attention"))
      attention_cases(bench, {shape.name, shape.heads, shape.kv_heads, shape.head_dim, shape.is_tiny()});
    cases.row_cases();
    if (options.wants("sample")) cases.sample_cases();
    if (options.wants("lora")) lora_cases(bench, shape.name, shape.hidden, shape.q(), shape.kv(), shape.is_tiny());
    if (options.wants("lora")) expert_lora_cases(bench, shape.is_tiny());
    if (options.wants("resolve_step")) step_cases(bench, shape.is_tiny());
    if (options.wants("block_copy")) block_copy_cases(bench, shape.kv_heads, shape.head_dim, shape.is_tiny());
    if (options.wants("slices"))
      slice_cases(bench, {shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.is_tiny()});
    if (options.wants("states")) state_cases(bench, shape.is_tiny());
    if (options.wants("wide")) wide_cases(bench, shape.is_tiny());
    if (options.wants("texts")) text_cases(bench, shape.is_tiny());
    if (options.wants("more")) more_op_cases(bench, shape.hidden, shape.intermediate, shape.head_dim, shape.is_tiny());
  }
  if (found) return 0;
  std::fprintf(stderr, "bench_kernels_cuda: no shape is named %s\n", options.shape.c_str());
  return 2;
}

}  // namespace
}  // namespace llmb::bench

int main(int argc, char** argv) {
  llmb::bench::Options options;
  llmb::bench::Settings settings;
  CLI::App app("Times every CUDA kernel against this device's measured limits.");
  app.option_defaults()->always_capture_default();
  app.add_option(
         "--ops", options.ops,
         "ops to run; more: those of other architectures; states: recurrent; slices: of keys and values that GPUs divide; int4_shares: linear_int4 with other shares of the device")
      ->delimiter(',');
  app.add_option("--shape", options.shape,
                 "llama-3.1-8b, llama-3.2-1b, qwen2.5-0.5b, qwen3-0.6b, smollm2-135m, or tiny: only that all runs");
  app.add_option("--repeats", settings.repeats, "rounds of each case")->check(CLI::Range(1, 1000));
  app.add_option("--round-ms", settings.min_round_ms, "length of a round")->check(CLI::Range(0.0, 1000.0));
  app.add_option("--json", settings.json_path, "file for the same table as JSON lines");
  CLI11_PARSE(app, argc, argv);

  std::printf("repeat:");
  for (int i = 0; i < argc; ++i) std::printf(" %s", argv[i]);
  std::printf("\n");
  try {
    return llmb::bench::run(options, settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_kernels_cuda: %s\n", error.what());
    return 1;
  }
}
