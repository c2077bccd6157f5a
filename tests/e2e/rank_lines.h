// Lines for tests of ranks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace llmb::test {

// Greedy, with log probabilities.
inline std::string greedy_lines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines += nlohmann::json({{"id", i},
                             {"prompt", "In group " + std::to_string(i / 8) + " of the long list, number " +
                                            std::to_string(i)},
                             {"max_tokens", 8 + i % 5},
                             {"temperature", 0},
                             {"logprobs", 2}})
                 .dump() +
             "\n";
  return lines;
}

// Greedy and sampled, choices, beams, forms, an error, common prefixes.
inline std::string mixed_lines(int count) {
  std::string lines = "not JSON\n";
  for (int i = 0; i < count; ++i) {
    nlohmann::json line = {{"id", i}, {"max_tokens", 3 + i % 9}};
    line["prompt"] = "In group " + std::to_string(i / 8) + " of the long list of stories, number " + std::to_string(i);
    if (i % 3 == 0) line["temperature"] = 0;
    if (i % 4 == 1) line["top_p"] = 0.9, line["temperature"] = 1.2;
    if (i % 5 == 1) line["top_k"] = 20, line["repetition_penalty"] = 1.1;
    if (i % 7 == 1) line["n"] = 3;
    if (i % 7 == 2) line["logprobs"] = 2;
    if (i % 7 == 3) line["guided_choice"] = {"yes", "no"};
    if (i % 11 == 4) line["best_of"] = 3;
    lines += line.dump() + "\n";
  }
  return lines;
}

}  // namespace llmb::test
