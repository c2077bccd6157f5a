// The order in which rows are computed changes no byte of any record: every schedule, memory for planning, pool and order
// of the output, with rows that are equal, and where a run is killed and continued.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "tests/e2e/run.h"
#include "tests/support/killed_process.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace {

// Rows of three documents one after the other, short and long answers, greedy and drawn; each fifth row is there twice,
// under another id, and some lines are bad.
std::string make_rows(int num_lines) {
  const std::vector<std::string> documents = {"Once upon a time there was a little girl who lived near a big forest.",
                                              "Tom and Lily were friends. One day they went to the park.",
                                              "The old grey cat sat on the roof and looked at the birds."};
  std::string lines;
  for (int i = 0; i < num_lines; ++i) {
    const int row = i % 5 == 4 ? i - 4 : i;
    nlohmann::json line;
    line["id"] = i;
    line["prompt"] = documents[row % 3] + " Then " + std::to_string(row);
    line["max_tokens"] = row % 10 == 0 ? 40 : 2 + row % 7;
    if (row % 3 == 1) line["temperature"] = 0.9;
    if (row % 6 == 1) line["seed"] = row;
    if (i % 17 == 16) line["prompt"] = 5;
    lines += line.dump() + "\n";
  }
  return lines;
}

}  // namespace

TEST_CASE("the same records whatever the schedule, the memory for it, the pool and the order of the output") {
  const std::string input = make_rows(60);
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl");
  write_file(in, input);
  // Error records name the input.
  const std::string of_pipe = stable_output(run_llm_batch({"--schedule", "file"}, input).out);
  const std::string of_file = stable_output(run_llm_batch({"--schedule", "file", in}).out);
  REQUIRE(parse_lines(of_file).size() == 60);
  for (const std::string schedule : {"auto", "file", "prefix", "longest-first"}) {
    for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
             {"--order", "input"},
             {"--plan-memory", "8K", "--max-num-seqs", "3"},
             {"--num-gpu-blocks-override", "14", "--max-model-len", "128"},
             {"--batching", "static", "--max-num-seqs", "5"}}) {
      CAPTURE(schedule);
      CAPTURE(more[0]);
      const std::vector<std::string> arguments = with({"--schedule", schedule}, more);
      CHECK(stable_output(run_llm_batch(arguments, input).out) == of_pipe);
      CHECK(stable_output(run_llm_batch(with(arguments, {in})).out) == of_file);
    }
  }
}

TEST_CASE("equal rows are computed once") {
  const TemporaryDirectory dir;
  std::string input;
  for (int i = 0; i < 40; ++i)
    input += R"({"id":)" + std::to_string(i) + R"(,"prompt":"Once upon a time","max_tokens":20})" + "\n";
  for (const bool is_planned : {true, false}) {
    const std::string metrics = dir.file(is_planned ? "planned" : "file");
    const ProcessResult run = run_llm_batch(
        {"--temperature", "0", "--schedule", is_planned ? "auto" : "file", "--metrics", metrics}, input);
    REQUIRE_MESSAGE(run.exit_code == 0, run.err);
    CHECK(parse_lines(run.out).size() == 40);
    const nlohmann::json line = nlohmann::json::parse(read_file(metrics));
    CHECK((line["num_equal_rows"] > 0) == is_planned);
    CHECK(line["completed"] == 40);
    CHECK(line["prompt_tokens_asked"].get<int64_t>() * 40 ==
          line["total_input_tokens"].get<int64_t>() * (40 - line["num_equal_rows"].get<int64_t>()));
  }
}

TEST_CASE("long answers go first, and rows of one document follow each other") {
  std::string input;
  const TemporaryDirectory dir;
  for (int i = 0; i < 30; ++i)
    input += R"({"prompt_token_ids":[)" + std::to_string(1 + i % 3) + ",7,7,7,7,7,7,7," + std::to_string(i + 10) +
             R"(],"max_tokens":)" + std::to_string(i % 3 == 2 ? 20 : 5) + R"(,"ignore_eos":true})" + "\n";
  write_file(dir.file("in.jsonl"), input);
  const ProcessResult run =
      run_llm_batch({"--batching", "none", "--schedule", "auto", dir.file("in.jsonl")});
  REQUIRE_MESSAGE(run.exit_code == 0, run.err);
  std::vector<int64_t> documents;
  for (const auto& record : parse_lines(run.out)) documents.push_back(record["index"].get<int64_t>() % 3);
  REQUIRE(documents.size() == 30);
  for (int i = 0; i < 30; ++i) CHECK(documents[i] == (i < 10 ? 2 : i < 20 ? 0 : 1));
}

namespace {

// Short answers first; each record repeats some text of its line.
std::string growing_rows(int count, size_t text_bytes) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines += R"({"prompt_token_ids":[)" + std::to_string(1 + i % 97) + "," + std::to_string(1 + i / 97) +
             R"(],"ignore_eos":true,"max_tokens":)" + std::to_string(1 + i * 20 / count) + R"(,"text":")" +
             std::string(text_bytes, static_cast<char>('a' + i % 26)) + "\"}\n";
  return lines;
}

