// `--autotune`: tries settings on the user's lines, keeps the best for this model and machine, and changes no answer.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

std::string make_rows(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines += R"({"prompt":"Once upon a time there were )" + std::to_string(i) + R"( cats.","max_tokens":)" +
             std::to_string(1 + i % 9) + ",\"temperature\":0.8}\n";
  return lines;
}

ProcessResult run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {kProgram, "-m", kModel});
  return run_process(arguments);
}

std::string kept_file(const std::string& cache) {
  for (const auto& entry : std::filesystem::directory_iterator(cache))
    if (entry.path().string().ends_with(".tuned.json")) return entry.path().string();
  return "";
}

bool says_tuned(const ProcessResult& result) { return result.err.find("as --autotune found them") != std::string::npos; }

}  // namespace

TEST_CASE("what is found is kept and used by later runs, where no flag says otherwise; records stay the same") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), cache = dir.file("cache"), out = dir.file("out.jsonl");
  write_file(in, make_rows(20));
  const ProcessResult before = run({in, "--weight-cache", cache});
  REQUIRE_MESSAGE(before.exit_code == 0, before.err);
  CHECK_FALSE(says_tuned(before));
  const ProcessResult tuned = run({in, "--weight-cache", cache, "--autotune", "-o", out});
  REQUIRE_MESSAGE(tuned.exit_code == 0, tuned.err);
  CHECK(tuned.out.starts_with("max-num-seqs max-num-batched-tokens block-size threads"));
  CHECK(std::count(tuned.out.begin(), tuned.out.end(), '\n') >= 6);
  CHECK(tuned.err.find("differed") == std::string::npos);
  CHECK_FALSE(std::filesystem::exists(out));
  const std::string kept = kept_file(cache);
  CHECK(tuned.out.find("kept in " + kept + ": --max-num-seqs ") != std::string::npos);

  // Others than those that a run would have on its own.
  nlohmann::json settings = nlohmann::json::parse(read_file(kept));
  settings.update({{"max_num_seqs", 7}, {"max_num_batched_tokens", 96}, {"block_size", 32}, {"threads", 1}});
  write_file(kept, settings.dump());
  const ProcessResult after = run({in, "--weight-cache", cache});
  CHECK(says_tuned(after));
  CHECK(after.err.find("max-num-seqs 7, max-num-batched-tokens 96") != std::string::npos);
  CHECK(after.err.find("blocks of 32") != std::string::npos);
  CHECK(stable_output(after.out) == stable_output(before.out));
  const ProcessResult asked = run({in, "--weight-cache", cache, "--max-num-seqs", "5", "--block-size", "8"});
  CHECK(asked.err.find("max-num-seqs 5, max-num-batched-tokens 96") != std::string::npos);
  CHECK(asked.err.find("blocks of 8") != std::string::npos);
  CHECK(stable_output(asked.out) == stable_output(before.out));
  const ProcessResult all = run({in, "--weight-cache", cache, "--max-num-seqs", "5", "--block-size", "8", "--threads", "1",
                                 "--max-num-batched-tokens", "64"});
  CHECK_FALSE(says_tuned(all));
}

TEST_CASE("what another machine found, or what cannot be read, is not used") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), cache = dir.file("cache");
  write_file(in, make_rows(8));
  REQUIRE(run({in, "--weight-cache", cache, "--autotune"}).exit_code == 0);
  const std::string kept = kept_file(cache);
  nlohmann::json settings = nlohmann::json::parse(read_file(kept));
  CHECK(says_tuned(run({in, "--weight-cache", cache})));
  nlohmann::json other = settings;
  other["machine"] = "another one";
  nlohmann::json out_of_range = settings;
  out_of_range["block_size"] = 17;
  for (const std::string& text : {other.dump(), out_of_range.dump(), std::string("{\"machine\":"), std::string("[]")}) {
    CAPTURE(text);
    write_file(kept, text);
    const ProcessResult result = run({in, "--weight-cache", cache});
    CHECK(result.exit_code == 0);
    CHECK_FALSE(says_tuned(result));
  }
}

TEST_CASE("settings that flags name are not tried, and lines that are errors stay errors") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl");
  write_file(in, make_rows(8) + "{\"prompt\":5}\n");
  const ProcessResult result = run({in, "--weight-cache", dir.file("cache"), "--autotune", "--max-num-seqs", "3",
                                    "--max-num-batched-tokens", "128", "--block-size", "16", "--threads", "1"});
  CHECK_MESSAGE(result.exit_code == 0, result.err);
  CHECK(std::count(result.out.begin(), result.out.end(), '\n') == 3);  // heading, one run, what is kept
  CHECK(result.out.find("--max-num-seqs 3 --max-num-batched-tokens 128 --block-size 16 --threads 1\n") != std::string::npos);
}

TEST_CASE("it needs files and a place for what it finds") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl");
  write_file(in, make_rows(3));
  CHECK(run({in, "--autotune"}).exit_code == 2);
  CHECK(run({in, "--autotune", "--weight-cache", dir.file("cache"), "--dry-run"}).exit_code == 2);
  CHECK(run({"-", "--autotune", "--weight-cache", dir.file("cache")}).exit_code == 2);
  CHECK(run({dir.file("none"), "--autotune", "--weight-cache", dir.file("cache")}).exit_code == 5);
  write_file(in, "\n");
  CHECK(run({in, "--autotune", "--weight-cache", dir.file("cache")}).exit_code == 5);
}

}  // namespace llmb::test
