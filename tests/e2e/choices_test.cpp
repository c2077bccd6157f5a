// n and best_of through the program: choice i is the same whatever n is and whatever runs beside it.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "tests/e2e/killed_runs.h"
#include "tests/e2e/run.h"
#include "tests/support/killed_process.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace {

const std::string kPrompt = "Once upon a time there was a little girl who lived near a big forest with her old cat.";

nlohmann::json line_for(int32_t n, int id = 0) {
  return {{"id", id},
          {"prompt", kPrompt.substr(0, 20 + id * 9 % 60)},
          {"n", n},
          {"seed", id},
          {"temperature", 1.1},
          {"max_tokens", 4 + id * 5 % 25}};
}

nlohmann::json beam_line(int id) {
  nlohmann::json line = line_for(1 + id % 5, id);
  line.erase("temperature");
  line.update({{"use_beam_search", true}, {"beam_width", 5}, {"length_penalty", 0.6}, {"min_tokens", id % 4}});
  if (id % 4 == 0) line["early_stopping"] = "never";
  return line;
}

// The record's answers, also of one that asked for one.
nlohmann::json outputs_of(const nlohmann::json& record) {
  if (record.contains("outputs")) return record["outputs"];
  nlohmann::json output = {{"index", 0}};
  for (const char* field : {"text", "finish_reason", "stop_reason", "token_ids", "logprobs"})
    if (record.contains(field)) output[field] = record[field];
  return nlohmann::json::array({output});
}

// Lines with 1 to 9 choices, with all that a choice can show.
std::string mixed_lines() {
  std::string lines;
  for (int i = 0; i < 24; ++i) {
    nlohmann::json line = line_for(1 + i * 4 % 9, i);
    if (i % 5 == 1) line["best_of"] = 9;
    if (i % 5 == 3) line["temperature"] = 0;
    if (i % 4 == 2) line["logprobs"] = 1;
    if (i % 6 == 4) line["repetition_penalty"] = 1.2;
    if (i % 3 == 0) line["stop"] = {"was", " cat"};
    if (i % 6 == 2) line = beam_line(i);
    if (i % 7 == 5) {
      line.erase("id");
      line = {{"custom_id", i}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", line}};
    }
    lines += line.dump() + "\n";
  }
  return lines;
}

uintmax_t file_size(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

}  // namespace

TEST_CASE("choice i is the same for every n above it, and choice 0 the answer of a line that asks for one") {
  nlohmann::json line = line_for(16, 3);
  line["return_token_ids"] = true;
  const nlohmann::json most = outputs_of(answer(line.dump()));
  REQUIRE(most.size() == 16);
  std::set<std::string> texts;
  for (int i = 0; i < 16; ++i) {
    CHECK(most[i]["index"] == i);
    texts.insert(most[i]["text"].get<std::string>());
  }
  CHECK(texts.size() > 8);
  for (int n = 1; n < 16; ++n) {
    line["n"] = n;
    const nlohmann::json record = answer(line.dump(), {"--max-num-seqs", std::to_string(1 + n % 5)});
    CHECK(record.contains("text") == (n == 1));
    const nlohmann::json outputs = outputs_of(record);
    REQUIRE(outputs.size() == static_cast<size_t>(n));
    size_t num_tokens = 0;
    for (int i = 0; i < n; ++i) {
      CHECK(outputs[i] == most[i]);
      num_tokens += outputs[i]["token_ids"].size();
    }
    CHECK(record["usage"]["completion_tokens"] == num_tokens);
  }
  line.erase("n");
  CHECK(outputs_of(answer(line.dump()))[0] == most[0]);
}

TEST_CASE("best_of ranks by the mean log-probability; greedy answers are equal; flags do for data what fields do") {
  nlohmann::json line = line_for(7, 4);
  line["logprobs"] = 0;
  std::vector<std::pair<double, nlohmann::json>> ranked;
  size_t num_tokens = 0;
  for (const nlohmann::json& output : outputs_of(answer(line.dump()))) {
    double sum = 0;
    for (const auto& token : output["logprobs"]) sum += token["logprob"].get<double>();
    num_tokens += output["logprobs"].size();
    ranked.emplace_back(-sum / static_cast<double>(output["logprobs"].size()), output);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  line.erase("logprobs");
  line["best_of"] = 7;
  for (int n = 1; n <= 7; n += 2) {
    line["n"] = n;
    const nlohmann::json record = answer(line.dump());
    CHECK(record["usage"]["completion_tokens"] == num_tokens);
    const nlohmann::json best = outputs_of(record);
    REQUIRE(best.size() == static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      CHECK(best[i]["text"] == ranked[i].second["text"]);
      CHECK(!best[i].contains("logprobs"));
    }
  }
  const nlohmann::json greedy = answer(R"({"prompt":"Once","n":3,"temperature":0,"max_tokens":7})");
  for (const nlohmann::json& output : outputs_of(greedy)) CHECK(output["text"] == greedy["outputs"][0]["text"]);
  CHECK(greedy["usage"]["completion_tokens"] == 21);
  const ProcessResult text = run_llm_batch(
      {"--input-format", "text", "--temperature", "1", "--n", "2", "--best-of", "5", "--max-tokens", "9"}, "Once\n");
  CHECK(parse_lines(text.out)[0]["outputs"] ==
        answer(R"({"prompt":"Once","temperature":1,"n":2,"best_of":5,"max_tokens":9})")["outputs"]);
}

TEST_CASE("lines with choices: the same bytes in every mode and pool, cached or not, and where a run is continued") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), mixed_lines());
  const ProcessResult plain = run_llm_batch({dir.file("in.jsonl"), "--max-model-len", "96", "--batching", "none",
                                             "--no-enable-prefix-caching", "--threads", "1"});
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const std::string expected = stable_output(plain.out);
  const std::vector<std::vector<std::string>> schedules = {
      {},
      {"--no-enable-prefix-caching"},
      {"--max-num-seqs", "3", "--block-size", "8"},
      {"--max-num-batched-tokens", "9"},
      {"--batching", "static", "--max-num-seqs", "7"},
      {"--batching", "dynamic", "--max-num-seqs", "7", "--batch-window-ms", "1"},
      {"--num-gpu-blocks-override", "9"},  // forces preemption and eviction
      {"--num-gpu-blocks-override", "9", "--no-enable-prefix-caching"},
  };
  for (std::vector<std::string> arguments : schedules) {
    std::string name;
    for (const std::string& word : arguments) name += word + " ";
    CAPTURE(name);
    arguments.insert(arguments.end(), {dir.file("in.jsonl"), "--max-model-len", "96"});
    const ProcessResult result = run_llm_batch(arguments);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    CHECK(stable_output(result.out) == expected);
  }
  const std::string out = dir.file("out.jsonl");
  int num_continued = 0;
  StoppedProcess run;
  for (int attempt = 1; run.exit_code != 0; ++attempt) {
    const StopPlan plan = stop_of_attempt(attempt);
    run = run_and_stop({kProgram, "-m", kModel, "--progress", "none", "--max-num-seqs", "4", "--max-model-len", "96",
                        dir.file("in.jsonl"), "-o", out},
                       "/dev/null", dir.file("err"), plan);
    REQUIRE_MESSAGE((run.exit_code == 0 || run.exit_code == 137), run.err);
    num_continued += run.exit_code == 137 && file_size(out + ".partial") > 0;
  }
  if (can_count_file_calls()) CHECK(num_continued > 0);
  CHECK(stable_output(read_file(out)) == expected);
}

