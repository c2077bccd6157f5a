#include "kernels/cpu/update_states.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"
#include "tests/support/state_inputs.h"
#include "tests/support/test_rng.h"

namespace llmb::cpu {
namespace {

using test::expected_states;
using test::for_each_simd_target;
using test::random_normal;
using test::random_state_inputs;
using test::same_bytes;
using Inputs = test::StateInputs;

constexpr StateKind kDelta = StateKind::kGatedDelta, kMamba = StateKind::kMamba2;

StateWeights weights_of(const Inputs& in) {
  return {in.log_a.data(), in.dt_bias.data(), in.is_delta() ? nullptr : in.skip.data()};
}

// In steps of so many tokens in turn. The state holds garbage at first.
std::vector<float> run(const Inputs& in, const std::vector<int32_t>& steps, ThreadPool& pool) {
  const StateConfig& c = in.layout.config;
  std::vector<float> state(static_cast<size_t>(in.layout.layer_size()), NAN), out(in.num_tokens * c.values_size());
  float* states = state.data();
  int32_t position = 0, border = 0;
  const int32_t num_drafts = 0;
  for (size_t i = 0; position < in.num_tokens; ++i) {
    const auto count = static_cast<int32_t>(std::min<int64_t>(steps[i % steps.size()], in.num_tokens - position));
    const int32_t query_start[] = {0, count};
    update_states(in.layout, in.qkv.data() + position * c.conv_channels(), in.gates.data() + position * c.gates_size(),
                  weights_of(in), {1, query_start, &position, &num_drafts, &border, &states},
                  out.data() + position * c.values_size(), pool);
    position += count;
    border = state_border(position, 0);
  }
  return out;
}

// The same in steps of random tokens and drafts behind them, of which a random number is right: the others' inputs are
// those of other tokens.
std::vector<float> run_drafted(Inputs in, double right, uint64_t seed, ThreadPool& pool) {
  const StateConfig& c = in.layout.config;
  in.layout.max_drafts = kMaxStateDrafts;
  std::vector<float> state(static_cast<size_t>(in.layout.layer_size()), NAN), out(in.num_tokens * c.values_size());
  float* states = state.data();
  test::TestRng rng(seed);
  int32_t position = 0, border = 0;
  const auto all = static_cast<int32_t>(in.num_tokens);
  while (position < all) {
    const int32_t num_known = std::min(rng.log_between(1, 20), all - position);
    const int32_t num_drafts = std::min(rng.between(0, kMaxStateDrafts), all - position - num_known);
    const int32_t count = num_known + num_drafts;
    int32_t num_right = 0;
    while (num_right < num_drafts && rng.chance(right)) ++num_right;
    std::vector<float> qkv(in.qkv.begin() + position * c.conv_channels(),
                           in.qkv.begin() + (position + count) * c.conv_channels());
    std::vector<float> gates(in.gates.begin() + position * c.gates_size(),
                             in.gates.begin() + (position + count) * c.gates_size());
    for (auto i = (num_known + num_right) * c.conv_channels(); i < static_cast<int64_t>(qkv.size()); ++i) qkv[i] += 1;
    const int32_t query_start[] = {0, count};
    std::vector<float> given(count * c.values_size());
    update_states(in.layout, qkv.data(), gates.data(), weights_of(in),
                  {1, query_start, &position, &num_drafts, &border, &states}, given.data(), pool);
    std::copy_n(given.begin(), (num_known + num_right) * c.values_size(), out.begin() + position * c.values_size());
    border = state_border(position + count, num_drafts);
    position += num_known + num_right;
  }
  return out;
}

const StateConfig kConfigs[] = {{kDelta, 1, 1, 1, 1, 4}, {kDelta, 2, 4, 12, 10, 4}, {kDelta, 1, 3, 16, 16, 4},
                                {kDelta, 2, 2, 33, 80, 4}, {kDelta, 1, 2, 128, 128, 4}, {kMamba, 1, 1, 1, 1, 4},
                                {kMamba, 2, 4, 12, 10, 4}, {kMamba, 1, 3, 128, 64, 4}, {kMamba, 1, 2, 33, 80, 4}};

}  // namespace

TEST_CASE("update_states is the rules computed token by token in fp64") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const StateConfig& config : kConfigs)
      for (const int64_t num_tokens : {1, 2, 15, 16, 17, 32, 33, 100}) {
        CAPTURE(config.key_dim);
        CAPTURE(num_tokens);
        const Inputs in = random_state_inputs(config, num_tokens);
        CHECK(test::compare(run(in, {1000}, pool), expected_states(in), 1e-5, 1e-5) == "");
      }
  });
}

