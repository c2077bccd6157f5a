// -m and --tokenizer with names from a Hugging Face cache.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

const std::string kLine = R"({"prompt":"Once upon a time","max_tokens":5,"temperature":0})"
                          "\n";
const std::string kCommit(40, 'c');

// HF_HOME with the bundled model as Test/Bundled.
void add_bundled(const TemporaryDirectory& home) {
  const fs::path repo = home.file("hub/models--Test--Bundled");
  fs::create_directories(repo / "refs");
  fs::create_directories(repo / "snapshots" / kCommit);
  write_file((repo / "refs/main").string(), kCommit);
  for (const auto& entry : fs::directory_iterator(kModel))
    fs::create_symlink(entry.path(), repo / "snapshots" / kCommit / entry.path().filename());
}

ProcessResult run_from(const TemporaryDirectory& home, std::vector<std::string> arguments,
                       const std::string& input = kLine) {
  std::vector<std::string> argv = {
      "env", "-u", "HF_HUB_CACHE", "-u", "HUGGINGFACE_HUB_CACHE", "HF_HOME=" + home.path(), kProgram};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run_process(argv, input);
}

}  // namespace

TEST_CASE("a cached model by its name answers like its directory, and the run says which commit it is") {
  const TemporaryDirectory home;
  add_bundled(home);
  const ProcessResult named = run_from(home, {"-m", "Test/Bundled", "--metrics", home.file("m.jsonl")});
  REQUIRE_MESSAGE(named.exit_code == 0, named.err);
  CHECK(stable_output(named.out) == stable_output(run_llm_batch({}, kLine).out));
  CHECK(named.err.find("Test/Bundled at cccccccccccc: llama") != std::string::npos);
  CHECK(parse_lines(read_file(home.file("m.jsonl"))).at(0)["model_id"] == "Test/Bundled");

  const ProcessResult revision = run_from(home, {"-m", "Test/Bundled", "--revision", kCommit, "--dry-run"});
  CHECK(revision.exit_code == 0);
  const ProcessResult tokenizer =
      run_from(home, {"-m", kModel, "--tokenizer", "Test/Bundled", "--tokenizer-revision", "main", "--dry-run"});
  CHECK(tokenizer.exit_code == 0);
}

TEST_CASE("a name that is not in the cache is refused with 4 and one line before the report") {
  const TemporaryDirectory home;
  add_bundled(home);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"-m", "Qwen/Qwen2.5-7B-Instruct"}, "download it with: hf download Qwen/Qwen2.5-7B-Instruct\n"},
      {{"-m", "Test/Bundled", "--revision", "v2"}, "hf download Test/Bundled --revision v2\n"},
      {{"-m", kModel, "--tokenizer", "Test/None"}, "--tokenizer: Test/None: no such directory or file"},
  };
  for (const auto& [arguments, part] : cases) {
    const ProcessResult result = run_from(home, arguments);
    INFO(result.err);
    CHECK(result.exit_code == 4);
    CHECK(result.err.find(part) != std::string::npos);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 2);
    CHECK(result.out == "");
  }
  CHECK(run_from(home, {"-m", kModel, "--revision", "main"}).exit_code == 2);
  CHECK(run_from(home, {"-m", kModel, "--tokenizer-revision", "main"}).exit_code == 2);
}

}  // namespace llmb::test
