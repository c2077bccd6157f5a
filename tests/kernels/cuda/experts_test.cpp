#include "kernels/cuda/experts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"
#include "tests/support/naive_routing.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;
using test::same_bytes;

struct Shape {
  int32_t num_experts, top_k, hidden, intermediate;
  bool norm_topk_prob = true, bias = false;
  ExpertsConfig routing = {};  // how experts are chosen and weighed
  bool has_scales = false;     // of their weights
};

// Matrices of one kind of all experts: as plain numbers, and on the device.
template <class T>
struct Matrices {
  std::vector<std::vector<T>> weight, bias;
  std::vector<std::unique_ptr<DeviceArray<T>>> arrays;
  std::unique_ptr<DeviceArray<const void*>> weights, biases;
  GroupedWeights grouped;

  Matrices(int32_t count, int64_t rows, int64_t cols, bool has_bias, uint32_t seed) {
    std::vector<const void*> weight_at, bias_at;
    const auto upload = [&](const std::vector<T>& values) {
      arrays.push_back(std::make_unique<DeviceArray<T>>(values));
      return static_cast<const void*>(arrays.back()->data());
    };
    for (int32_t e = 0; e < count; ++e) {
      const float scale = 1 / std::sqrt(static_cast<float>(cols));
      weight.push_back(converted<T>(random_normal(rows * cols, seed + e, scale)));
      bias.push_back(converted<T>(random_normal(rows, seed + 100 + e)));
      weight_at.push_back(upload(weight.back()));
      bias_at.push_back(upload(bias.back()));
    }
    weights = std::make_unique<DeviceArray<const void*>>(weight_at);
    biases = std::make_unique<DeviceArray<const void*>>(bias_at);
    grouped = {weights->data(), has_bias ? biases->data() : nullptr, rows, cols};
  }
  // The others are another rank's, which are nowhere here.
  void keep(int32_t first, int32_t end) {
    for (DeviceArray<const void*>* const addresses : {weights.get(), biases.get()}) {
      std::vector<const void*> at = addresses->download();
      for (int32_t e = 0; e < static_cast<int32_t>(at.size()); ++e)
        if (e < first || e >= end) at[static_cast<size_t>(e)] = nullptr;
      addresses->upload(at);
    }
    grouped.first_own = first, grouped.end_own = end;
  }
};

template <class T>
struct Experts {
  Shape s;
  Matrices<T> gate_up, down;
  ExpertsConfig config;
  std::vector<float> choice_bias, weight_scales;

  explicit Experts(const Shape& shape)
      : s(shape),
        gate_up(s.num_experts, int64_t{2} * s.intermediate, s.hidden, s.bias, 10),
        down(s.num_experts, s.hidden, s.intermediate, s.bias, 500),
        config(s.routing),
        choice_bias(random_normal(s.num_experts, 5, 0.3f)),
        weight_scales(random_normal(s.num_experts, 6)) {
    config.num_experts = s.num_experts, config.top_k = s.top_k, config.intermediate_size = s.intermediate;
    config.norm_topk_prob = s.norm_topk_prob, config.bias = s.bias;
  }

  std::vector<float> run(std::span<const float> logits, std::span<const T> x) const {
    const auto rows = static_cast<int64_t>(x.size()) / s.hidden;
    const DType dtype = std::is_same_v<T, float> ? DType::kF32 : DType::kBF16;
    const ExpertsShape shape{std::max<int64_t>(rows, 1), s.hidden, int64_t{2} * s.intermediate, s.intermediate, config};
    DeviceArray<uint8_t> workspace(static_cast<size_t>(experts_workspace_bytes(shape, dtype)));
    DeviceArray<float> l(logits), b(choice_bias), scales(weight_scales);
    DeviceArray<T> in(x), out(x.size());
    mix_experts(gate_up.grouped, down.grouped, config, {}, l.data(), config.choice_bias ? b.data() : nullptr,
                s.has_scales ? scales.data() : nullptr, in.data(), rows, out.data(), workspace.data(), nullptr);
    CHECK(out.check_guards());
    CHECK(workspace.check_guards());
    CHECK(in.holds(x));
    return out.download_floats();
  }

