// Times every CPU kernel at the shapes of published models, each as a share of what this machine was measured to do in
// the same run. One line a case: time, rate, share of the limit, a hash of the output, which must not change between
// runs, thread counts and machines with the same instruction set. See kernels/README.md.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "core/kv_layout.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/machine_limits.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/sample.h"

namespace llmb {
namespace {

// As in data/shapes/*/config.json.
struct Shape {
  const char* name;
  int32_t hidden, intermediate, heads, kv_heads, head_dim, vocab;

  int32_t q() const { return heads * head_dim; }
  int32_t kv() const { return kv_heads * head_dim; }
};
constexpr Shape kShapes[] = {{"smollm2-135m", 576, 1536, 9, 3, 64, 49152},
                             {"qwen2.5-0.5b", 896, 4864, 14, 2, 64, 151936},
                             {"llama-3.2-1b", 2048, 8192, 32, 8, 64, 128256},
                             {"llama-3.1-8b", 4096, 14336, 32, 8, 128, 128256}};

struct Options {
  std::vector<std::string> ops = {"linear",   "paged_attention", "add_rms_norm", "rope_and_kv_write",
                                  "silu_mul", "embedding",       "gather_rows",  "sample"};
  std::string shape = "all";
  std::vector<int64_t> rows = {1, 8, 64, 512};
  std::string dtype = "bfloat16";
  std::vector<int32_t> contexts = {512, 4096};
  std::vector<std::string> kv_dtypes = {"float32", "bfloat16", "int8"};
  int num_threads = 0;
  int repeats = 9;
  int64_t max_weight_mib = 600;

  bool wants(const std::string& op) const { return std::find(ops.begin(), ops.end(), op) != ops.end(); }
};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

uint64_t hash_bytes(const void* data, size_t size, uint64_t hash = 14695981039346656037u) {  // FNV-1a
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211u;
  return hash;
}
uint64_t hash_floats(const std::vector<float>& v) { return hash_bytes(v.data(), v.size() * sizeof(float)); }

// Cheap reproducible values in [-1, 1) times scale.
std::vector<float> make_floats(int64_t n, uint32_t seed, float scale = 1) {
  std::vector<float> v(static_cast<size_t>(n));
  uint32_t state = seed * 2654435761u + 1;
  for (float& x : v) {
    state = state * 1664525u + 1013904223u;
    x = scale * (static_cast<float>(state >> 8) * 0x1p-23f - 1);
  }
  return v;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), pool_(options.num_threads > 0 ? options.num_threads : usable_cpu_count()) {
    measure_limits();
    std::printf("%s, %d threads, peak %.1f GFLOP/s, memory %.1f GB/s\n", cpu::simd_target_name(), pool_.num_threads(),
                flops_per_s_ / 1e9, bytes_per_s_ / 1e9);
    std::printf("%-18s %-14s %-34s %10s %10s %10s %8s %10s %8s  %s\n", "op", "shape", "case", "median ms", "best ms",
                "GFLOP/s", "% peak", "GB/s", "% mem", "output hash");
  }

  void run(const Shape& s) {
    if (options_.wants("linear")) linear_cases(s);
    if (options_.wants("paged_attention")) attention_cases(s);
    if (options_.wants("embedding")) embedding_cases(s);
    for (const int64_t rows : options_.rows) row_cases(s, rows);
    if (options_.wants("sample")) sample_cases(s);
  }

  // The limits once more: a machine that others use changes under a run.
  void finish() {
    measure_limits();
    std::printf("at the end: peak %.1f GFLOP/s, memory %.1f GB/s\n", flops_per_s_ / 1e9, bytes_per_s_ / 1e9);
  }

 private:
  void measure_limits() {
    flops_per_s_ = (options_.dtype == "int8" ? cpu::measure_peak_int8_ops(pool_) : cpu::measure_peak_flops(pool_)).best;
    bytes_per_s_ = cpu::measure_read_bandwidth(pool_).best;
  }

  // Prints the median and the best of several rounds; rates are of the best, as the limits are: others on the machine
  // only ever slow a round down. flops and bytes: what the op must at least do and move.
  void time(const char* op, const Shape& shape, const std::string& what, double flops, double bytes,
            const std::function<void()>& body, const std::function<uint64_t()>& hash) {
    constexpr double kMinRoundSeconds = 0.002;
    body();
    const uint64_t output_hash = hash();
    const double start = now_s();
    body();
    const int calls = std::max(1, static_cast<int>(kMinRoundSeconds / std::max(now_s() - start, 1e-7)));
    std::vector<double> seconds;
    for (int i = 0; i < options_.repeats; ++i) {
      const double begin = now_s();
      for (int c = 0; c < calls; ++c) body();
      seconds.push_back((now_s() - begin) / calls);
    }
    std::sort(seconds.begin(), seconds.end());
    const double best = seconds.front(), median = seconds[seconds.size() / 2];
    std::printf("%-18s %-14s %-34s %10.4f %10.4f %10.1f %8.1f %10.1f %8.1f  %016llx\n", op, shape.name, what.c_str(),
                median * 1e3, best * 1e3, flops / best / 1e9, 100 * flops / best / flops_per_s_, bytes / best / 1e9,
                100 * bytes / best / bytes_per_s_, static_cast<unsigned long long>(output_hash));
    std::fflush(stdout);
  }

