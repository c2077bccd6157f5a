// The step model: its arithmetic on small cases, and the steps that were recorded.
#include "tools/step_model.h"

#include <doctest/doctest.h>

#include <cmath>

namespace llmb::test {

namespace {

constexpr double kClose = 1e-9;
bool is_close(double a, double b) { return std::fabs(a - b) <= kClose * std::fabs(b); }

// One layer of hidden size 2, a head of 2, an MLP of 4, 5 words: 16 weights of attention, 24 of the MLP, 10 of the
// head.
constexpr ModelShape kTiny = {"tiny", 1, 2, 1, 1, 2, 4, 5};
constexpr DeviceModel kUnit = {"unit", 1000, 1000, 1e6};  // a flop or a byte takes 1 ms
constexpr LinkModel kSlow = {10, 1, 1000};
constexpr Precision kByte = {"byte", 1, 1, 1, 1};

}  // namespace

TEST_CASE("a product takes the larger of two times, and cbrt(2) of them where they are equal") {
  CHECK(is_close(both(3, 0), 3));
  CHECK(is_close(both(0, 3), 3));
  CHECK(is_close(both(3, 3), 3 * std::cbrt(2.0)));
}

TEST_CASE("a layer's bytes and flops on one rank, counted by hand") {
  const StepModel model(kTiny, kByte, kUnit, kSlow, {1, 1});
  CHECK(is_close(model.weight_bytes(), 40 + 2 * 10));
  CHECK(is_close(model.kv_bytes_per_token(), 4));
  CHECK(is_close(model.kv_tokens(0.5), (5e5 - 60) / 4));
  // 40 bytes, 2 · 3 · 40 flops; 5 tokens of 4 bytes and 4 · 2 flops; 7 pairs of 8 flops.
  const StepWork step = {3, 2, 5, 7};
  CHECK(is_close(model.layer_ms(step), both(40, 240) + both(20, 40) + 56));
  CHECK(is_close(model.head_ms(step), both(10, 40)));
  CHECK(is_close(model.step_ms(step), model.layer_ms(step) + model.head_ms(step)));
}

TEST_CASE("two ranks halve a layer and add two sums over their rows; keys and values of one set are both's") {
  const StepModel model(kTiny, kByte, kUnit, kSlow, {2, 1});
  CHECK(is_close(model.kv_bytes_per_token(), 8));
  // A sum over 2 ranks: 10 + 2 · 1 hop, and all of 3 rows of 2 bytes.
  CHECK(is_close(model.all_reduce_ms(6), 12 + 6));
  const StepWork step = {3, 2, 0, 0};
  // q, o, and two copies of k and v: 24 weights.
  CHECK(is_close(model.layer_ms(step), both((24 + 24) / 2.0, 6 * (24 + 24) / 2.0) + 2 * 18));
}

TEST_CASE("stages hand the rows on") {
  ModelShape two_layers = kTiny;
  two_layers.num_layers = 2;
  const StepModel whole(two_layers, kByte, kUnit, kSlow, {1, 1}), stages(two_layers, kByte, kUnit, kSlow, {1, 2});
  const StepWork step = {3, 2, 5, 7};
  CHECK(is_close(stages.step_ms(step), whole.step_ms(step) + 11 + 6));
}

TEST_CASE("few rows read few experts, many rows all of them; each row computes top_k") {
  ModelShape experts = kTiny;
  experts.num_experts = 4, experts.top_k = 2;
  const StepModel model(experts, kByte, kUnit, kSlow, {1, 1});
  CHECK(is_close(model.weight_bytes(), 16 + 4 * 24 + 2 * 10));
  CHECK(is_close(model.layer_ms({1, 0, 0, 0}), both(16 + 2 * 24, 2 * (16 + 2 * 24))));
  CHECK(is_close(model.layer_ms({2, 0, 0, 0}), both(16 + 3 * 24, 4 * (16 + 2 * 24))));
  CHECK(is_close(model.layer_ms({100, 0, 0, 0}), both(16 + 4 * 24, 200 * (16 + 2 * 24))));
}

TEST_CASE("recorded steps of Llama 3.1 8B on an H200 are within 6 %") {
  struct Recorded {
    double rows, samples, context, pairs, ms;
  };
  constexpr double kContext = 1024;
  const Recorded steps[] = {{kContext, 1, 0, kContext * kContext / 2, 24.088}, {1, 1, kContext, 0, 4.643},
                            {32, 32, 32 * kContext, 0, 5.698},                 {64, 64, 64 * kContext, 0, 7.155},
                            {128, 128, 128 * kContext, 0, 9.733},              {256, 256, 256 * kContext, 0, 16.148}};
  const StepModel model(kLlama8B, kBf16, kH200, kNvLink, {1, 1});
  for (const Recorded& step : steps) {
    const double ratio = model.step_ms({step.rows, step.samples, step.context, step.pairs}) / step.ms;
    CAPTURE(step.rows);
    CAPTURE(ratio);
    CHECK(std::fabs(ratio - 1) <= 0.06);
  }
}

TEST_CASE("recorded steps of two CPU threads are within 30 %, and two ranks should take little more") {
  struct Recorded {
    const ModelShape& model;
    double rows, ms;
  };
  const Recorded steps[] = {{kSmol135M, 1, 14.460}, {kSmol135M, 8, 29.157}, {kSmol135M, 64, 215.903},
                            {kQwen05B, 1, 38.785},  {kQwen05B, 8, 108.588}, {kQwen05B, 64, 598.683}};
  for (const Recorded& step : steps) {
    const StepModel model(step.model, kBf16, kEpyc2, kSharedMemory, {1, 1});
    const double ratio = model.step_ms({step.rows, step.rows, 512 * step.rows, 0}) / step.ms;
    CAPTURE(step.rows);
    CAPTURE(ratio);
    CHECK(std::fabs(ratio - 1) <= 0.30);
  }
  const StepWork step = {64, 64, 64 * 512, 0};
  const StepModel threads(kSmol135M, kBf16, kEpyc2, kSharedMemory, {1, 1});
  const StepModel ranks(kSmol135M, kBf16, kEpyc1, kSharedMemory, {2, 1});
  const double ratio = threads.step_ms(step) / ranks.step_ms(step);
  CAPTURE(ratio);
  CHECK(ratio > 0.9);
  CHECK(ratio < 1);
}

}  // namespace llmb::test