TEST_CASE("beams: n of them are answers, best first, and one beam is greedy") {
  nlohmann::json line = beam_line(4);
  line["return_token_ids"] = true;
  const nlohmann::json all = answer(line.dump())["outputs"];
  REQUIRE(all.size() == 5);
  std::set<std::string> distinct;
  for (const nlohmann::json& output : all) distinct.insert(output["token_ids"].dump());
  CHECK(distinct.size() == 5);
  for (int n = 1; n < 5; ++n) {
    line["n"] = n;
    const nlohmann::json outputs = outputs_of(answer(line.dump()));
    REQUIRE(outputs.size() == static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) CHECK(outputs[i] == all[i]);
  }
  const nlohmann::json greedy = answer(R"({"prompt":"Once","temperature":0,"max_tokens":30})");
  const nlohmann::json one = answer(R"({"prompt":"Once","use_beam_search":true,"max_tokens":30})");
  CHECK(one["text"] == greedy["text"]);
  CHECK(one["finish_reason"] == greedy["finish_reason"]);
  CHECK(one["usage"] == greedy["usage"]);
}

TEST_CASE("n and best_of that cannot be are refused by name, and a line of the wrong kind costs itself alone") {
  const ProcessResult result = run_llm_batch({"--max-tokens", "2"}, R"({"prompt":"a","n":257})"
                                                                    "\n"
                                                                    R"({"prompt":"a","n":3,"best_of":2})"
                                                                    "\n"
                                                                    R"({"prompt":"a","n":2})"
                                                                    "\n");
  CHECK(result.exit_code == 3);
  auto records = parse_lines(result.out);
  REQUIRE(records.size() == 3);
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a["index"] < b["index"]; });
  CHECK(records[0]["error"]["param"] == "n");
  CHECK(records[1]["error"]["param"] == "best_of");
  CHECK(records[2]["outputs"].size() == 2);
  CHECK(run_llm_batch({"--n", "0"}).exit_code == 2);
  CHECK(run_llm_batch({"--n", "3", "--best-of", "2"}).exit_code == 2);
}

}  // namespace llmb::test