  cpu::PackedLinear make_weight(int64_t n, int64_t k) {
    const DType dtype = options_.dtype == "float32"   ? DType::kF32
                        : options_.dtype == "float16" ? DType::kF16
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
    return cpu::PackedLinear::pack({&view, 1}, {}, pool_, quantization());
  }

  Quantization quantization() const {
    return options_.dtype == "int8"   ? Quantization::kInt8
           : options_.dtype == "int4" ? Quantization::kInt4
                                      : Quantization::kNone;
  }

  void linear_case(const Shape& s, const char* name, int64_t n, int64_t k) {
    if (n * k * 2 > options_.max_weight_mib << 20) return;
    const cpu::PackedLinear weight = make_weight(n, k);
    for (const int64_t rows : options_.rows) {
      const std::vector<float> x = make_floats(rows * k, 2);
      std::vector<float> out(static_cast<size_t>(rows * n));
      time(
          "linear", s,
          std::string(name) + " " + std::to_string(rows) + "x" + std::to_string(n) + "x" + std::to_string(k),
          2.0 * static_cast<double>(rows * n * k), static_cast<double>(weight.resident_bytes() + (rows * (n + k)) * 4),
          [&] { cpu::linear(weight, x.data(), rows, out.data(), pool_); }, [&] { return hash_floats(out); });
    }
  }

  void linear_cases(const Shape& s) {
    linear_case(s, "qkv", s.q() + 2 * s.kv(), s.hidden);
    linear_case(s, "o", s.hidden, s.q());
    linear_case(s, "gate_up", 2 * s.intermediate, s.hidden);
    linear_case(s, "down", s.hidden, s.intermediate);
    linear_case(s, "lm_head", s.vocab, s.hidden);
  }

  // A cache of random numbers for `slots` tokens, the same in each of `layers` layers.
  struct Cache {
    cpu::AlignedBuffer memory;
    std::vector<cpu::KvCacheView> layers;
  };
  static constexpr int32_t kBlockSize = 16;

  static Cache make_cache(const Shape& s, DType dtype, int64_t blocks, int64_t layers) {
    cpu::KvCacheView view{nullptr, dtype, kBlockSize, s.kv_heads, s.head_dim};
    const int64_t block_bytes = view.head_bytes() * s.kv_heads;
    Cache cache{cpu::AlignedBuffer(blocks * layers * block_bytes), {}};
    view.data = cache.memory.data();
    const int64_t filled = std::min<int64_t>(blocks, 61);
    const std::vector<float> k = make_floats(filled * kBlockSize * s.kv(), 3), v = make_floats(k.size(), 9);
    for (int64_t slot = 0; slot < filled * kBlockSize; ++slot)
      cpu::write_kv_slot(&k[slot * s.kv()], &v[slot * s.kv()], slot, view);
    for (int64_t b = filled; b < blocks * layers; ++b)
      std::memcpy(view.data + b * block_bytes, view.data + b % blocks % filled * block_bytes, block_bytes);
    for (int64_t i = 0; i < layers; ++i, view.data += blocks * block_bytes) cache.layers.push_back(view);
    return cache;
  }

