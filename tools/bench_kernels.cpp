// Times every CPU kernel at the shapes of published models, each as a share of what this machine was measured to do in
// the same run. One line a case: time, rate, share of the limit, a hash of the output, which must not change between
// runs, thread counts and machines with the same instruction set. See kernels/README.md.
#include <CLI/CLI.hpp>

#include <bit>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/cpu_target.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/sample.h"
#include "tools/cpu_bench.h"
#include "tools/cpu_bench_kv.h"

namespace llmb::bench {
namespace {

Quantization quantization(const CpuBench& bench) {
  return bench.options().dtype == "int8"   ? Quantization::kInt8
         : bench.options().dtype == "int4" ? Quantization::kInt4
         : bench.options().dtype == "w4a8" ? Quantization::kW4A8
                                           : Quantization::kNone;
}

// Blocks of any codes, with scales that are finite: no byte of them is above 0x3f.
cpu::PackedLinear make_blocks(CpuBench& bench, BlockFormat format, int64_t n, int64_t k) {
  const BlockSize& block = block_size(format);
  std::vector<uint8_t> bytes(static_cast<size_t>(n * k / block.size * block.bytes));
  uint32_t state = 1;
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24 & 0x3f);
  const TensorView view{bytes.data(), DType::kF32, n, k, format};
  const DType activations = bench.options().dtype.ends_with(":int8") ? DType::kI8 : DType::kF32;
  return cpu::PackedLinear::pack({&view, 1}, {}, bench.pool(), Quantization::kNone, activations);
}

// "Q4_K", or "Q4_K:int8" with activations rounded to int8.
BlockFormat blocks_of(const CpuBench& bench) {
  const std::string& dtype = bench.options().dtype;
  return find_block_format(dtype.substr(0, dtype.find(':')));
}

cpu::PackedLinear make_weight(CpuBench& bench, int64_t n, int64_t k) {
  if (const BlockFormat format = blocks_of(bench); format != BlockFormat::kNone)
    return make_blocks(bench, format, n, k);
  const DType dtype = bench.options().dtype == "float32"   ? DType::kF32
                      : bench.options().dtype == "float16" ? DType::kF16
                                                           : DType::kBF16;
  const std::vector<float> values = make_floats(n * k, 1, 0.1f);
  std::vector<uint16_t> halves;
  if (dtype != DType::kF32) {
    for (const float x : values) {
      const uint32_t bits = std::bit_cast<uint32_t>(x);
      // float16: sign, a fixed exponent and the mantissa's upper bits: values of magnitude 1/16 to 1/8.
      halves.push_back(dtype == DType::kBF16
                           ? static_cast<uint16_t>(bits >> 16)
                           : static_cast<uint16_t>(bits >> 16 & 0x8000) | 0x2c00 | (bits >> 13 & 0x3ff));
    }
  }
  const TensorView view{dtype == DType::kF32 ? static_cast<const void*>(values.data()) : halves.data(), dtype, n, k};
  const DType activations = bench.options().rounds_to_bf16() ? DType::kBF16 : DType::kF32;
  return cpu::PackedLinear::pack({&view, 1}, {}, bench.pool(), quantization(bench), activations);
}

void linear_case(CpuBench& bench, const Shape& s, const char* name, int64_t n, int64_t k) {
  if (n * k * 2 > bench.options().max_weight_mib << 20) return;
  if (k % block_size(blocks_of(bench)).size != 0) return;
  const cpu::PackedLinear weight = make_weight(bench, n, k);
  for (const int64_t rows : bench.options().rows) {
    const std::vector<float> x = make_floats(rows * k, 2);
    std::vector<float> out(static_cast<size_t>(rows * n));
    bench.time(
        "linear", s, std::string(name) + " " + std::to_string(rows) + "x" + std::to_string(n) + "x" + std::to_string(k),
        2.0 * static_cast<double>(rows * n * k), static_cast<double>(weight.resident_bytes() + (rows * (n + k)) * 4),
        [&] { cpu::linear(weight, x.data(), rows, out.data(), bench.pool()); }, [&] { return hash_floats(out); });
  }
}

void linear_cases(CpuBench& bench, const Shape& s) {
  linear_case(bench, s, "qkv", s.q() + 2 * s.kv(), s.hidden);
  linear_case(bench, s, "o", s.hidden, s.q());
  linear_case(bench, s, "gate_up", 2 * s.intermediate, s.hidden);
  linear_case(bench, s, "down", s.hidden, s.intermediate);
  linear_case(bench, s, "lm_head", s.vocab, s.hidden);
}

void embedding_cases(CpuBench& bench, const Shape& s) {
  if (int64_t{s.vocab} * s.hidden * 2 > bench.options().max_weight_mib << 20) return;
  if (s.hidden % block_size(blocks_of(bench)).size != 0) return;
  const cpu::PackedLinear table = make_weight(bench, s.vocab, s.hidden);
  for (const int64_t rows : bench.options().rows) {
    std::vector<TokenId> tokens(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) tokens[i] = static_cast<TokenId>(i * 7919 % s.vocab);
    std::vector<float> out(static_cast<size_t>(rows * s.hidden));
    bench.time(
        "embedding", s, std::to_string(rows) + " rows", 0, static_cast<double>(rows * s.hidden) * 6,
        [&] { cpu::embedding(table, tokens.data(), rows, out.data(), bench.pool()); },
        [&] { return hash_floats(out); });
  }
}

void row_cases(CpuBench& bench, const Shape& s, int64_t rows) {
  const std::string what = std::to_string(rows) + " rows";
  const auto floats = [&](int64_t n) { return static_cast<double>(rows * n) * 4; };
  std::vector<float> x = make_floats(rows * 2 * s.intermediate, 5), out(x.size());
  const auto hash = [&] { return hash_floats(out); };
  if (bench.options().wants("add_rms_norm")) {
    const std::vector<float> weight = make_floats(s.hidden, 6), zero(static_cast<size_t>(rows * s.hidden));
    bench.time(
        "add_rms_norm", s, what, 0, floats(4 * s.hidden),
        [&] {
          cpu::add_rms_norm(x.data(), zero.data(), weight.data(), 1e-5f, rows, s.hidden, out.data(), bench.pool());
        },
        hash);
  }
  if (bench.options().wants("silu_mul"))
    bench.time(
        "silu_mul", s, what, 0, floats(3 * s.intermediate),
        [&] { cpu::silu_mul(x.data(), rows, s.intermediate, out.data(), bench.pool()); }, hash);
  if (bench.options().wants("rope_and_kv_write")) rope_case(bench, s, rows);
  if (bench.options().wants("gather_rows")) {
    std::vector<int32_t> chosen(static_cast<size_t>(rows));
    std::iota(chosen.rbegin(), chosen.rend(), 0);
    bench.time(
        "gather_rows", s, what, 0, floats(2 * s.hidden),
        [&] { cpu::gather_rows(x.data(), chosen.data(), rows, s.hidden, out.data(), bench.pool()); }, hash);
  }
}

// Sums of twelve uniform numbers, of such a deviation.
std::vector<float> make_normal(int64_t n, uint32_t seed, float deviation) {
  std::vector<float> sums(static_cast<size_t>(n));
  for (uint32_t i = 0; i < 12; ++i) {
    const std::vector<float> part = make_floats(n, seed * 12 + i, deviation / 2);
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += part[j];
  }
  return sums;
}

void copy_rows(CpuBench& bench, const std::vector<float>& from, int64_t width, float* to) {
  bench.pool().parallel_for(std::ssize(from) / width, [&](int64_t r, int) {
    std::memcpy(to + r * width, from.data() + r * width, static_cast<size_t>(width) * sizeof(float));
  });
}

void sample_cases(CpuBench& bench, const Shape& s) {
  struct Kind {
    const char* name;
    float temperature, top_p;
    int32_t top_k, num_logprobs, masked = 0;  // masked: one token in so many is allowed; 0: no mask
    bool is_normal = false;  // logits are normal, of deviation 3, about as a model's; else uniform
  };
  for (const int64_t rows : {1, 64}) {
    const std::vector<float> logits = make_floats(rows * s.vocab, 8, 12);
    cpu::AlignedBuffer work(std::ssize(logits) * 4);
    float* const to = reinterpret_cast<float*>(work.data());
    bench.time(
        "sample", s, "the copy alone, " + std::to_string(rows) + " rows", 0, static_cast<double>(rows * s.vocab) * 8,
        [&] { copy_rows(bench, logits, s.vocab, to); }, [&] { return hash_bytes(to, logits.size() * 4); });
  }
  for (const Kind& kind :
       {Kind{"greedy", 0, 1, 0, -1}, Kind{"temperature", 1, 1, 0, -1}, Kind{"top-p 0.9", 1, 0.9f, 0, -1},
        Kind{"top-p 0.9, normal logits", 1, 0.9f, 0, -1, 0, true}, Kind{"top-k 50", 1, 1, 50, -1}, Kind{"greedy, 5 logprobs", 0, 1, 0, 5},
        Kind{"temperature, half allowed", 1, 1, 0, -1, 2}, Kind{"temperature, 1 % allowed", 1, 1, 0, -1, 100}}) {
    for (const int64_t rows : {1, 64}) {
      const std::vector<float> logits =
          kind.is_normal ? make_normal(rows * s.vocab, 8, 3) : make_floats(rows * s.vocab, 8, 12);
      cpu::AlignedBuffer work(std::ssize(logits) * 4);  // in large pages, as a backend's logits are
      float* const to = reinterpret_cast<float*>(work.data());
      std::vector<SampleRow> sample_rows;
      std::vector<uint32_t> mask;
      if (kind.masked > 0) mask.resize(static_cast<size_t>(ceil_div(s.vocab, int64_t{32})));
      for (int64_t t = 0; kind.masked > 0 && t < s.vocab; t += kind.masked) mask[t / 32] |= 1u << t % 32;
      for (int32_t i = 0; i < rows; ++i) {
        SampleRow row;
        row.mask = mask.empty() ? -1 : 0;
        row.position = static_cast<uint32_t>(i);
        row.temperature = kind.temperature;
        row.top_p = kind.top_p;
        row.top_k = kind.top_k;
        row.num_logprobs = kind.num_logprobs;
        sample_rows.push_back(row);
      }
      SampledRows out;
      // The copy that restores clobbered logits is timed too, and by itself above.
      bench.time(
          "sample", s, std::string(kind.name) + ", " + std::to_string(rows) + " rows", 0,
          static_cast<double>(rows * s.vocab) * 12,
          [&] {
            copy_rows(bench, logits, s.vocab, to);
            out.clear();
            cpu::sample(to, s.vocab, {sample_rows, {}, {}, mask, static_cast<int32_t>(mask.size())}, &out,
                        bench.pool());
          },
          [&] { return hash_bytes(out.tokens.data(), out.tokens.size() * sizeof(TokenId)); });
    }
  }
}

void run_cases(CpuBench& bench, const Shape& s) {
  const CpuBenchOptions& options = bench.options();
  if (options.wants("linear")) linear_cases(bench, s);
  if (options.wants("paged_attention")) attention_cases(bench, s);
  if (options.wants("block_copy")) block_copy_cases(bench, s);
  if (options.wants("embedding")) embedding_cases(bench, s);
  for (const int64_t rows : options.rows) row_cases(bench, s, rows);
  if (options.wants("sample")) sample_cases(bench, s);
}

}  // namespace
}  // namespace llmb::bench

