// A trained model that others published, against another implementation: ../shared/data.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/skip.h"
#include "tests/support/source_dir.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {

TEST_CASE("stories260K: greedy tokens and log probabilities equal another implementation's") {
  const std::string dir = source_dir() + "/../shared/data/models/stories260K-hf";
  if (!std::filesystem::exists(dir)) return skip("no ../shared/data/models");
  check_continuations(dir, dir + "/reference_greedy_llama2c.jsonl", {"prompt_ids", "output_ids"});
}

}  // namespace llmb::test
