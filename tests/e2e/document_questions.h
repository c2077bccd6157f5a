// Lines that ask about a few documents: greedy and sampled, some with several answers, some asked twice, some with beams.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace llmb::test {

struct Documents {
  int shortest = 0;  // tokens of the first of four; each of the others has one more than that before it
  int sharing = 1;   // documents one after the other that begin with the same tokens
};

inline std::string document_questions(int num_lines, const Documents& documents) {
  std::string lines;
  for (int i = 0; i < num_lines; ++i) {
    const int document = i * 7 % 4, question = i / 4 % 6;
    std::vector<int> tokens;
    for (int at = 0; at < documents.shortest + document; ++at)
      tokens.push_back((at * at * (document / documents.sharing + 3) + at) % 61 + 1);
    for (int at = 0; at < 2 * question; ++at) tokens.push_back((question * 5 + at * 3) % 61 + 1);
    nlohmann::json line = {{"id", i},        {"prompt_token_ids", tokens}, {"seed", i},
                           {"max_tokens", 3 + i * 5 % 40}, {"ignore_eos", true}, {"return_token_ids", true}};
    line["temperature"] = i % 3 == 1 ? 1.1 : 0.0;
    if (i % 7 == 3) line["n"] = 3, line["temperature"] = 0.9;
    if (i % 6 == 2) line["repetition_penalty"] = 1.2;
    if (i % 5 == 4) line["logprobs"] = 2;
    if (i % 9 == 5) {
      for (const char* field : {"temperature", "seed", "repetition_penalty", "logprobs"}) line.erase(field);
      line["use_beam_search"] = true, line["n"] = 2, line["max_tokens"] = 9;
    }
    lines += line.dump() + "\n";
  }
  return lines;
}

}  // namespace llmb::test