  // Decode steps go through as many layers as it takes to find little in a cache that the calls before left there.
  void attention_case(const Shape& s, DType dtype, int32_t seqs, int32_t query_len, int32_t context) {
    constexpr int64_t kColdBytes = int64_t{1} << 30;
    const KvLayout layout{1, s.kv_heads, s.head_dim, kBlockSize, 0, dtype};
    const int32_t blocks = static_cast<int32_t>(ceil_div(context, kBlockSize));
    const int64_t layer_bytes = int64_t{seqs} * blocks * layout.bytes_per_block();
    if (layer_bytes > options_.max_weight_mib << 20) return;
    const int64_t layers = query_len > 1 || seqs < 8 ? 1 : std::min<int64_t>(64, ceil_div(kColdBytes, layer_bytes));
    const Cache cache = make_cache(s, dtype, int64_t{seqs} * blocks, layers);
    const int64_t tokens = int64_t{seqs} * query_len, stride = s.q() + 2 * s.kv();
    const std::vector<float> qkv = make_floats(tokens * stride, 4);
    std::vector<float> out(static_cast<size_t>(tokens * s.q()));
    std::vector<int32_t> query_start = {0}, context_len, block_start = {0};
    std::vector<BlockId> ids(static_cast<size_t>(seqs * blocks));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<BlockId>((i * 7919) % ids.size());
    for (int32_t i = 1; i <= seqs; ++i) {
      query_start.push_back(i * query_len);
      context_len.push_back(context);
      block_start.push_back(i * blocks);
    }
    const cpu::AttentionBatch batch{seqs, query_start.data(), context_len.data(), block_start.data(), ids.data()};
    const double pairs = static_cast<double>(tokens) * (context - (query_len - 1) / 2.0);
    size_t layer = 0;
    time(
        "paged_attention", s,
        std::to_string(seqs) + " x " + std::to_string(query_len) + " of " + std::to_string(context) + ", " +
            dtype_name(dtype),
        4 * pairs * s.q(),
        static_cast<double>(seqs) * context * static_cast<double>(layout.bytes_per_token()) +
            8.0 * static_cast<double>(tokens) * s.q(),
        [&] {
          cpu::paged_attention(qkv.data(), stride, out.data(), batch, {s.heads, 0.125f},
                               cache.layers[layer++ % cache.layers.size()], pool_);
        },
        [&] { return hash_floats(out); });
  }

  void attention_cases(const Shape& s) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
      if (std::find(options_.kv_dtypes.begin(), options_.kv_dtypes.end(), dtype_name(dtype)) ==
          options_.kv_dtypes.end())
        continue;
      for (const int32_t context : options_.contexts) {
        for (const int32_t seqs : {1, 8, 64}) attention_case(s, dtype, seqs, 1, context);
        attention_case(s, dtype, 1, std::min(context, 2048), std::min(context, 2048));
      }
    }
  }

  void embedding_cases(const Shape& s) {
    if (int64_t{s.vocab} * s.hidden * 2 > options_.max_weight_mib << 20) return;
    const cpu::PackedLinear table = make_weight(s.vocab, s.hidden);
    for (const int64_t rows : options_.rows) {
      std::vector<TokenId> tokens(static_cast<size_t>(rows));
      for (int64_t i = 0; i < rows; ++i) tokens[i] = static_cast<TokenId>(i * 7919 % s.vocab);
      std::vector<float> out(static_cast<size_t>(rows * s.hidden));
      time(
          "embedding", s, std::to_string(rows) + " rows", 0, static_cast<double>(rows * s.hidden) * 6,
          [&] { cpu::embedding(table, tokens.data(), rows, out.data(), pool_); }, [&] { return hash_floats(out); });
    }
  }

  void row_cases(const Shape& s, int64_t rows) {
    const std::string what = std::to_string(rows) + " rows";
    const auto floats = [&](int64_t n) { return static_cast<double>(rows * n) * 4; };
    std::vector<float> x = make_floats(rows * 2 * s.intermediate, 5), out(x.size());
    const auto hash = [&] { return hash_floats(out); };
    if (options_.wants("add_rms_norm")) {
      const std::vector<float> weight = make_floats(s.hidden, 6), zero(static_cast<size_t>(rows * s.hidden));
      time(
          "add_rms_norm", s, what, 0, floats(4 * s.hidden),
          [&] { cpu::add_rms_norm(x.data(), zero.data(), weight.data(), 1e-5f, rows, s.hidden, out.data(), pool_); },
          hash);
    }
    if (options_.wants("silu_mul"))
      time(
          "silu_mul", s, what, 0, floats(3 * s.intermediate),
          [&] { cpu::silu_mul(x.data(), rows, s.intermediate, out.data(), pool_); }, hash);
    if (options_.wants("rope_and_kv_write")) rope_case(s, rows);
    if (options_.wants("gather_rows")) {
      std::vector<int32_t> chosen(static_cast<size_t>(rows));
      std::iota(chosen.rbegin(), chosen.rend(), 0);
      time(
          "gather_rows", s, what, 0, floats(2 * s.hidden),
          [&] { cpu::gather_rows(x.data(), chosen.data(), rows, s.hidden, out.data(), pool_); }, hash);
    }
  }

  void rope_case(const Shape& s, int64_t rows) {
    const int64_t stride = s.q() + 2 * s.kv();
    std::vector<float> qkv = make_floats(rows * stride, 7);
    const Cache cache = make_cache(s, DType::kBF16, ceil_div(rows, kBlockSize), 1);
    const std::vector<float> cos(static_cast<size_t>(rows * s.head_dim / 2), 0.8f), sin(cos.size(), 0.6f);
    std::vector<int32_t> positions(static_cast<size_t>(rows));
    std::iota(positions.begin(), positions.end(), 0);
    time(
        "rope_and_kv_write", s, std::to_string(rows) + " rows", 0,
        static_cast<double>(rows) * ((2.0 * s.q() + 2.0 * s.kv()) * 4 + 2.0 * s.kv() * 2),
        [&] {
          cpu::rope_and_kv_write(qkv.data(), positions.data(), positions.data(), rows, s.heads, s.kv_heads, s.head_dim,
                                 s.head_dim, cos.data(), sin.data(), cache.layers[0], pool_);
        },
        [&] { return hash_bytes(cache.memory.data(), static_cast<size_t>(cache.memory.size_bytes())); });
  }

  void sample_cases(const Shape& s) {
    struct Kind {
      const char* name;
      float temperature, top_p;
      int32_t top_k, num_logprobs;
    };
    for (const Kind& kind :
         {Kind{"greedy", 0, 1, 0, -1}, Kind{"temperature", 1, 1, 0, -1}, Kind{"top-p 0.9", 1, 0.9f, 0, -1},
          Kind{"top-k 50", 1, 1, 50, -1}, Kind{"greedy, 5 logprobs", 0, 1, 0, 5}}) {
      for (const int64_t rows : {1, 64}) {
        const std::vector<float> logits = make_floats(rows * s.vocab, 8, 12);
        std::vector<float> work(logits.size());
        std::vector<SampleRow> sample_rows;
        for (int32_t i = 0; i < rows; ++i) {
          SampleRow row;
          row.position = static_cast<uint32_t>(i);
          row.temperature = kind.temperature;
          row.top_p = kind.top_p;
          row.top_k = kind.top_k;
          row.num_logprobs = kind.num_logprobs;
          sample_rows.push_back(row);
        }
        SampledRows out;
        // The copy that restores clobbered logits is timed too: it reads and writes each logit once.
        time(
            "sample", s, std::string(kind.name) + ", " + std::to_string(rows) + " rows", 0,
            static_cast<double>(rows * s.vocab) * 12,
            [&] {
              pool_.parallel_for(rows, [&](int64_t r, int) {
                std::memcpy(&work[r * s.vocab], &logits[r * s.vocab], static_cast<size_t>(s.vocab) * sizeof(float));
              });
              out.clear();
              cpu::sample(work.data(), s.vocab, {sample_rows, {}, {}}, &out, pool_);
            },
            [&] { return hash_bytes(out.tokens.data(), out.tokens.size() * sizeof(TokenId)); });
      }
    }
  }

  Options options_;
  ThreadPool pool_;
  double flops_per_s_ = 0, bytes_per_s_ = 0;
};

}  // namespace
}  // namespace llmb

