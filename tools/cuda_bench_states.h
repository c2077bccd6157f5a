// Cases of bench_kernels_cuda for layers with a recurrent state, at the sizes of Qwen 3.5 0.8B and of Granite 4.0 H tiny.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/state_layout.h"
#include "kernels/cuda/causal_conv.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/update_states.h"
#include "tools/cuda_bench.h"

namespace llmb::bench {

// `count` sequences of so many rows each, in the middle of their texts. Each copy has slots of its own.
inline void state_case(CudaBench& bench, const char* name, const StateConfig& config, int32_t count, int32_t num_rows) {
  using T = __nv_bfloat16;
  const StateLayout layout{.config = config, .num_layers = 1, .num_slots = count};
  const int64_t slot_bytes = cuda::state_slot_floats(layout) * int64_t{sizeof(float)}, rows = int64_t{count} * num_rows;
  const int copies = bench.num_copies(count * slot_bytes);
  const cudaStream_t stream = bench.stream();
  const Copies slots(count * slot_bytes, copies), qkv = normal(bench, rows * config.conv_channels()),
               gates = normal(bench, rows * config.gates_size(), 1, 1, DType::kF32),
               weights = normal(bench, config.conv_width * config.conv_channels(), 0.5f, 1, DType::kF32),
               vectors = normal(bench, config.num_value_heads, 0.5f, 3, DType::kF32),
               convolved(rows * config.conv_channels() * 2), out = normal(bench, rows * config.values_size()),
               gate = normal(bench, rows * config.values_size());
  check(cudaMemsetAsync(slots.at<void>(0), 0, static_cast<size_t>(slots.bytes()), stream), "cudaMemsetAsync");
  constexpr int32_t kPosition = 40, kBorder = kPosition / kStateChunk * kStateChunk;
  const int32_t next_border = state_border(kPosition + num_rows, 0);
  std::vector<cuda::StateEntry> all;
  for (int c = 0; c < copies; ++c)
    for (int32_t i = 0; i < count; ++i)
      all.push_back({slots.at<float>(c) + i * cuda::state_slot_floats(layout), i * num_rows, num_rows, kPosition, kBorder,
                     next_border});
  const Copies entries = upload(all, stream);
  const cuda::StateWeights w{vectors.at<float>(0), vectors.at<float>(1),
                             config.kind == StateKind::kMamba2 ? vectors.at<float>(2) : nullptr};
  const std::string what = std::string(name) + " " + std::to_string(count) + "x" + std::to_string(num_rows) + " rows";
  const auto moved = static_cast<double>(rows * config.conv_channels() * 2);
  bench.report_copy("causal_conv", what, bench.time_s(copies, [&](int c) {
    cuda::causal_conv(layout, 0, qkv.at<T>(0), weights.at<float>(0), nullptr, true,
                      entries.at<cuda::StateEntry>(0) + int64_t{c} * count, count, rows, convolved.at<T>(0), stream);
  }), 2 * moved);
  const double matrices = static_cast<double>(count * layout.matrices_size()) * sizeof(float);
  const double elements = static_cast<double>(rows * layout.matrices_size());
  bench.report_either("update_states", what, bench.time_s(copies, [&](int c) {
    cuda::update_states(layout, 0, convolved.at<T>(0), gates.at<float>(0), w,
                        entries.at<cuda::StateEntry>(0) + int64_t{c} * count, count, static_cast<int32_t>(rows), out.at<T>(0),
                        stream);
  }), matrices * (next_border > kBorder ? 2 : 1) + moved, 8 * elements);
  bench.report_copy("multiply_by_gate", what, bench.time_s(1, [&](int) {
    cuda::multiply_by_gate(GateKind::kSilu, out.at<T>(0), gate.at<T>(0), rows * config.values_size(), stream);
  }), static_cast<double>(rows * config.values_size() * 6));
}

inline void state_cases(CudaBench& bench, bool is_tiny) {
  const auto cases = [&](const char* name, const StateConfig& config) {
    if (is_tiny) return state_case(bench, name, config, 2, 3);
    for (const int32_t count : {1, 8, 64, 256}) state_case(bench, name, config, count, 1);
    state_case(bench, name, config, 1, 2048);
    state_case(bench, name, config, 8, 512);
  };
  if (is_tiny) {
    cases("delta", {StateKind::kGatedDelta, 1, 2, 8, 8, 4});
    return cases("mamba", {StateKind::kMamba2, 1, 2, 8, 8, 4});
  }
  cases("delta", {StateKind::kGatedDelta, 16, 16, 128, 128, 4});
  cases("mamba", {StateKind::kMamba2, 1, 48, 128, 64, 4});
}

}  // namespace llmb::bench
