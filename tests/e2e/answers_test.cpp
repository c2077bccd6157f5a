// The bundled model does its work, judged by answers: held-out accuracy, greedy, through the built program.
#include <doctest/doctest.h>

#include <map>

#include "tests/e2e/run.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace {

// Right answers to the held-out questions, of how many.
struct Score {
  int right = 0, asked = 0;
};

Score score(std::vector<std::string> flags) {
  const std::string path = source_dir() + "/data/eval/heldout.jsonl";
  const auto lines = parse_lines(read_file(path));
  flags.insert(flags.end(), {path, "--order", "input"});
  const ProcessResult result = run_llm_batch(flags);
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const auto records = parse_lines(result.out);
  REQUIRE(records.size() == lines.size());
  std::map<std::string, std::pair<int, int>> by_task;  // right, asked
  int num_right = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto& metadata = lines[i]["metadata"];
    const bool right = records[i]["text"] == metadata["expected"];
    num_right += right;
    auto& [task_right, task_asked] = by_task[metadata["task"]];
    task_right += right;
    task_asked++;
  }
  for (const auto& [task, count] : by_task) MESSAGE(task << ": " << count.first << " of " << count.second);
  CHECK(by_task.size() == 7);
  return {num_right, static_cast<int>(lines.size())};
}

}  // namespace

TEST_CASE(
    "held-out accuracy over the checkable tasks is at least 95 %, and quantised, with rounded activations or another "
    "KV "
    "cache within a point of that") {
  const Score stored = score({});
  CHECK(stored.right >= 0.95 * stored.asked);
  for (const std::string quantization : {"int8", "int4", "w4a8"}) {
    CAPTURE(quantization);
    CHECK(score({"--quantization", quantization}).right >= stored.right - 0.01 * stored.asked);
  }
  CHECK(score({"--device", "cpu", "--dtype", "bfloat16"}).right >= stored.right - 0.01 * stored.asked);
  for (const std::string kv_dtype : {"float32", "int8", "fp8"}) {
    CAPTURE(kv_dtype);
    const Score other = score({"--kv-cache-dtype", kv_dtype});
    CHECK(other.right >= 0.95 * stored.asked);
    CHECK(other.right >= stored.right - 0.01 * stored.asked);
  }
  CHECK(score({"--kv-cache-dtype", "int4"}).right >= stored.right - 0.02 * stored.asked);
}

}  // namespace llmb::test
