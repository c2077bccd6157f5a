// The adapters under data/adapters, which were trained for the bundled model (tools/train/train_adapters.py).
#include <doctest/doctest.h>

#include <filesystem>
#include <map>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;

TEST_CASE("adapters answer 95 of 100 held-out questions each, in one file; without them the model does not") {
  const std::string questions = source_dir() + "/data/eval/heldout_adapters.jsonl";
  const auto lines = parse_lines(read_file(questions));
  const auto count_right = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {kProgram, "-m", kModel, questions, "--order", "input", "--progress", "none",
                               "--adapter-dir", source_dir() + "/data/adapters"});
    const ProcessResult result = run_process(more);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    const auto records = parse_lines(result.out);
    REQUIRE(records.size() == lines.size());
    std::map<std::string, int> right;
    for (size_t i = 0; i < lines.size(); ++i)
      right[lines[i]["adapter"]] += records[i]["text"] == lines[i]["metadata"]["expected"];
    return right;
  };
  const auto right = count_right({});
  REQUIRE(right.size() == 3);
  for (const auto& [adapter, count] : right) {
    CAPTURE(adapter);
    CHECK(count >= 95);
    CHECK(fs::file_size(source_dir() + "/data/adapters/" + adapter + "/adapter_model.safetensors") <= 300'000);
  }
  const std::string nobody =
      R"({"messages":[{"role":"user","content":"Write 1994 in Roman numerals."}],"max_tokens":20})";
  const ProcessResult without = run_process({kProgram, "-m", kModel, "--progress", "none"}, nobody + "\n");
  CHECK(without.out.find("MCMXCIV") == without.out.npos);
}

}  // namespace llmb::test
