// Adapters of models with recurrent states and gated attention: no schedule changes a byte of their rows, whatever is
// recomputed, guessed, shared or cut.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Rows in threes with one prompt, for the adapters "half" and "whole" and for none; some are drawn at random.
std::string rows_in_threes() {
  std::string lines;
  std::vector<int> opening;
  for (int i = 0; i < 24; ++i) opening.push_back(i % 5 + 3);
  for (int i = 0; i < 36; ++i) {
    json line = {{"prompt_token_ids", opening}, {"max_tokens", 10 + i / 3}, {"ignore_eos", true}, {"return_token_ids", true}};
    line["prompt_token_ids"].push_back(i / 3);
    if (i % 3 < 2) line["adapter"] = i % 3 == 0 ? "half" : "whole";
    if (i / 3 % 4 == 3) line.update({{"temperature", 1.0}, {"seed", i}, {"n", 2}});
    lines += line.dump() + "\n";
  }
  return lines;
}

// The golden adapter, and the same with half its scale.
void copy_adapters(const std::string& model, const TemporaryDirectory& dir) {
  const fs::path golden = fs::path(source_dir()) / "data/fixtures/adapters" / model / "rank-4";
  for (const std::string name : {"whole", "half"}) {
    fs::copy(golden, dir.file(name));
    json config = json::parse(read_file(golden / "adapter_config.json"));
    if (name == "half") config["lora_alpha"] = config["lora_alpha"].get<int>() / 2;
    write_file(dir.file(name + "/adapter_config.json"), config.dump());
  }
}

}  // namespace

TEST_CASE("drafts, snapshots, recomputed states, small steps and workers change no byte of rows with adapters") {
  const std::string lines = rows_in_threes(), fixtures = source_dir() + "/data/fixtures/";
  for (const std::string model : {"qwen3_5-text", "qwen3_next", "granitemoehybrid", "lfm2"}) {
    CAPTURE(model);
    const TemporaryDirectory dir;
    copy_adapters(model, dir);
    const bool has_mtp = fs::exists(fixtures + "mtp/" + model);
    std::vector<std::vector<std::string>> schedules = {
        {"--speculative", "none", "--no-enable-prefix-caching", "--schedule", "file", "--max-num-seqs", "1"},
        {"--speculative", "lookup", "--block-size", "16", "--max-num-batched-tokens", "17"},
        {"--speculative", "none", "--block-size", "8", "--num-gpu-blocks-override", "14", "--max-num-seqs", "12"},
        {"--speculative", "lookup", "--workers", "2", "--adapter-memory", "1"}};
    if (has_mtp) schedules.push_back({"--speculative", "mtp", "--block-size", "8"});
    std::string first;
    for (const std::vector<std::string>& schedule : schedules) {
      std::vector<std::string> arguments = {kProgram, "--order", "input", "-m", fixtures + (has_mtp ? "mtp/" : "models/") + model,
                                            "--tokenizer", kModel, "--progress", "none", "--dtype", "float32",
                                            "--temperature", "0", "--adapter-dir", dir.path()};
      arguments.insert(arguments.end(), schedule.begin(), schedule.end());
      const ProcessResult result = run_process(arguments, lines);
      REQUIRE_MESSAGE(result.exit_code == 0, result.err);
      CAPTURE(schedule[1]);
      if (first.empty()) first = stable_output(result.out);
      CHECK(stable_output(result.out) == first);
    }
    const auto records = parse_lines(first);
    REQUIRE(records.size() == 36);
    for (size_t i = 0; i < records.size(); i += 12) {
      CHECK(records[i]["token_ids"] != records[i + 1]["token_ids"]);
      CHECK(records[i]["token_ids"] != records[i + 2]["token_ids"]);
      CHECK(records[i + 1]["token_ids"] != records[i + 2]["token_ids"]);
    }
  }
}

}  // namespace llmb::test
