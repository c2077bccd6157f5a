// The bundled model does its work, judged by answers: held-out accuracy, greedy, through the built program.
#include <doctest/doctest.h>

#include <map>

#include "tests/e2e/run.h"

namespace llmb::test {

TEST_CASE("held-out accuracy over the checkable tasks is at least 95 %") {
  const std::string path = LLMB_SOURCE_DIR "/data/eval/heldout.jsonl";
  const auto lines = parse_lines(read_file(path));
  const ProcessResult result = run_llm_batch({path, "--order", "input"});
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
  CHECK(num_right >= 0.95 * static_cast<double>(lines.size()));
}

}  // namespace llmb::test
