// Files of rows whose answers' lengths nobody knows beforehand, for tests and benches of what is learned about them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/request.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

inline constexpr int32_t kMaxTokens = 1536;  // of an answer, where a row has no limit of its own

struct Row {
  int32_t group = 0;  // a template of 64 tokens
  int32_t num_own_prompt_tokens = 64;
  int32_t length = 1;  // of the answer
  int32_t max_tokens = kMaxTokens;
};

struct Distribution {
  std::string name;
  std::function<Row(TestRng&)> draw;
};

inline double unit(TestRng& rng) { return rng.between(0, (1 << 20) - 1) / static_cast<double>(1 << 20); }

inline int32_t exponential(TestRng& rng, double mean) {
  return std::clamp(static_cast<int32_t>(-mean * std::log(1 - unit(rng))), 1, kMaxTokens);
}

inline const std::vector<Distribution> kDistributions = {
    {"exponential", [](TestRng& rng) { return Row{0, 64, exponential(rng, 128)}; }},
    {"two templates, short and long answers",
     [](TestRng& rng) {
       const int32_t group = rng.between(0, 1);
       return Row{group, 64, exponential(rng, group == 0 ? 20 : 300)};
     }},
    {"as long as the prompt",
     [](TestRng& rng) {
       const int32_t prompt = rng.log_between(8, 600);
       return Row{0, prompt, std::max(1, static_cast<int32_t>(prompt * (0.7 + 0.6 * unit(rng))))};
     }},
    {"most of max_tokens",
     [](TestRng& rng) {
       const int32_t most = rng.log_between(8, kMaxTokens);
       return Row{0, 64, std::max(1, static_cast<int32_t>(most * (0.5 + 0.5 * unit(rng)))), most};
     }},
    {"eight templates, each with its own length and a long tail",
     [](TestRng& rng) {
       const int32_t group = rng.between(0, 7);
       const double normal = unit(rng) + unit(rng) + unit(rng) + unit(rng) - 2;
       return Row{group, 64, std::clamp(static_cast<int32_t>(10 * std::exp2(0.7 * group + 1.5 * normal)), 1, kMaxTokens)};
     }},
    {"one in ten runs on to max_tokens",
     [](TestRng& rng) { return Row{0, 64, rng.chance(0.1) ? kMaxTokens : rng.between(10, 60)}; }},
    {"all alike", [](TestRng&) { return Row{0, 64, 128}; }},
    {"uniform", [](TestRng& rng) { return Row{0, 64, rng.between(1, 512)}; }},
};

// The request of a file's row: a template of 64 tokens, then its own.
inline std::shared_ptr<const Request> request_of(const Row& row, int32_t index) {
  auto request = std::make_shared<Request>();
  request->line.index = index;
  for (int32_t t = 0; t < 64; ++t) request->prompt_tokens.push_back(row.group * 64 + t);
  for (int32_t t = 0; t < row.num_own_prompt_tokens; ++t)
    request->prompt_tokens.push_back((index * 7919 + t * 31) % 30000);
  request->params.sampling.temperature = 0;
  request->params.stop.max_tokens = row.max_tokens;
  return request;
}

}  // namespace llmb::test