TEST_CASE("update_states gives the same bytes however steps cut a sequence, on any vector width and number of threads") {
  for (const StateKind kind : {kDelta, kMamba}) {
    std::map<bool, std::vector<float>> of_class;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const Inputs in = random_state_inputs({kind, 2, 4, 12, 40, 4}, 100);
    ThreadPool pool(2), one(1);
    const std::vector<float> whole = run(in, {1000}, pool);
    for (const std::vector<int32_t>& steps : std::vector<std::vector<int32_t>>{{1}, {16}, {15, 2}, {17}, {3, 1, 40}})
      CHECK(same_bytes(run(in, steps, one), whole));
    const auto [at, is_new] = of_class.try_emplace(test::has_fused_multiply_add(target), whole);
    if (!is_new) CHECK(same_bytes(at->second, whole));
  });
  }
}

TEST_CASE("drafts leave the bytes as they are, right or wrong, also across the borders of chunks") {
  ThreadPool pool(3), one(1);
  for (const StateKind kind : {kDelta, kMamba})
    for (const double right : {0.0, 0.7, 1.0})
      for (uint64_t seed = 1; seed <= 40; ++seed) {
        CAPTURE(right);
        CAPTURE(seed);
        const Inputs in = random_state_inputs({kind, 1, 3, 12, 20, 4}, 150);
        const std::vector<float> whole = run(in, {1000}, one);
        CHECK(same_bytes(run_drafted(in, right, seed, one), whole));
        CHECK(same_bytes(run_drafted(in, right, seed, pool), whole));
      }
}

TEST_CASE("update_states deals the value heads of one key head to threads") {
  for (const StateKind kind : {kDelta, kMamba})
    for (const int32_t num_heads : {1, 2, 5, 8}) {
      const Inputs in = random_state_inputs({kind, 1, num_heads, 12, 20, 4}, 70);
      ThreadPool one(1);
      const std::vector<float> whole = run(in, {1000}, one);
      for (const int num_threads : {2, 3, 7}) {
        ThreadPool pool(num_threads);
        for (const std::vector<int32_t>& steps : std::vector<std::vector<int32_t>>{{1}, {70}, {15, 2}, {17}})
          CHECK(same_bytes(run(in, steps, pool), whole));
      }
    }
}

TEST_CASE("update_states keeps sequences apart") {
  const StateConfig config = {kDelta, 1, 2, 8, 12, 4};
  const Inputs a = random_state_inputs(config, 20);
  Inputs b = a;
  for (float& x : b.qkv) x = 1 - x;
  ThreadPool pool(2);
  const std::vector<float> alone_a = run(a, {1000}, pool), alone_b = run(b, {1000}, pool);
  std::vector<float> qkv = a.qkv, gates = a.gates;
  qkv.insert(qkv.end(), b.qkv.begin(), b.qkv.end());
  gates.insert(gates.end(), b.gates.begin(), b.gates.end());
  std::vector<float> memory(static_cast<size_t>(2 * a.layout.layer_size()), NAN), out(2 * alone_a.size());
  float* const states[] = {memory.data() + a.layout.layer_size(), memory.data()};
  const int32_t query_start[] = {0, 20, 40}, none[] = {0, 0};
  update_states(a.layout, qkv.data(), gates.data(), weights_of(a), {2, query_start, none, none, none, states}, out.data(),
                pool);
  CHECK(same_bytes(std::span(out).first(alone_a.size()), alone_a));
  CHECK(same_bytes(std::span(out).subspan(alone_a.size()), alone_b));
}