ProcessResult run_in_input_order(const std::string& in, const std::string& temporary, std::vector<std::string> more) {
  std::vector<std::string> argv = {"env",        "TMPDIR=" + temporary, kProgram, "-m",     kModel,     "--progress", "none",
                                   "--device",   "ledger",              "--order", "input", "--schedule", "longest-first",
                                   "--keep",     "text",                in};
  argv.insert(argv.end(), more.begin(), more.end());
  return run_process(argv, "");
}

std::vector<int64_t> indices(const std::string& text) {
  std::vector<int64_t> indices;
  for (const auto& record : parse_lines(text)) indices.push_back(record["index"]);
  return indices;
}

}  // namespace

TEST_CASE("records in input order of a file whose long answers come first, in a file and in a pipe") {
  constexpr int kRows = 6000;
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");
  write_file(in, growing_rows(kRows, 10));
  const ProcessResult planned = run_in_input_order(in, dir.path(), {"--max-num-seqs", "8"});
  REQUIRE_MESSAGE(planned.exit_code == 0, planned.err);
  const ProcessResult to_file = run_in_input_order(in, dir.path(), {"--max-num-seqs", "8", "-o", out});
  REQUIRE_MESSAGE(to_file.exit_code == 0, to_file.err);
  const std::vector<int64_t> found = indices(planned.out);
  REQUIRE(found.size() == kRows);
  for (int i = 0; i < kRows; ++i) CHECK(found[i] == i);
  CHECK(indices(read_file(out)) == found);
  CHECK(stable_output(planned.out) == stable_output(read_file(out)));
}

TEST_CASE("records that wait take bounded memory; without room on disk what is computed is written, and the run says so") {
  constexpr int kRows = 800;
  constexpr size_t kText = 64 << 10;  // more than the memory for records that wait
  const TemporaryDirectory dir, temporary;
  const std::string in = dir.file("in.jsonl");
  write_file(in, growing_rows(kRows, kText));
  const ProcessResult run = run_in_input_order(in, temporary.path(), {});
  REQUIRE_MESSAGE(run.exit_code == 0, run.err);
  const std::vector<int64_t> found = indices(run.out);
  REQUIRE(found.size() == kRows);
  for (int i = 0; i < kRows; ++i) CHECK(found[i] == i);
  CHECK(std::filesystem::is_empty(temporary.path()));
  const ProcessResult without = run_in_input_order(in, temporary.file("nothing"), {});
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  // Computing begins before so slow a reader has found the rows with long answers: fewer records wait.
  if (without.exit_code == 0) return;
#endif
  CHECK(without.exit_code == 6);
  CHECK_MESSAGE(without.err.find("set TMPDIR") != std::string::npos, without.err);
  CHECK_MESSAGE(without.err.find("--order") != std::string::npos, without.err);
  CHECK(without.out.size() > size_t{32} << 20);
  const std::vector<int64_t> written = indices(without.out);
  CHECK(std::is_sorted(written.begin(), written.end() - 1));
}

TEST_CASE("a planned run that is killed and continued under another schedule gives the same records") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");
  write_file(in, make_rows(60));
  const ProcessResult plain = run_llm_batch({"--schedule", "file", in});
  REQUIRE_MESSAGE(plain.exit_code == 3, plain.err);
  const std::vector<std::string> schedules = {"auto", "prefix", "longest-first", "file"};
  int num_continued = 0;
  StoppedProcess run;
  for (int attempt = 1; run.exit_code != 3 && run.exit_code != 0; ++attempt) {  // 0: it was complete before
    StopPlan plan;
    plan.when = can_count_file_calls() ? StopPlan::When::kAtFileCall : StopPlan::When::kAfterTime;
    plan.file_call = 15 * attempt;
    plan.after_ms = 50 * attempt;
    run = run_and_stop({kProgram, "-m", kModel, "--progress", "none", "--max-num-seqs", "4", "--schedule",
                        schedules[attempt % schedules.size()], in, "-o", out},
                       "/dev/null", dir.file("err"), plan);
    REQUIRE_MESSAGE((run.exit_code == 3 || run.exit_code == 0 || run.exit_code == 137), run.err);
    num_continued += run.exit_code == 137 && std::filesystem::exists(out + ".partial");
  }
  if (can_count_file_calls()) CHECK(num_continued > 0);
  CHECK(stable_output(read_file(out)) == stable_output(plain.out));
}

TEST_CASE("in input order, too: killed runs leave records in any order, and the last one sorts them") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");
  write_file(in, make_rows(60));
  const ProcessResult plain = run_llm_batch({"--schedule", "file", in});
  StoppedProcess run;
  for (int attempt = 1; run.exit_code != 3; ++attempt) {
    StopPlan plan;
    plan.when = can_count_file_calls() ? StopPlan::When::kAtFileCall : StopPlan::When::kAfterTime;
    plan.file_call = 15 * attempt;
    plan.after_ms = 50 * attempt;
    run = run_and_stop({kProgram, "-m", kModel, "--progress", "none", "--max-num-seqs", "4", "--order", "input", in, "-o", out},
                       "/dev/null", dir.file("err"), plan);
    REQUIRE_MESSAGE((run.exit_code == 3 || run.exit_code == 137), run.err);
  }
  const std::vector<int64_t> found = indices(read_file(out));
  CHECK(std::is_sorted(found.begin(), found.end()));
  CHECK(stable_output(read_file(out)) == stable_output(plain.out));
}

}  // namespace llmb::test
