// Multi-token prediction, EAGLE and a draft model on a GPU, of the whole program, with the host SIMT layer in place of
// one: the same bytes with and without, with answers in given forms, whatever the schedule and however often the job is
// killed.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/killed_runs.h"
#include "tests/e2e/record_metrics.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

const std::string kFixtures = source_dir() + "/data/fixtures/";

// Prompts whose beginnings are shared; some answers have a form, of the tokens that a small vocabulary has.
std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    std::vector<int> tokens;
    for (int at = 0; at < 9 + i % 3 * 4; ++at) tokens.push_back((at * at * (i % 2 + 2) + at) % 57 + 5);
    nlohmann::json line = {{"prompt_token_ids", tokens}, {"seed", i}, {"max_tokens", 6 + i % 5 * 3}};
    line["return_token_ids"] = true;
    line["temperature"] = i % 3 == 1 ? 0.8 : 0.0;
    if (i % 4 == 2) line["guided_regex"] = "[A-Z]{2}-[0-9]{2,9}";
    else line["ignore_eos"] = true;
    if (i % 5 == 3) line["n"] = 2, line["temperature"] = 0.9;
    text += line.dump() + "\n";
  }
  return text;
}

std::vector<std::string> command(const std::string& model, const std::vector<std::string>& more) {
  return with({binary_dir() + "/tests/gpu_program", "-m", kFixtures + model, "--tokenizer", kModel, "--progress",
               "none", "--device", "cuda", "--max-model-len", "64", "--max-num-batched-tokens", "32", "--threads", "1",
               "--dtype", "bfloat16", "--deterministic"},
              more);
}

}  // namespace

TEST_CASE(
    "on a GPU drafts by a layer behind the last one or by another model change no byte, in other schedules and "
    "killed") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), lines(8));
  const std::pair<std::string, std::string> models[] = {
      {"mtp/qwen3_5-text", "mtp"},
      {"models/llama-gqa", "eagle:" + kFixtures + "eagle/llama-gqa-3"},
      {"models/llama-gqa", "draft:" + kFixtures + "models/llama-gqa"}};
  for (const auto& [model, drafter] : models) {
    CAPTURE(model);
    const auto run = [&, model = model](const std::vector<std::string>& more) {
      const ProcessResult result = run_process(command(model, with({dir.file("in.jsonl")}, more)));
      REQUIRE_MESSAGE(result.exit_code == 0, result.err);
      return result.out;
    };
    const std::string plain = run({"--speculative", "none", "--max-num-seqs", "1", "--num-gpu-blocks-override", "40"});
    const std::string drafted =
        run({"--speculative", drafter, "--max-num-seqs", "5", "--num-gpu-blocks-override", "40"});
    CHECK(stable_output(drafted) == stable_output(plain));
    CHECK(sum_of_metric(drafted, "drafted_tokens") > 0);
    const std::string small =
        run({"--speculative", drafter, "--max-num-seqs", "4", "--num-gpu-blocks-override", "14", "--block-size", "8",
             "--num-speculative-tokens", "3", "--preemption", drafter == "mtp" ? "recompute" : "swap"});
    CHECK(stable_output(small) == stable_output(plain));
    if (drafter.starts_with("eagle")) continue;
    const std::string out = dir.file("out-" + drafter.substr(0, 3) + ".jsonl");
    kill_until_done(dir, [&, model = model, drafter = drafter](int attempt) {
      return command(model, {dir.file("in.jsonl"), "-o", out, "--max-num-seqs", "3", "--num-gpu-blocks-override", "40",
                             "--speculative", attempt % 3 == 0 ? "none" : drafter});
    });
    CHECK(stable_output(read_file(out)) == stable_output(plain));
  }
}

TEST_CASE("over GPUs that divide layers, or keys and values, a layer behind the last one changes no byte") {
  const auto over_two = [](const std::vector<std::string>& more) {
    return with({"env", "LLMB_SIMT_DEVICES=2"},
                command("mtp/glm4_moe", with({"--kv-cache-memory-bytes", "2000000"}, more)));
  };
  const auto run = [&](const std::vector<std::string>& more) {
    const ProcessResult result = run_process(over_two(more), lines(4));
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    return result.out;
  };
  const std::string drafted = run({"--speculative", "mtp", "--pipeline-parallel-size", "2"});
  CHECK(stable_output(drafted) == stable_output(run({"--speculative", "none"})));
  const std::string divided = run({"--speculative", "mtp", "--decode-context-parallel-size", "2"});
  CHECK(stable_output(divided) == stable_output(drafted));
  CHECK(sum_of_metric(divided, "drafted_tokens") > 0);
}

TEST_CASE(
    "a GPU drafts where it is asked to or its sums are those of each row alone, and says where bytes may differ") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), lines(1));
  const auto start_lines = [&](bool deterministic, const std::vector<std::string>& more) {
    std::vector<std::string> asked = command("models/llama-gqa", with({dir.file("in.jsonl")}, more));
    *std::find(asked.begin(), asked.end(), "none") = "auto";  // of --progress
    asked = with(asked, {"--peak-flops", "1e12", "--peak-bandwidth", "1e11"});  // the host layer measures for minutes
    if (!deterministic) asked.erase(std::find(asked.begin(), asked.end(), "--deterministic"));
    const ProcessResult result = run_process(asked);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    return result.err;
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const std::string kWarning = "without --deterministic bytes may differ";
  CHECK(!contains(start_lines(false, {}), "drafts    "));
  CHECK(contains(start_lines(false, {"--speculative", "lookup"}), kWarning));
  const std::string exact = start_lines(true, {});
  CHECK(contains(exact, "drafts    lookup"));
  CHECK(!contains(exact, kWarning));
}

}  // namespace llmb::test