int main(int argc, char** argv) {
  llmb::Options options;
  CLI::App app("Times every CPU kernel against this machine's measured limits.");
  app.option_defaults()->always_capture_default();
  app.add_option("--ops", options.ops, "ops to run")->delimiter(',');
  app.add_option("--shape", options.shape, "smollm2-135m, qwen2.5-0.5b, llama-3.2-1b, llama-3.1-8b or all");
  app.add_option("--rows", options.rows, "rows of a call")->delimiter(',')->check(CLI::Range(1, 1 << 16));
  app.add_option("--dtype", options.dtype, "weights of linear")
      ->check(CLI::IsMember({"float32", "float16", "bfloat16", "int8", "int4"}));
  app.add_option("--context", options.contexts, "positions in the KV cache")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--kv-cache-dtype", options.kv_dtypes, "of the KV cache")
      ->delimiter(',')
      ->check(CLI::IsMember({"float32", "bfloat16", "int8"}));
  app.add_option("--threads", options.num_threads, "0: all usable cores")->check(CLI::Range(0, 1024));
  app.add_option("--repeats", options.repeats, "rounds of each case")->check(CLI::Range(1, 1000));
  app.add_option("--max-weight-mib", options.max_weight_mib, "larger weights and caches are left out")
      ->check(CLI::Range(1, 1 << 16));
  CLI11_PARSE(app, argc, argv);

  std::printf("repeat:");
  for (int i = 0; i < argc; ++i) std::printf(" %s", argv[i]);
  std::printf("\n");
  llmb::Bench bench(options);
  bool found = false;
  for (const llmb::Shape& shape : llmb::kShapes) {
    if (options.shape != "all" && options.shape != shape.name) continue;
    found = true;
    bench.run(shape);
  }
  if (!found) {
    std::fprintf(stderr, "bench_kernels: no shape is named %s\n", options.shape.c_str());
    return 2;
  }
  bench.finish();
  return 0;
}
