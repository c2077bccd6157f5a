#include "kernels/cuda/causal_conv.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/device_states.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::DeviceStates;
using test::DraftedStep;
using test::random_normal;
using test::same_bytes;
using test::steps_of;

StateLayout layout_of(int32_t width, int32_t channels, int32_t max_drafts = 0) {
  const StateConfig config{.kind = StateKind::kShortConv, .num_value_heads = 1, .value_dim = channels,
                           .conv_width = width};
  return {.config = config, .num_layers = 2, .num_slots = 1, .max_drafts = max_drafts};
}

// In the second of two layers. Rows of wrong drafts get other inputs.
template <class T>
std::vector<float> run(const StateLayout& layout, const std::vector<float>& x, const std::vector<float>& weight,
                       const std::vector<float>& bias, bool has_silu, const std::vector<DraftedStep>& steps) {
  const int64_t channels = layout.config.conv_channels();
  const DeviceArray<float> w(weight), b(bias);
  DeviceStates states(layout, 1);
  std::vector<float> out(x.size());
  for (const DraftedStep& step : steps) {
    std::vector<float> rows(x.begin() + step.position * channels, x.begin() + (step.position + step.count()) * channels);
    for (size_t i = step.num_good() * channels; i < rows.size(); ++i) rows[i] = 7;
    const DeviceArray<T> in(converted<T>(rows));
    DeviceArray<T> given(rows.size());
    causal_conv(layout, 1, in.data(), w.data(), bias.empty() ? nullptr : b.data(), has_silu,
                states.resolve(step.position, step.count(), step.num_drafts), 1, step.count(), given.data(), nullptr);
    const std::vector<float> values = given.download_floats();
    CHECK(given.check_guards());
    CHECK(states.check_guards());
    std::copy_n(values.begin(), step.num_good() * channels, out.begin() + step.position * channels);
  }
  return out;
}

TEST_CASE("causal_conv is each channel's weighted sum of its newest tokens, whatever the steps") {
  constexpr int32_t kNumTokens = 70;
  for (const int32_t width : {1, 2, 3, 4, 8})
    for (const int32_t channels : {1, 17, 516}) {
      CAPTURE(width);
      CAPTURE(channels);
      const bool is_plain = width == 2;
      const StateLayout layout = layout_of(width, channels);
      const std::vector<float> x = random_normal(kNumTokens * channels, 1), w = random_normal(width * channels, 2);
      const std::vector<float> bias = is_plain ? std::vector<float>() : random_normal(channels, 3);
      std::vector<double> exact;
      for (int32_t t = 0; t < kNumTokens; ++t)
        for (int32_t c = 0; c < channels; ++c) {
          double sum = is_plain ? 0 : bias[c];
          for (int32_t j = 0; j < width; ++j)
            if (const int32_t from = t - width + 1 + j; from >= 0) sum += double{w[j * channels + c]} * x[from * channels + c];
          exact.push_back(is_plain ? sum : sum / (1 + std::exp(-sum)));
        }
      const std::vector<float> whole = run<float>(layout, x, w, bias, !is_plain, steps_of(kNumTokens, {1000}));
      CHECK(test::compare(whole, exact, 1e-5, 1e-6) == "");
      for (const std::vector<int32_t>& sizes : std::vector<std::vector<int32_t>>{{1}, {2, 40}, {5}, {16, 17}})
        CHECK(same_bytes(run<float>(layout, x, w, bias, !is_plain, steps_of(kNumTokens, sizes)), whole));
      const std::vector<float> half = run<__half>(layout, x, w, bias, !is_plain, steps_of(kNumTokens, {1000}));
      CHECK(same_bytes(run<__half>(layout, x, w, bias, !is_plain, steps_of(kNumTokens, {7})), half));
      CHECK(test::compare(half, exact, 1e-2, 1e-2) == "");
    }
}

TEST_CASE("causal_conv finds the inputs of the tokens before where drafts behind them were wrong") {
  constexpr int32_t kNumTokens = 60, kChannels = 20;
  for (const int32_t width : {1, 2, 4}) {
    const StateLayout layout = layout_of(width, kChannels, kMaxStateDrafts);
    const std::vector<float> x = random_normal(kNumTokens * kChannels, 1), w = random_normal(width * kChannels, 2);
    const std::vector<float> whole = run<float>(layout, x, w, {}, true, steps_of(kNumTokens, {1000}));
    for (uint64_t seed = 1; seed <= 20; ++seed)
      CHECK(same_bytes(run<float>(layout, x, w, {}, true, test::drafted_steps(kNumTokens, 0.5, seed)), whole));
  }
}

TEST_CASE("causal_conv keeps sequences apart, a long prompt among short ones and padding") {
  constexpr int32_t kChannels = 8, kWidth = 4;
  const StateLayout layout = layout_of(kWidth, kChannels);
  const std::vector<float> w = random_normal(kWidth * kChannels, 2), x = random_normal(300 * kChannels, 1);
  const DeviceArray<float> weight(w), in(x);
  DeviceArray<float> out(x.size());
  DeviceStates states(layout, 3);
  const StateEntry* const entries =
      states.resolve({{0, 1, 0, 0}, {1, 290, 0, 1}, {}, {291, 9, 0, 2}}, std::vector<int32_t>(300, 0));
  causal_conv(layout, 1, in.data(), weight.data(), nullptr, true, entries, 4, 300, out.data(), nullptr);
  const std::vector<float> together = out.download();
  const int32_t starts[] = {0, 1, 291, 300};
  for (int i = 0; i < 3; ++i) {
    const std::vector<float> own(x.begin() + starts[i] * kChannels, x.begin() + starts[i + 1] * kChannels);
    const auto alone = run<float>(layout, own, w, {}, true, steps_of(starts[i + 1] - starts[i], {1000}));
    CHECK(same_bytes(std::span(together).subspan(starts[i] * kChannels, own.size()), alone));
  }
}

}  // namespace
}  // namespace llmb::cuda