int main(int argc, char** argv) {
  llmb::bench::CpuBenchOptions options;
  CLI::App app("Times every CPU kernel against this machine's measured limits.");
  app.option_defaults()->always_capture_default();
  app.add_option("--ops", options.ops, "ops to run")->delimiter(',');
  app.add_option("--shape", options.shape, "smollm2-135m, qwen2.5-0.5b, llama-3.2-1b, llama-3.1-8b or all");
  app.add_option("--rows", options.rows, "rows of a call")->delimiter(',')->check(CLI::Range(1, 1 << 16));
  std::vector<std::string> dtypes = {"float32", "float16", "bfloat16", "bfloat16:bfloat16", "int8", "int4", "w4a8"};
  for (const llmb::BlockSize& block : llmb::kBlockSizes)
    if (block.size > 1) dtypes.insert(dtypes.end(), {block.name, std::string(block.name) + ":int8"});
  app.add_option("--dtype", options.dtype, "weights of linear; with :int8 or :bfloat16, what activations are rounded to")
      ->check(CLI::IsMember(dtypes));
  app.add_option("--context", options.contexts, "positions in the KV cache")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--kv-cache-dtype", options.kv_dtypes, "of the KV cache")
      ->delimiter(',')
      ->check(CLI::IsMember({"float32", "bfloat16", "int8", "fp8", "int4"}));
  app.add_option_function<std::string>(
      "--cpu-target",
      [](const std::string& name) {
        if (!llmb::cpu::force_target(name)) throw CLI::ValidationError("--cpu-target", "no such target here: " + name);
      },
      "SIMD target; default: the best one");
  app.add_option("--threads", options.num_threads, "0: all usable cores")->check(CLI::Range(0, 1024));
  app.add_option("--repeats", options.repeats, "rounds of each case")->check(CLI::Range(1, 1000));
  app.add_option("--max-weight-mib", options.max_weight_mib, "larger weights and caches are left out")
      ->check(CLI::Range(1, 1 << 16));
  CLI11_PARSE(app, argc, argv);

  std::printf("repeat:");
  for (int i = 0; i < argc; ++i) std::printf(" %s", argv[i]);
  std::printf("\n");
  llmb::bench::CpuBench bench(options);
  bool found = false;
  for (const llmb::bench::Shape& shape : llmb::bench::kShapes) {
    if (options.shape != "all" && options.shape != shape.name) continue;
    found = true;
    llmb::bench::run_cases(bench, shape);
  }
  if (!found) {
    std::fprintf(stderr, "bench_kernels: no shape is named %s\n", options.shape.c_str());
    return 2;
  }
  bench.finish();
  return 0;
}