  // F: double, or float for the naive result, whose intermediate values are rounded to T.
  // factor: of what gate_up gives.
  template <class F>
  std::vector<F> one_expert(int32_t e, const T* x, F factor) const {
    const auto round = [](F v) {
      return std::is_same_v<F, double> ? v : static_cast<F>(to_float(from_float<T>(static_cast<float>(v))));
    };
    const auto product = [&](const Matrices<T>& m, int64_t row, const auto& of, int64_t n) {
      F sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += static_cast<F>(to_float(m.weight[e][row * n + i])) * of(i);
      return round(s.bias ? sum + static_cast<F>(to_float(m.bias[e][row])) : sum);
    };
    const auto input = [&](int64_t i) { return static_cast<F>(to_float(x[i])); };
    std::vector<F> hidden, out;
    for (int32_t i = 0; i < s.intermediate; ++i) {
      const auto scaled = [&](int64_t row) { return round(factor * product(gate_up, row, input, s.hidden)); };
      const F gate = scaled(i), up = scaled(s.intermediate + i);
      hidden.push_back(round(gate / (1 + std::exp(-gate)) * up));
    }
    for (int32_t i = 0; i < s.hidden; ++i)
      out.push_back(product(
          down, i, [&](int64_t j) { return hidden[j]; }, s.intermediate));
    return out;
  }

  template <class F>
  std::vector<F> reference(const std::vector<float>& logits, const std::vector<T>& x) const {
    std::vector<F> out;
    for (size_t row = 0; row < x.size() / s.hidden; ++row) {
      const float* const bias = config.choice_bias ? choice_bias.data() : nullptr;
      std::vector<F> sum(s.hidden);
      for (const auto& [e, chosen_weight] : test::naive_route<F>(&logits[row * s.num_experts], bias, config)) {
        const F weight = s.has_scales ? chosen_weight * weight_scales[e] : chosen_weight;
        const bool weighs_input = config.weighs_input;
        const std::vector<F> y = one_expert<F>(e, &x[row * s.hidden], weighs_input ? weight : F(1));
        for (int32_t c = 0; c < s.hidden; ++c) sum[c] += weighs_input ? y[c] : weight * y[c];
      }
      for (const F v : sum)
        out.push_back(std::is_same_v<F, double> ? v : static_cast<F>(to_float(from_float<T>(static_cast<float>(v)))));
    }
    return out;
  }
};

// Sizes that tensor cores can load and sizes that they cannot; tiles that are full, short and empty.
const Shape kShapes[] = {{1, 1, 16, 8},
                         {4, 1, 40, 24},
                         {4, 2, 33, 20},
                         {8, 2, 64, 48, false},
                         {6, 3, 40, 72, true, true},
                         {40, 4, 24, 16, false, true},
                         {6, 2, 16, 8, true, false, {.choice_bias = true}},
                         {5, 2, 16, 8, false, false, {.scores = ExpertScores::kLogistic, .weighs_input = true}},
                         {6, 3, 16, 8, true, false, {.num_groups = 6, .top_groups = 4}},
                         {12, 4, 16, 8, false, false, {.num_groups = 4, .top_groups = 2, .scores_of_group = 1}},
                         {6, 2, 16, 8, true, false, {}, true},
                         {40,
                          4,
                          16,
                          8,
                          true,
                          false,
                          {.scores = ExpertScores::kLogistic,
                           .choice_bias = true,
                           .num_groups = 8,
                           .top_groups = 3,
                           .weight_scale = 2.5}}};

}  // namespace

TEST_CASE_TEMPLATE("mix_experts is as close to fp64 as naive arithmetic: choices, weights, biases, rows", T, float,
                   __nv_bfloat16, __half) {
  for (const Shape& s : kShapes) {
    CAPTURE(s.num_experts);
    CAPTURE(s.top_k);
    const Experts<T> experts(s);
    for (const int64_t rows : {0, 1, 5, 70}) {
      CAPTURE(rows);
      if (rows == 70 && s.num_experts > 8) continue;
      const std::vector<float> logits = random_normal(rows * s.num_experts, 1, 2);
      const std::vector<T> x = converted<T>(random_normal(rows * s.hidden, 2));
      const std::vector<double> expected = experts.template reference<double>(logits, x);
      const std::vector<float> naive = experts.template reference<float>(logits, x);
      CHECK(test::relative_error(experts.run(logits, x), expected) <=
            2 * test::relative_error(naive, expected) + 2.4e-7);
    }
  }
}

