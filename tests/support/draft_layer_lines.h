// Lines for jobs whose drafts come from a layer behind the model's last one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace llmb::test {

// Prompts that share beginnings, greedy and sampled, some with a penalty, log probabilities or two answers.
// max_tokens: of each line.
inline std::string draft_layer_lines(const std::vector<int>& max_tokens) {
  std::string text;
  for (int i = 0; i < static_cast<int>(max_tokens.size()); ++i) {
    std::vector<int> tokens;
    for (int at = 0; at < 9 + i % 4 * 4; ++at) tokens.push_back((at * at * (i % 2 + 2) + at) % 61 + 1);
    nlohmann::json line = {{"prompt_token_ids", tokens}, {"seed", i}, {"max_tokens", max_tokens[static_cast<size_t>(i)]},
                           {"ignore_eos", true}, {"return_token_ids", true}, {"temperature", i % 3 == 1 ? 0.8 : 0.0}};
    if (i % 5 == 2) line["repetition_penalty"] = 1.2;
    if (i % 5 == 3) line["logprobs"] = 2;
    if (i % 5 == 4) line["n"] = 2, line["temperature"] = 1.0;
    text += line.dump() + "\n";
  }
  return text;
}

}  // namespace llmb::test
