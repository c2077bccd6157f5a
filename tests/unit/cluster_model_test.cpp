// Predictions of a cluster: which limit holds, and how instances are divided.
#include "tools/cluster_model.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tools/step_model.h"

namespace llmb::test {

namespace {

constexpr ModelShape kTiny = {"tiny", 1, 2, 1, 1, 2, 4, 5};
constexpr Precision kByte = {"byte", 1, 1, 1, 1};
constexpr LinkModel kLink = {0, 0, 1000};
constexpr Lengths kLengths = {6, 4};

// A token takes 4 bytes and the weights 60: `tokens` fit beside them.
DeviceModel device_for(double tokens) { return {"unit", 1000, 1000, 60 + 4 * tokens}; }
StepModel model_for(double tokens) { return {kTiny, kByte, device_for(tokens), kLink, {1, 1}}; }

bool is_close(double a, double b) { return std::fabs(a - b) <= 1e-9 * std::fabs(b); }

}  // namespace

TEST_CASE("requests that run are as many as seats, as the pool has room for, or as a step has rows for") {
  const ClusterLimits limits = {10, 1000, 1};
  CHECK(is_close(predict_pool(model_for(1e6), kLengths, limits)->num_running, 10));
  CHECK(is_close(predict_pool(model_for(40), kLengths, limits)->num_running, 5));  // 6 + 4 / 2 tokens each, on average
  const ClusterLimits few_rows = {10, 5, 1};  // a request takes 1 + 6 / 4 rows of a step
  CHECK(is_close(predict_pool(model_for(1e6), kLengths, few_rows)->num_running, 2));
  CHECK(!predict_pool(model_for(9), kLengths, limits));
  CHECK(predict_pool(model_for(10), kLengths, limits));
}

TEST_CASE("a step gives a token to each request and replaces those that end") {
  const StepModel model = model_for(1e6);
  const auto p = predict_pool(model, kLengths, {8, 1000, 1});
  // 8 tokens of answers, two prompts of 6 tokens, whose pairs are 6 · 6 / 2 each.
  const double step_ms = model.step_ms({8 + 12, 8 + 2, 8 * 8, 2 * 18});
  CHECK(is_close(p->step_ms, step_ms));
  CHECK(is_close(p->output_tokens_per_s, 8000 / step_ms));
}

TEST_CASE("two plans in flight have half of the requests each") {
  const StepModel stages(kTiny, kByte, device_for(1e6), kLink, {1, 2});
  const auto p = predict_pool(stages, kLengths, {8, 1000, 1}, 2);
  CHECK(is_close(p->step_ms, stages.step_ms({4 + 6, 4 + 1, 4 * 8, 18})));
  CHECK(is_close(p->output_tokens_per_s, 8000 / p->step_ms));
}

TEST_CASE("prefill and decode apart: the best division is that in which neither side waits long, or the link binds") {
  const StepModel model = model_for(1e6);
  const ClusterLimits limits = {8, 6, 1};  // a step of prompts has one
  const double prompts_per_s = 1000 / model.step_ms({6, 1, 0, 18});
  const double answers_per_s = 8000 / model.step_ms({8, 8, 64, 0}) / 4;
  for (const int64_t num_instances : {2, 3, 8}) {
    const auto p = predict_apart(model, {1, 1}, kLink, kLengths, limits, num_instances);
    CHECK(p->num_prefill + p->num_decode == num_instances);
    double best = 0;
    for (int64_t i = 1; i < num_instances; ++i)
      best = std::fmax(best, std::fmin(static_cast<double>(i) * prompts_per_s,
                                       static_cast<double>(num_instances - i) * answers_per_s));
    CHECK(is_close(p->output_tokens_per_s, 4 * best));
    CHECK(is_close(p->send_ms, 24));  // 6 tokens of 4 bytes
  }
  const LinkModel slow = {0, 0, 0.001};
  CHECK(is_close(predict_apart(model, {1, 1}, slow, kLengths, limits, 2)->output_tokens_per_s, 4 * 0.001 / 24));
  CHECK(!predict_apart(model, {1, 1}, kLink, kLengths, limits, 1));
  CHECK(!predict_apart(model_for(9), {1, 1}, kLink, kLengths, limits, 8));
}

}  // namespace llmb::test
