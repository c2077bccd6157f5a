// Cases of bench_kernels_cuda for the ops that only some architectures have.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/activate.h"
#include "kernels/cuda/add_embedding.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/int4_pack.h"
#include "kernels/cuda/layer_norm.h"
#include "tools/cuda_bench.h"

namespace llmb::bench {

class MoreOpCases {
 public:
  using T = __nv_bfloat16;

  explicit MoreOpCases(CudaBench& bench) : bench_(bench) {}

  void norms(int64_t rows, int64_t hidden, int64_t head_dim) {
    const int64_t count = rows * hidden;
    const int copies = bench_.num_copies(count * 12);
    const Copies residual = normal(bench_, count, 1, copies, DType::kF32), delta = normal(bench_, count, 1, copies),
                 weight = normal(bench_, hidden, 1, 2, DType::kF32), out(count * 2, copies);
    report("add_layer_norm", rows, copies, count * 12, [&](int c) {
      cuda::add_layer_norm(residual.at<float>(c), delta.at<T>(c), weight.at<float>(0), weight.at<float>(1), 1e-5f, rows,
                           hidden, out.at<T>(c), bench_.stream());
    });
    report("rms_norm_groups", rows, copies, count * 4, [&](int c) {
      cuda::rms_norm_groups(delta.at<T>(c), hidden, hidden / head_dim, weight.at<float>(0), head_dim, 1e-5f, rows,
                            bench_.stream());
    });
  }

  void elementwise(int64_t rows, int64_t hidden, int64_t intermediate) {
    const int64_t count = rows * hidden;
    const int copies = bench_.num_copies(count * 10);
    const Copies residual = normal(bench_, count, 1, copies, DType::kF32), delta = normal(bench_, count, 1, copies),
                 table = normal(bench_, rows * hidden);
    const cudaStream_t stream = bench_.stream();
    report("add", rows, copies, count * 10,
           [&](int c) { cuda::add<T>(residual.at<float>(c), delta.at<T>(c), 0.5f, count, nullptr, stream); });
    report("scale", rows, copies, count * 8, [&](int c) { cuda::scale(residual.at<float>(c), 1.0f, count, stream); });
    report("softcap", rows, copies, count * 8,
           [&](int c) { cuda::softcap(residual.at<float>(c), 30.0f, count, stream); });
    report("clamp", rows, copies, count * 4, [&](int c) { cuda::clamp(delta.at<T>(c), 8.0f, count, stream); });
    report("convert", rows, copies, count * 6, [&](int c) {
      cuda::convert(residual.at<void>(c), DType::kF32, delta.at<void>(c), DType::kBF16, count, stream);
    });
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    std::iota(ids.rbegin(), ids.rend(), 0);
    const Copies indices = upload(ids, stream);
    report("add_embedding", rows, copies, count * 10, [&](int c) {
      cuda::add_embedding(table.at<T>(0), indices.at<int32_t>(0), rows, hidden, residual.at<float>(c), stream);
    });
    const int64_t outputs = rows * intermediate;
    const int gate_copies = bench_.num_copies(outputs * 6);
    const Copies gate_up = normal(bench_, 2 * outputs, 1, gate_copies), out(outputs * 2, gate_copies);
    for (const auto& [kind, name] : {std::pair(Activation::kGeluTanh, "gelu by tanh"), {Activation::kGelu, "gelu"}}) {
      const ActivationSpec spec{kind};
      const double seconds = bench_.time_s(gate_copies, [&](int c) {
        cuda::activate(spec, gate_up.at<T>(c), rows, intermediate, out.at<T>(c), stream);
      });
      bench_.report_copy("activate", std::to_string(rows) + " rows, " + name, seconds,
                         static_cast<double>(outputs * 6));
    }
  }

