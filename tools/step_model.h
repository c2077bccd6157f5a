// How long a step takes on a device, or on a group of devices that share a model, reckoned from the model's shape:
// flops, bytes, what every layer costs whatever its size, and the time of sums over ranks by size of message. It
// answers for machines that nobody has here; steps that did run are core/step_cost.h's.
//
// A product's time is (bytes³ + flops³)^(1/3) of the times that its bytes and its flops take alone: near the larger
// one, and above it where both matter. Attention likewise. Rates are shares of the data sheet's, which recorded steps
// give.
//
// tests/unit/step_model_test holds it against the steps of data/measurements/nvidia-h200.md and of CPU ranks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace llmb {

// A decoder with grouped-query attention and a gated MLP, or experts of that form.
struct ModelShape {
  const char* name = "";
  int64_t num_layers = 0, hidden_size = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0, intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t num_experts = 0, top_k = 0;  // 0: dense
};

// Bytes of a number, and how many times the 16-bit rate products have.
struct Precision {
  const char* name = "";
  double weight_bytes = 2, kv_bytes = 2, activation_bytes = 2, flops_factor = 1;
};

struct DeviceModel {
  const char* name = "";
  double flops_per_s = 0, bytes_per_s = 0, memory_bytes = 0;  // the data sheet's; dense 16-bit flops
  double product_bytes_share = 1, product_flops_share = 1;    // of these that products reach
  double attention_bytes_share = 1, attention_flops_share = 1;
  double layer_ms = 0;  // of launches, norms and the like
};

// From one rank to another. A sum over n ranks by a ring takes base + 2 (n - 1) hops, and 2 (n - 1) / n of its bytes.
struct LinkModel {
  double base_ms = 0, hop_ms = 0, bytes_per_s = 1;
};

// Ranks that have a model together: each layer is divided among tensor_size of them, layers among num_stages.
struct RankGrid {
  int64_t tensor_size = 1, num_stages = 1;
  int64_t num_ranks() const { return tensor_size * num_stages; }
};

// The work of a step.
struct StepWork {
  double num_rows = 0;
  double num_samples = 0;         // rows whose logits are computed
  double num_context_tokens = 0;  // read from the KV cache by rows that decode
  double num_pairs = 0;           // of prompts' rows and the positions that each of them sees
};

inline double both(double bytes_ms, double flops_ms) {
  return std::cbrt(bytes_ms * bytes_ms * bytes_ms + flops_ms * flops_ms * flops_ms);
}

class StepModel {
 public:
  StepModel(const ModelShape& model, const Precision& precision, const DeviceModel& device, const LinkModel& link,
            const RankGrid& grid)
      : model_(model), precision_(precision), device_(device), link_(link), grid_(grid) {}

  // For the whole model.
  double weight_bytes() const {
    const double layers = static_cast<double>(model_.num_layers) * (attention_weights() + mlp_weights(all_experts()));
    return precision_.weight_bytes * (layers + 2.0 * head_weights());  // the embedding besides
  }
  // For a token in all layers; ranks beyond the sets of keys and values have copies of these.
  double kv_bytes_per_token() const {
    const int64_t num_sets = std::max(model_.num_kv_heads, grid_.tensor_size);
    return static_cast<double>(2 * model_.num_layers * num_sets * model_.head_dim) * precision_.kv_bytes;
  }
  // That the ranks have room for beside the weights, in `share` of their memory.
  double kv_tokens(double share) const {
    const double memory = device_.memory_bytes * share * static_cast<double>(grid_.num_ranks());
    return std::max(0.0, (memory - weight_bytes()) / kv_bytes_per_token());
  }

  double all_reduce_ms(double bytes) const {
    const auto n = static_cast<double>(grid_.tensor_size);
    if (n == 1) return 0;
    return link_.base_ms + 2 * (n - 1) * link_.hop_ms + 2 * (n - 1) / n * bytes / link_.bytes_per_s * 1000;
  }
  // Keys and values, or a residual stream, from one rank to another.
  double send_ms(double bytes) const { return link_.base_ms + link_.hop_ms + bytes / link_.bytes_per_s * 1000; }

  // A layer, its two sums included.
  double layer_ms(const StepWork& step) const {
    const double experts = distinct_experts(step.num_rows);
    const double bytes = precision_.weight_bytes * (attention_weights() + mlp_weights(experts));
    const double flops = 2 * step.num_rows * (attention_weights() + mlp_weights(experts_of_row()));
    const double rows_bytes = step.num_rows * static_cast<double>(model_.hidden_size) * precision_.activation_bytes;
    return products_ms(bytes, flops) + attention_ms(step) + device_.layer_ms + 2 * all_reduce_ms(rows_bytes);
  }
  double head_ms(const StepWork& step) const {
    return products_ms(precision_.weight_bytes * head_weights(), 2 * step.num_samples * head_weights());
  }
  // From the first stage to the last: stages have equal parts of the time.
  double step_ms(const StepWork& step) const {
    const double rows_bytes = step.num_rows * static_cast<double>(model_.hidden_size) * precision_.activation_bytes;
    const double links = static_cast<double>(grid_.num_stages - 1) * send_ms(rows_bytes);
    return static_cast<double>(model_.num_layers) * layer_ms(step) + head_ms(step) + links;
  }

