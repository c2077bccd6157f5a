// The whole program over ranks that wait at random before each call in which they meet: no byte depends on timing.
// LLMB_NUM_DELAYED_RUNS: how many runs in all.
#include <doctest/doctest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/rank_lines.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

const std::string kDelayed = binary_dir() + "/tests/delayed_ranks";

// Prompts of ids, for models with small vocabularies: greedy and sampled, choices, beams, common prefixes.
std::string id_lines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::vector<int> prompt;
    for (int t = 0; t < 6 + i % 3; ++t) prompt.push_back((7 * (i / 4) + 5 * t) % 60);
    prompt.push_back(i % 60);
    nlohmann::json line = {{"prompt_token_ids", prompt}, {"max_tokens", 3 + i % 9}, {"ignore_eos", true}};
    line["return_token_ids"] = true;
    if (i % 3 == 0) line["temperature"] = 0;
    if (i % 4 == 1) line["top_p"] = 0.9, line["temperature"] = 1.2;
    if (i % 5 == 1) line["top_k"] = 20, line["repetition_penalty"] = 1.1;
    if (i % 5 == 2) line["n"] = 3;
    if (i % 5 == 3) line["logprobs"] = 2;
    lines += line.dump() + "\n";
  }
  return lines;
}

struct Case {
  std::string model, lines;
  std::vector<std::string> ranks;
};

std::vector<Case> cases() {
  const std::string fixtures = source_dir() + "/data/fixtures/models/";
  const std::vector<std::vector<std::string>> grids = {
      {"--tensor-parallel-size", "2"},
      {"--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"},
      {"--pipeline-parallel-size", "3"}};
  std::vector<Case> all;
  for (const auto& [model, lines] : {std::pair{kModel, mixed_lines(12)}, std::pair{fixtures + "gemma2", id_lines(16)},
                                     std::pair{fixtures + "qwen3_moe", id_lines(16)}})
    for (const std::vector<std::string>& ranks : grids) all.push_back({model, lines, ranks});
  all.push_back({kModel, mixed_lines(12), {"--pipeline-parallel-size", "4"}});
  all.push_back({kModel, mixed_lines(12), {"--prefill-context-parallel-size", "3"}});
  all.push_back({kModel, mixed_lines(12), {"--decode-context-parallel-size", "3"}});
  return all;
}

ProcessResult run(const Case& c, int num_seqs, std::vector<std::string> program) {
  program.insert(program.end(), {"-m", c.model, "--tokenizer", kModel, "--progress", "none", "--device", "cpu"});
  program.insert(program.end(), {"--max-num-seqs", std::to_string(num_seqs), "--watchdog-timeout", "30"});
  program.insert(program.end(), c.ranks.begin(), c.ranks.end());
  return run_process(program, c.lines);
}

}  // namespace

TEST_CASE("bytes over processes do not depend on the timing of any call") {
  const char* const asked = std::getenv("LLMB_NUM_DELAYED_RUNS");
  const std::vector<Case> all = cases();
  const int num_runs = asked != nullptr ? std::atoi(asked) : static_cast<int>(all.size());
  std::vector<std::string> expected;
  for (int i = 0; i < num_runs; ++i) {
    const size_t at = static_cast<size_t>(i) % all.size();
    CAPTURE(all[at].model);
    CAPTURE(all[at].ranks);
    CAPTURE(i);
    if (expected.size() <= at) {
      const ProcessResult alone = run(all[at], 8, {kProgram});
      REQUIRE_MESSAGE((alone.exit_code == 0 || alone.exit_code == 3), alone.err);
      expected.push_back(stable_output(alone.out));
    }
    const ProcessResult result = run(all[at], 2 + i % 7, {"env", "LLMB_DELAY_SEED=" + std::to_string(i), kDelayed});
    CHECK_MESSAGE((result.exit_code == 0 || result.exit_code == 3), result.err);
    CHECK((stable_output(result.out) == expected[at]));
  }
}

}  // namespace llmb::test