TEST_CASE("equal logits go to the lowest experts, and a NaN stays in its row") {
  const Experts<float> experts({6, 2, 16, 8});
  const std::vector<float> x = random_normal(3 * 16, 3);
  std::vector<float> logits(3 * 6, 1.0f);
  const std::vector<float> equal = experts.run(logits, x);
  CHECK(test::compare(equal, experts.reference<double>(logits, x), 1e-5, 1e-6) == "");
  logits[6 + 4] = NAN;
  const std::vector<float> out = experts.run(logits, x);
  for (int i = 0; i < 48; ++i) {
    if (i / 16 == 1) CHECK(std::isnan(out[i]));
    else CHECK(out[i] == equal[i]);
  }
}

TEST_CASE_TEMPLATE("a row's bits do not depend on the other rows, on tilings or on the order of threads", T, float,
                   __nv_bfloat16) {
  const Shape s{3, 2, 32, 16};
  const Experts<T> experts(s);
  constexpr int64_t kRows = 64;  // long tiles; alone, short ones
  const std::vector<float> logits = random_normal(kRows * s.num_experts, 4, 2);
  const std::vector<T> x = converted<T>(random_normal(kRows * s.hidden, 5));
  const std::vector<float> whole = experts.run(logits, x);
  test::for_each_order(2, [&](uint64_t) {
    CHECK(same_bytes(whole, experts.run(logits, x)));
    for (const int64_t count : {1, 3})
      for (int64_t row = 0; row < kRows; row += 17) {
        const std::vector<float> some =
            experts.run(std::span(logits).subspan(row * s.num_experts, count * s.num_experts),
                        std::span(x).subspan(row * s.hidden, count * s.hidden));
        CHECK(same_bytes(some, std::span(whole).subspan(row * s.hidden, count * s.hidden)));
      }
  });
}

TEST_CASE("ranks with some of the experts each: what they give adds up to what one gives, and NaN rows stay NaN") {
  for (const Shape& s : {Shape{6, 3, 40, 72, true, true}, Shape{4, 1, 40, 24, true, false, {.weighs_input = true}}}) {
    const Experts<float> whole(s);
    Experts<float> first(s), second(s);
    for (Matrices<float>* const m : {&first.gate_up, &first.down}) m->keep(0, 3);
    for (Matrices<float>* const m : {&second.gate_up, &second.down}) m->keep(3, s.num_experts);
    for (const int64_t rows : {1, 7, 70}) {
      std::vector<float> logits = random_normal(rows * s.num_experts, 1, 2);
      const std::vector<float> x = random_normal(rows * s.hidden, 2);
      std::vector<float> sum = first.run(logits, x);
      const std::vector<float> rest = second.run(logits, x);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += rest[i];
      CHECK(test::compare(sum, whole.reference<double>(logits, x), 1e-4, 1e-5) == "");
      logits[0] = NAN;
      const std::vector<float> a = first.run(logits, x), b = second.run(logits, x);
      CHECK(std::isnan(a[0] + b[0]));
      if (rows > 1) CHECK(std::isfinite(a.back() + b.back()));
    }
  }
}

TEST_CASE(
    "tiles: long where rows are many for their experts, and more experts a token than a warp has lanes are refused") {
  CHECK(grouped_tile_rows(1, 8) < grouped_tile_rows(8 * 64, 8));
  const Experts<float> experts({2, 2, 8, 8});
  ExpertsConfig config = experts.config;
  config.num_experts = config.top_k = kMaxExpertsPerToken + 1;
  CHECK_THROWS_AS(mix_experts<float>(experts.gate_up.grouped, experts.down.grouped, config, {}, nullptr, nullptr,
                                     nullptr, nullptr, 1, nullptr, nullptr, nullptr),
                  CheckFailure);
}

}  // namespace llmb::cuda