 private:
  double attention_weights() const {
    return static_cast<double>(model_.hidden_size * model_.head_dim * 2 *
                               (model_.num_heads + std::max(model_.num_kv_heads, grid_.tensor_size)));
  }
  double mlp_weights(double experts) const {
    return experts * 3 * static_cast<double>(model_.hidden_size * model_.intermediate_size);
  }
  double head_weights() const { return static_cast<double>(model_.vocab_size * model_.hidden_size); }
  double all_experts() const { return model_.num_experts == 0 ? 1 : static_cast<double>(model_.num_experts); }
  double experts_of_row() const { return model_.num_experts == 0 ? 1 : static_cast<double>(model_.top_k); }
  // That at least one of so many rows goes through, where all experts are as likely.
  double distinct_experts(double num_rows) const {
    if (model_.num_experts == 0) return 1;
    const double share = static_cast<double>(model_.top_k) / static_cast<double>(model_.num_experts);
    return all_experts() * (1 - std::pow(1 - share, num_rows));
  }

  double products_ms(double bytes, double flops) const {
    const auto n = static_cast<double>(grid_.tensor_size);
    return both(bytes / n / (device_.bytes_per_s * device_.product_bytes_share) * 1000,
                flops / n / (device_.flops_per_s * device_.product_flops_share * precision_.flops_factor) * 1000);
  }
  double attention_ms(const StepWork& step) const {
    const auto n = static_cast<double>(grid_.tensor_size);
    const double bytes = step.num_context_tokens * kv_bytes_per_token() / static_cast<double>(model_.num_layers);
    const double flops_of_pair = 4 * static_cast<double>(model_.num_heads * model_.head_dim);
    const double rate = device_.flops_per_s * device_.attention_flops_share;
    return both(bytes / n / (device_.bytes_per_s * device_.attention_bytes_share) * 1000,
                step.num_context_tokens * flops_of_pair / n / rate * 1000) +
           step.num_pairs * flops_of_pair / n / rate * 1000;
  }

  const ModelShape model_;
  const Precision precision_;
  const DeviceModel device_;
  const LinkModel link_;
  const RankGrid grid_;
};

// ---- Models: sizes of the published config.json
// --------------------------------------------------------------------

inline constexpr ModelShape kLlama8B = {"Llama 3.1 8B", 32, 4096, 32, 8, 128, 14336, 128256};
inline constexpr ModelShape kLlama70B = {"Llama 3.1 70B", 80, 8192, 64, 8, 128, 28672, 128256};
inline constexpr ModelShape kMixtral8x22B = {"Mixtral 8x22B", 56, 6144, 48, 8, 128, 16384, 32768, 8, 2};
inline constexpr ModelShape kQwen05B = {"Qwen2.5 0.5B", 24, 896, 14, 2, 64, 4864, 151936};
inline constexpr ModelShape kSmol135M = {"SmolLM2 135M", 30, 576, 9, 3, 64, 1536, 49152};

inline constexpr Precision kBf16 = {"bf16"};
// Keys and values too, as TensorRT-LLM has them where weights are fp8. The H100's data sheet: twice the bf16 rate.
inline constexpr Precision kFp8 = {"fp8", 1, 1, 2, 2};

// ---- Devices: rates and memory of NVIDIA's data sheets (H100 SXM5, H200 SXM), shares fitted to six steps of Llama
// 3.1 8B in bf16 on an H200 (data/measurements/nvidia-h200.md, 2026-11-26). They are taken to hold for the H100,
// which has the same processor and slower memory, and for fp8, of which nothing was measured.

inline constexpr DeviceModel kH200 = {"H200", 989.4e12, 4.8e12, 141e9, 0.86, 0.61, 0.83, 0.50, 0.030};
inline constexpr DeviceModel kH100 = {"H100", 989.4e12, 3.35e12, 80e9, 0.86, 0.61, 0.83, 0.50, 0.030};

// Two threads of an AMD EPYC 7003: rates that bench_kernels measured, shares fitted to its steps
// (data/measurements/amd-epyc-25-1-2-cores.md, 2026-11-26).
inline constexpr DeviceModel kEpyc2 = {"2 threads of an EPYC 7003", 207e9, 38e9, 24e9, 0.67, 0.52, 0.67, 0.52, 0.10};
inline constexpr DeviceModel kEpyc1 = {"1 thread of an EPYC 7003", 103.5e9, 19e9, 12e9, 0.67, 0.52, 0.67, 0.52, 0.10};

// ---- Links. Latencies: NCCL's own model (src/graph/tuning.cc: ring, LL: 6.6 µs, and 0.6 µs a hop over NVLink, 2.7
// µs over a network). Rates: NVLink 370 GB/s of 450 (S. Jeaugey of NCCL, NVIDIA/nccl-tests issue 212, 2024-05-06);
// InfiniBand NDR 46 GB/s a device (NVIDIA/nccl-tests issue 290, 2025-03-03). NVLink SHARP, which adds in the switch,
// is left out.

inline constexpr LinkModel kNvLink = {0.0066, 0.0006, 370e9};
inline constexpr LinkModel kInfiniBand = {0.0066, 0.0027, 46e9};
// Shared memory of two CPU ranks: a sum of small rows took 46 to 55 µs (2026-11-26, AMD EPYC 7003); bytes at a copy's
// rate.
inline constexpr LinkModel kSharedMemory = {0.050, 0, 5e9};

}  // namespace llmb