TEST_CASE("causal_conv is each channel's weighted sum of its newest tokens, whatever the steps") {
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t width : {2, 4})
      for (const int64_t channels : {1, 17, 1030}) {
        constexpr int64_t kNumTokens = 23;
        const std::vector<float> x = random_normal(kNumTokens * channels, 1), w = random_normal(width * channels, 2);
        const std::vector<float> bias = random_normal(channels, 3);
        std::vector<double> exact(x.size());
        for (int64_t t = 0; t < kNumTokens; ++t)
          for (int64_t c = 0; c < channels; ++c) {
            double sum = width == 4 ? bias[c] : 0;
            for (int64_t j = 0; j < width; ++j)
              if (t - width + 1 + j >= 0) sum += double{w[j * channels + c]} * x[(t - width + 1 + j) * channels + c];
            exact[t * channels + c] = width == 4 ? sum / (1 + std::exp(-sum)) : sum;
          }
        ThreadPool pool(2);
        std::vector<float> whole;
        for (const int32_t step : {100, 1, 2, 5}) {
          std::vector<float> state(static_cast<size_t>(3 + (width - 1) * channels), NAN), out(x.size());
          float* states = state.data();
          for (int32_t position = 0; position < kNumTokens; position += step) {
            const int32_t query_start[] = {0, std::min<int32_t>(step, kNumTokens - position)};
            const int32_t none = 0;
            causal_conv(x.data() + position * channels, w.data(), width == 4 ? bias.data() : nullptr, width == 4, width,
                        channels, {1, query_start, &position, &none, &none, &states}, 3, width - 1,
                        out.data() + position * channels, pool);
          }
          if (whole.empty()) whole = out;
          CHECK(same_bytes(out, whole));
        }
        CHECK(test::compare(whole, exact, 1e-5, 1e-6) == "");
      }
  });
}

TEST_CASE("causal_conv finds the inputs of the tokens before where drafts behind them were wrong") {
  constexpr int64_t kChannels = 17, kDrafts = 8;
  constexpr int32_t kNumTokens = 60;
  ThreadPool pool(2);
  for (const int64_t width : {1, 2, 4}) {
    const std::vector<float> x = random_normal(kNumTokens * kChannels, 1), w = random_normal(width * kChannels, 2);
    std::vector<float> whole;
    for (uint64_t seed = 0; seed < 30; ++seed) {
      test::TestRng rng(seed);
      std::vector<float> state(static_cast<size_t>((width - 1 + kDrafts) * kChannels), NAN), out(x.size());
      float* states = state.data();
      for (int32_t position = 0; position < kNumTokens;) {
        const int32_t num_known = seed == 0 ? kNumTokens : std::min(rng.between(1, 4), kNumTokens - position);
        const int32_t num_drafts = std::min(rng.between(0, kDrafts), kNumTokens - position - num_known);
        const int32_t count = num_known + num_drafts, num_right = rng.between(0, num_drafts);
        const int32_t query_start[] = {0, count}, border = 0;
        std::vector<float> in(x.begin() + position * kChannels, x.begin() + (position + count) * kChannels);
        for (auto i = (num_known + num_right) * kChannels; i < static_cast<int64_t>(in.size()); ++i) in[i] = 7;
        std::vector<float> given(in.size());
        causal_conv(in.data(), w.data(), nullptr, true, width, kChannels,
                    {1, query_start, &position, &num_drafts, &border, &states}, 0, width - 1 + kDrafts, given.data(),
                    pool);
        std::copy_n(given.begin(), (num_known + num_right) * kChannels, out.begin() + position * kChannels);
        position += num_known + num_right;
      }
      if (seed == 0) whole = out;
      CHECK(same_bytes(out, whole));
    }
  }
}

}  // namespace llmb::cpu
