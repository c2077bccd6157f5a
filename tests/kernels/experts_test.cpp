#include "kernels/cpu/experts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"
#include "tests/support/naive_routing.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

struct Shape {
  int32_t num_experts, top_k, hidden, intermediate;
  bool norm_topk_prob = true, bias = false;
  ExpertsConfig routing = {};  // how experts are chosen and weighed
};

// Experts with random weights, as the kernel takes them and as plain arrays.
struct Experts {
  Shape s;
  std::vector<std::vector<float>> gate_up, gate_up_bias, down, down_bias;
  std::vector<PackedLinear> packed;
  std::vector<ExpertView> views;
  ExpertsConfig config;
  std::vector<float> choice_bias, expert_scales;

  Experts(const Shape& shape, ThreadPool& pool) : s(shape) {
    config = s.routing;
    config.num_experts = s.num_experts, config.top_k = s.top_k, config.intermediate_size = s.intermediate;
    config.norm_topk_prob = s.norm_topk_prob, config.bias = s.bias;
    choice_bias = random_normal(s.num_experts, 5, 0.3f);
    expert_scales = random_normal(s.num_experts, 6);
    packed.reserve(static_cast<size_t>(2 * s.num_experts));
    for (int32_t e = 0; e < s.num_experts; ++e) {
      const float scale = 1 / std::sqrt(static_cast<float>(s.hidden));
      gate_up.push_back(random_normal(int64_t{2} * s.intermediate * s.hidden, 10 + e, scale));
      gate_up_bias.push_back(random_normal(int64_t{2} * s.intermediate, 30 + e));
      down.push_back(random_normal(int64_t{s.hidden} * s.intermediate, 50 + e, scale));
      down_bias.push_back(random_normal(s.hidden, 70 + e));
      pack(gate_up[e], gate_up_bias[e], 2 * s.intermediate, s.hidden, pool);
      pack(down[e], down_bias[e], s.hidden, s.intermediate, pool);
      views.push_back({&packed[2 * e], &packed[2 * e + 1]});
    }
  }

  void pack(const std::vector<float>& weight, const std::vector<float>& bias, int64_t rows, int64_t cols,
            ThreadPool& pool) {
    const TensorView w{weight.data(), DType::kF32, rows, cols}, b{bias.data(), DType::kF32, 1, rows};
    packed.push_back(PackedLinear::pack({&w, 1}, {&b, s.bias ? size_t{1} : size_t{0}}, pool));
  }

  std::vector<float> run(const std::vector<float>& logits, const std::vector<float>& x, ThreadPool& pool) const {
    const auto rows = static_cast<int64_t>(x.size()) / s.hidden;
    GuardedFloats out(rows * s.hidden);
    ExpertsScratch scratch;
    mix_experts(views, config, {}, logits.data(), bias(), scales(), x.data(), rows, s.hidden, out.data(), &scratch,
                pool);
    CHECK(out.guards_untouched());
    return out.copy();
  }

  // The weights of five experts are multiplied by numbers of their own.
  const float* scales() const { return s.num_experts == 5 ? expert_scales.data() : nullptr; }
  const float* bias() const { return config.choice_bias ? choice_bias.data() : nullptr; }

  // factor: of what gate_up gives.
  template <typename T>
  std::vector<T> one_expert(int32_t e, const float* x, T factor) const {
    std::vector<T> hidden(s.intermediate), out(s.hidden);
    const auto dot = [](const std::vector<float>& w, int64_t row, const auto* v, int64_t n) {
      T sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += static_cast<T>(w[row * n + i]) * static_cast<T>(v[i]);
      return sum;
    };
    for (int32_t i = 0; i < s.intermediate; ++i) {
      const auto biased = [&](int32_t row) {
        return dot(gate_up[e], row, x, s.hidden) + (s.bias ? static_cast<T>(gate_up_bias[e][row]) : T(0));
      };
      const T gate = factor * biased(i), up = factor * biased(s.intermediate + i);
      hidden[i] = gate / (1 + std::exp(-gate)) * up;
    }
    for (int32_t i = 0; i < s.hidden; ++i)
      out[i] = dot(down[e], i, hidden.data(), s.intermediate) + (s.bias ? static_cast<T>(down_bias[e][i]) : T(0));
    return out;
  }