  // Against the bytes of the experts that are chosen. is_mxfp4: they are units of such codes, of whatever numbers.
  void experts(int64_t rows, const cuda::ExpertsShape& shape, bool is_mxfp4) {
    const int32_t num_experts = shape.config.num_experts;
    const int64_t gate_up_size = shape.gate_up * shape.hidden, down_size = shape.hidden * shape.intermediate;
    const Copies gate_up = normal(bench_, gate_up_size, 0.02f, num_experts),
                 down = normal(bench_, down_size, 0.02f, num_experts), x = normal(bench_, rows * shape.hidden),
                 out(rows * shape.hidden * 2), workspace(cuda::experts_workspace_bytes(shape, DType::kBF16));
    const auto unit_bytes = [](int64_t n, int64_t k) { return cuda::int4::bytes(n, k, cuda::int4::Meaning::kE2m1); };
    const auto grouped = [&](const Copies& matrices, int64_t n, int64_t k, Copies* units, Copies* addresses) {
      if (is_mxfp4) *units = units_of(matrices, n, k, num_experts);
      std::vector<const void*> all;
      for (int32_t e = 0; e < num_experts; ++e) all.push_back((is_mxfp4 ? *units : matrices).at<void>(e));
      *addresses = upload(all, bench_.stream());
      cuda::GroupedWeights weights{addresses->at<const void*>(0), nullptr, n, k};
      weights.is_int4 = is_mxfp4;
      weights.meaning = cuda::int4::Meaning::kE2m1;
      return weights;
    };
    Copies addresses[2], units[2];
    const cuda::GroupedWeights first = grouped(gate_up, shape.gate_up, shape.hidden, &units[0], &addresses[0]),
                               second = grouped(down, shape.hidden, shape.intermediate, &units[1], &addresses[1]);
    int64_t num_chosen = 0;
    const Copies logits = upload(router_logits(rows, shape.config, &num_chosen), bench_.stream());
    const double seconds = bench_.time_s(1, [&](int) {
      cuda::mix_experts(first, second, shape.config, ActivationSpec(), logits.at<float>(0), nullptr, nullptr,
                        x.at<T>(0), rows, out.at<T>(0), workspace.at<void>(0), bench_.stream());
    });
    const double flops =
        2.0 * static_cast<double>(rows * shape.config.top_k) * static_cast<double>(gate_up_size + down_size);
    const int64_t expert_bytes =
        is_mxfp4 ? unit_bytes(shape.gate_up, shape.hidden) + unit_bytes(shape.hidden, shape.intermediate)
                 : (gate_up_size + down_size) * 2;
    bench_.report_either(is_mxfp4 ? "mix_experts_mxfp4" : "mix_experts",
                         std::to_string(rows) + " rows, " + std::to_string(shape.config.top_k) + " of " +
                             std::to_string(num_experts) + " experts",
                         seconds, static_cast<double>(num_chosen * expert_bytes), flops);
  }

 private:
  Copies units_of(const Copies& matrices, int64_t n, int64_t k, int count) {
    const int64_t bytes = cuda::int4::bytes(n, k, cuda::int4::Meaning::kE2m1);
    Copies units(bytes, count);
    const Copies numbers(n * k * 4);
    for (int i = 0; i < count; ++i) {
      check(cudaMemsetAsync(units.at<void>(i), 0, static_cast<size_t>(bytes), bench_.stream()), "cudaMemsetAsync");
      cuda::convert(matrices.at<void>(i), DType::kBF16, numbers.at<void>(0), DType::kF32, n * k, bench_.stream());
      cuda::quantize_int4<T>(numbers.at<float>(0), n, k, 0, units.at<uint8_t>(i), bench_.stream());
    }
    return units;
  }

  template <typename Body>
  void report(const char* op, int64_t rows, int copies, int64_t bytes, const Body& body) {
    bench_.report_copy(op, std::to_string(rows) + " rows", bench_.time_s(copies, body), static_cast<double>(bytes));
  }

  // Normal values; how many experts are among the best top_k of some row.
  static std::vector<float> router_logits(int64_t rows, const ExpertsConfig& config, int64_t* num_chosen) {
    std::mt19937 rng(1);
    std::normal_distribution<float> draw;
    std::vector<float> logits;
    std::set<int32_t> chosen;
    std::vector<int32_t> order(static_cast<size_t>(config.num_experts));
    for (int64_t row = 0; row < rows; ++row) {
      for (int32_t e = 0; e < config.num_experts; ++e) logits.push_back(draw(rng));
      const float* of_row = logits.data() + row * config.num_experts;
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + config.top_k, order.end(),
                        [&](int32_t a, int32_t b) { return of_row[a] > of_row[b]; });
      chosen.insert(order.begin(), order.begin() + config.top_k);
    }
    *num_chosen = static_cast<int64_t>(chosen.size());
    return logits;
  }

  CudaBench& bench_;
};

// The experts are those of Qwen3-30B-A3B.
inline void more_op_cases(CudaBench& bench, int64_t hidden, int64_t intermediate, int64_t head_dim, bool is_tiny) {
  MoreOpCases cases(bench);
  for (const int64_t rows : is_tiny ? std::vector<int64_t>{3} : std::vector<int64_t>{256, 8192}) {
    cases.norms(rows, hidden, head_dim);
    cases.elementwise(rows, hidden, intermediate);
  }
  cuda::ExpertsShape shape;
  shape.hidden = is_tiny ? 32 : 2048;
  shape.intermediate = is_tiny ? 16 : 768;
  shape.gate_up = 2 * shape.intermediate;
  shape.config.num_experts = is_tiny ? 5 : 128;
  shape.config.top_k = is_tiny ? 2 : 8;
  shape.config.intermediate_size = static_cast<int32_t>(shape.intermediate);
  for (const int64_t rows : is_tiny ? std::vector<int64_t>{3} : std::vector<int64_t>{1, 32, 256, 4096}) {
    shape.max_rows = rows;
    for (const bool is_mxfp4 : {false, true}) cases.experts(rows, shape, is_mxfp4);
  }
}

}  // namespace llmb::bench
