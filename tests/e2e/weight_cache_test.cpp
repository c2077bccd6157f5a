// --weight-cache, as its user sees it: the same answers, from the same bytes, whatever happens to the directory.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/run.h"
#include "tests/support/file_changes.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

const std::string kLines =
    "{\"prompt\": \"Question: \", \"max_tokens\": 8}\n{\"prompt\": \"12 + 30 =\", \"max_tokens\": 8, \"logprobs\": "
    "3}\n";

// All but the costs of steps that a run keeps beside the weights.
std::vector<std::string> files_in(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir))
    if (!entry.path().string().ends_with(".steps.json")) names.push_back(entry.path().string());
  return names;
}

}  // namespace

TEST_CASE("answers are the same without a cache, with one that is written, mapped, damaged, or cannot be written") {
  for (const std::string format : {"none", "int8", "int4", "w4a8"}) {
    CAPTURE(format);
    const TempDir dir;
    const std::string cache = dir / "cache";
    const auto run = [&](const std::string& where) {
      const ProcessResult result = run_llm_batch({"--quantization", format, "--weight-cache", where}, kLines);
      CHECK_MESSAGE(result.exit_code == 0, result.err);
      std::string warnings = result.err.substr(0, result.err.rfind("{\"exit_code\""));
      return std::pair(stable_output(result.out), warnings);
    };
    const std::string expected = stable_output(run_llm_batch({"--quantization", format}, kLines).out);
    CHECK(run(cache) == std::pair(expected, std::string()));
    REQUIRE(files_in(cache).size() == 1);
    const std::string path = files_in(cache)[0], good = read_file(path);
    CHECK(run(cache) == std::pair(expected, std::string()));

    std::string bad = good;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
    for (const std::string& content : {bad, good.substr(0, good.size() - 1), std::string("no weights")}) {
      fs::remove(path);  // nobody may write to it
      write_file(path, content);
      const auto [out, err] = run(cache);
      CHECK(out == expected);
      CHECK(err.starts_with("llm-batch: warning: weight cache: " + path + ": "));
      CHECK(std::count(err.begin(), err.end(), '\n') == 1);
      CHECK((read_file(path) == good));
    }
    const auto [out, err] = run("/proc/no-such-directory");
    CHECK(out == expected);
    CHECK(err.starts_with("llm-batch: warning: weight cache: not written: "));
  }
}

TEST_CASE("several processes that start with an empty cache at once all answer, and leave one file") {
  const TempDir dir;
  write_file(dir / "in", kLines);
  std::string script = "cd " + dir.path() + "; ";
  for (const char* i : {"1", "2", "3", "4"})
    script += kProgram + " -m " + kModel + " in --progress none --weight-cache cache -o " + i + " 2>" + i + ".err & ";
  CHECK(run_process({"/bin/sh", "-c", script + "wait"}).exit_code == 0);
  const std::string expected = stable_output(run_llm_batch({}, kLines).out);
  for (const char* i : {"1", "2", "3", "4"}) {
    CHECK(stable_output(read_file(dir / i)) == expected);
    CHECK(read_file(dir / (std::string(i) + ".err")).starts_with("{\"exit_code\":0,"));
  }
  REQUIRE(files_in(dir / "cache").size() == 1);
  CHECK(files_in(dir / "cache")[0].ends_with(".packed"));
}

// A run that has answered its first lines, and gets the others when `attack` (a shell command, which finds the cache's
// file as $F) is over.
TEST_CASE("FAULTS 41, 42: a cache that is cut short, written to or replaced in mid-run gives no wrong answer") {
  const std::string first = kLines;
  // Equal lines would be answered from memory.
  const std::string rest =
      "{\"prompt\": \"7 * 8 =\", \"max_tokens\": 8}\n{\"prompt\": \"Answer: \", \"max_tokens\": 8, \"logprobs\": 3}\n"
      "{\"prompt\": \"The cat\", \"max_tokens\": 8}\n{\"prompt\": \"Once upon\", \"max_tokens\": 8}\n";
  const std::string expected = stable_output(run_llm_batch({}, first + rest).out);
  struct Attack {
    const char* command;
    bool is_harmful;
    const char* message;
  };
  const Attack attacks[] = {
      {"chmod u+w $F; : >$F", true, "was cut short"},
      {"chmod u+w $F; touch -r $F ref; dd if=/dev/urandom of=$F bs=4096 seek=2 count=500 conv=notrunc; touch -r ref $F",
       true, "its bytes were changed"},
      {"chmod u+w $F; dd if=/dev/zero of=$F bs=1 seek=1000000 count=1 conv=notrunc", true, "its bytes were changed"},
      {"head -c 1000 /dev/urandom >new; mv -f new $F", false, ""},
      {"rm -f $F", false, ""},
  };
  for (const Attack& attack : attacks) {
    CAPTURE(std::string(attack.command));
    const TempDir dir;
    write_file(dir / "first", first);
    write_file(dir / "rest", rest);
    write_file(dir / "in", first + rest);
    const std::string run = kProgram + " -m " + kModel + " --progress none --weight-cache " + dir.path() + "/cache ";
    REQUIRE(run_shell("cd " + dir.path() + " && " + run + "first >/dev/null").exit_code == 0);
    const std::string file = files_in(dir / "cache").at(0);
    let_rest(file);
    const bool is_mapped = change_times_at(file) == ChangeTimes::kAtOnce;  // else it is copied
    const ProcessResult result = run_shell(
        "cd " + dir.path() + "; F=" + file + "; (cat first; i=0; until [ \"$(wc -l <out.partial)\" = 2 ] || " +
        "[ $i = 3000 ]; do i=$((i+1)); sleep 0.02; done; " + attack.command + "; cat rest) 2>/dev/null | " + run +
        "-o out");
    INFO(result.err);
    const bool is_refused = attack.is_harmful && is_mapped;
    CHECK(result.exit_code == (is_refused ? 4 : 0));
    if (is_refused) {
      CHECK(result.err.find("weight cache: " + file + ": " + attack.message) != std::string::npos);
      CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 2);  // and the final line
      const std::string kept = stable_output(read_file(dir / "out.partial"));
      CHECK(std::count(kept.begin(), kept.end(), '\n') == 2);
      CHECK(expected.starts_with(kept));
    }
    const ProcessResult again = run_shell("cd " + dir.path() + " && " + run + "in -o out");
    CHECK_MESSAGE(again.exit_code == 0, again.err);
    CHECK(stable_output(read_file(dir / "out")) == expected);
  }
}

TEST_CASE("random weights are not kept") {
  const TempDir dir;
  const ProcessResult result = run_llm_batch({"--load-format", "dummy", "--weight-cache", dir.path()}, kLines);
  CHECK(result.exit_code == 4);
  CHECK(result.err.find("weight-cache") != std::string::npos);
  CHECK(files_in(dir.path()).empty());
}

}  // namespace llmb::test