  template <typename T>
  std::vector<T> reference(const std::vector<float>& logits, const std::vector<float>& x) const {
    std::vector<T> out;
    for (size_t row = 0; row < x.size() / s.hidden; ++row) {
      std::vector<T> sum(s.hidden);
      for (const auto& [e, routed] : test::naive_route<T>(&logits[row * s.num_experts], bias(), config)) {
        const bool weighs_input = config.weighs_input;
        const T weight = scales() != nullptr ? routed * scales()[e] : routed;
        const std::vector<T> y = one_expert<T>(e, &x[row * s.hidden], weighs_input ? weight : T(1));
        for (int32_t c = 0; c < s.hidden; ++c) sum[c] += weighs_input ? y[c] : weight * y[c];
      }
      out.insert(out.end(), sum.begin(), sum.end());
    }
    return out;
  }
};

const Shape kShapes[] = {{1, 1, 16, 8},
                         {4, 1, 33, 20},
                         {4, 2, 33, 20},
                         {8, 2, 64, 48, false},
                         {5, 5, 17, 24},
                         {6, 3, 40, 70, true, true},
                         {16, 4, 20, 12, false, true},
                         {6, 2, 16, 8, true, false, {.choice_bias = true}},
                         {5, 2, 16, 8, false, false, {.scores = ExpertScores::kLogistic, .weighs_input = true}},
                         {6, 3, 16, 8, true, false, {.num_groups = 6, .top_groups = 4}},
                         {12, 4, 16, 8, false, false, {.num_groups = 4, .top_groups = 2, .scores_of_group = 1}},
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

TEST_CASE("mix_experts is as close to fp64 as naive fp32: numbers of experts, choices, weights, biases, rows") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Shape& s : kShapes) {
      CAPTURE(s.num_experts);
      CAPTURE(s.top_k);
      const Experts experts(s, pool);
      for (const int64_t rows : {0, 1, 2, 37}) {
        const std::vector<float> logits = random_normal(rows * s.num_experts, 1, 2),
                                 x = random_normal(rows * s.hidden, 2);
        const std::vector<float> actual = experts.run(logits, x, pool), naive = experts.reference<float>(logits, x);
        const std::vector<double> expected = experts.reference<double>(logits, x);
        CHECK(test::relative_error(actual, expected) <= 2 * test::relative_error(naive, expected) + 1.2e-7);
      }
    }
  });
}

TEST_CASE("equal logits go to the lowest experts") {
  ThreadPool pool(1);
  const Experts experts({6, 2, 16, 8}, pool);
  const std::vector<float> x = random_normal(16, 3), logits(6, 1.0f);
  const std::vector<double> expected = experts.reference<double>(logits, x);
  CHECK(test::compare(experts.run(logits, x, pool), expected, 1e-5, 1e-6) == "");
}

TEST_CASE("a row's result is bit-identical alone, among others, and with 1 to 3 threads") {
  ThreadPool one(1), three(3);
  const Shape s{7, 3, 24, 40};
  const Experts experts(s, one);
  constexpr int64_t kRows = 90;
  const std::vector<float> logits = random_normal(kRows * s.num_experts, 4, 2), x = random_normal(kRows * s.hidden, 5);
  const std::vector<float> whole = experts.run(logits, x, one);
  CHECK(same_bytes(whole, experts.run(logits, x, three)));
  const auto part = [](const std::vector<float>& v, int64_t begin, int64_t count, int64_t width) {
    return std::vector<float>(v.begin() + begin * width, v.begin() + (begin + count) * width);
  };
  for (int64_t row = 0; row < kRows; row += 7)
    for (const int64_t count : {1, 3}) {
      const std::vector<float> some =
          experts.run(part(logits, row, count, s.num_experts), part(x, row, count, s.hidden), three);
      CHECK(same_bytes(some, part(whole, row, count, s.hidden)));
    }
}

TEST_CASE("a NaN stays in its row, whether x or the router gave it") {
  ThreadPool pool(2);
  const Shape s{4, 2, 16, 8};
  const Experts experts(s, pool);
  std::vector<float> logits = random_normal(3 * 4, 6), x = random_normal(3 * 16, 7);
  const std::vector<float> clean = experts.run(logits, x, pool);
  for (const bool in_logits : {false, true}) {
    std::vector<float> bad_logits = logits, bad_x = x;
    (in_logits ? bad_logits[4 + 2] : bad_x[16 + 5]) = std::nanf("");
    const std::vector<float> out = experts.run(bad_logits, bad_x, pool);
    for (int i = 0; i < 48; ++i) {
      if (i / 16 == 1) CHECK(std::isnan(out[i]));
      else CHECK(out[i] == clean[i]);
    }
  }
}

}  // namespace llmb::cpu
