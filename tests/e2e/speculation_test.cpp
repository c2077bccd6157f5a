// Whoever guesses tokens: the built program gives the same bytes, also where a job is killed and continued with another
// drafter; and what cannot guess is refused in one line.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/run.h"
#include "tests/support/all_schedules.h"
#include "tests/support/killed_process.h"
#include "tests/support/medusa_heads.h"

namespace llmb::test {

namespace {

using Json = nlohmann::json;

const std::string kDraft = "draft:" + source_dir() + "/data/draft-model";
const std::string kMedusa = "medusa:" + bundled_medusa_heads();

std::string lines() {
  std::string text;
  for (int i = 0; i < 24; ++i) {
    Json line = {{"id", i}, {"seed", i}, {"max_tokens", 60}, {"temperature", i % 2 == 0 ? 0.0 : 0.8}};
    if (i % 4 == 0) line["prompt"] = "Once upon a time";
    else line["messages"] = {{{"role", "user"}, {"content", "Tell me a story about fox number " + std::to_string(i)}}};
    if (i % 5 == 1) line["frequency_penalty"] = 0.4;
    if (i % 5 == 2) line["logprobs"] = 2;
    if (i % 6 == 3) line["stop"] = {"the"};
    if (i % 8 == 5) line["n"] = 2;
    if (i % 7 == 4) line["min_tokens"] = 30;
    text += line.dump() + "\n";
  }
  return text;
}

std::vector<std::vector<std::string>> drafters() {
  return {{"--speculative", "lookup"},
          {"--speculative", "lookup,tree", "--num-speculative-tokens", "3"},
          {"--speculative", "lookahead"},
          {"--speculative", "layers:2"},
          {"--speculative", "layers:3,tree", "--num-speculative-tokens", "5"},
          {"--speculative", kDraft},
          {"--speculative", kDraft + ",lookup,tree"},
          {"--speculative", kMedusa},
          {"--speculative", kMedusa + ",lookup", "--num-speculative-tokens", "3"},
          {"--speculative", kDraft + ",lookup,lookahead,layers:1," + kMedusa}};
}

// In a summary.
int32_t num_times_tokens_a_step(const std::string& err) {
  const std::string words = "tokens of a sequence in each";
  int32_t count = 0;
  for (size_t at = err.find(words); at != std::string::npos; at = err.find(words, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("answers have the same bytes whoever guesses, in any batch, preempted or not") {
  const std::string input = lines();
  const ProcessResult plain = run_llm_batch({"--batching", "none", "--threads", "1", "--speculative", "none"}, input);
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  int64_t num_drafted = 0, num_preemptions = 0;
  const std::vector<std::vector<std::string>> schedules = {
      {"--max-num-seqs", "1"}, {"--max-num-seqs", "4"}, {"--max-model-len", "160", "--num-gpu-blocks-override", "24"}};
  const size_t num_schedules = runs_all_schedules() ? schedules.size() : 1;
  for (size_t i = 0; i < drafters().size(); ++i)
    for (size_t schedule = i % 3, end = schedule + num_schedules; schedule < end; ++schedule) {
      CAPTURE(drafters()[i][1]);
      CAPTURE(schedules[schedule % 3][1]);
      const ProcessResult result = run_llm_batch(with(drafters()[i], schedules[schedule % 3]), input);
      REQUIRE_MESSAGE(result.exit_code == 0, result.err);
      CHECK(stable_output(result.out) == stable_output(plain.out));
      for (const Json& record : parse_lines(result.out)) {
        num_preemptions += record["metrics"]["num_preemptions"].get<int>();
        num_drafted += record["metrics"].value("drafted_tokens", 0);
      }
    }
  CHECK(num_drafted > 50);
  CHECK(num_preemptions > 0);
}

TEST_CASE("lookup guesses on the CPU unless it is told not to; where nothing computes, nobody does") {
  const TemporaryDirectory dir;
  const auto summary = [&](const std::vector<std::string>& arguments) {
    const ProcessResult result = run_process(
        with({kProgram, "-m", kModel, "--metrics", dir.file("metrics.jsonl")}, arguments), lines());
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    CHECK(num_times_tokens_a_step(result.err) <= 1);
    return parse_lines(read_file(dir.file("metrics.jsonl"))).back();
  };
  for (const auto& asked : std::vector<std::vector<std::string>>{{}, {"--speculative", "auto"}}) {
    const Json looked_up = summary(asked);
    REQUIRE(looked_up.contains("speculation"));
    CHECK(looked_up["speculation"].size() == 1);
    CHECK(looked_up["speculation"].contains("lookup"));
  }
  CHECK(!summary({"--speculative", "none"}).contains("speculation"));
  CHECK(!summary({"--device", "ledger"}).contains("speculation"));
  CHECK(summary({"--device", "ledger", "--speculative", "lookup"}).contains("speculation"));
}

TEST_CASE("the run's metrics add up to the records', by drafter, with the time saved as predicted and as measured") {
  std::map<std::string, int64_t> accepted;  // who drafts, and so who is right, goes by the clock: in some run each is
  const auto is_seen = [&] { return accepted["lookup"] > 0 && accepted["draft"] > 0; };
  for (int run_number = 0; run_number < 2 || (run_number < 10 && !is_seen()); ++run_number) {
    const std::string workers = run_number % 2 == 0 ? "1" : "2";
    const TemporaryDirectory dir;
    const ProcessResult result = run_process({kProgram, "-m", kModel, "--speculative", "lookup," + kDraft, "--max-num-seqs",
                                              "1", "--workers", workers, "--metrics", dir.file("metrics.jsonl")}, lines());
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    CHECK(num_times_tokens_a_step(result.err) == 3);  // of each drafter, and of both
    std::map<std::string, std::map<std::string, int64_t>> sums;  // of records, by drafter
    for (const Json& record : parse_lines(result.out)) {
      const Json& metrics = record["metrics"];
      std::map<std::string, int64_t> all;
      const Json by_drafter = metrics.value("speculation", Json::object());
      for (const auto& [name, by] : by_drafter.items()) {
        CHECK(by["tokens_per_step"].get<double>() >= 1);
        for (const char* count : {"drafted_tokens", "accepted_tokens", "steps"})
          sums[name][count] += by[count].get<int64_t>(), all[count] += by[count].get<int64_t>();
      }
      for (const char* count : {"drafted_tokens", "accepted_tokens"})
        CHECK(metrics[count].get<int64_t>() == all[count]);
    }
    const Json run = parse_lines(read_file(dir.file("metrics.jsonl"))).back();
    REQUIRE(run["speculation"].size() == 2);
    for (const char* name : {"lookup", "draft"}) {
      for (const char* count : {"drafted_tokens", "accepted_tokens", "steps"})
        CHECK(sums[name][count] == run["speculation"][name][count].get<int64_t>());
      accepted[name] += sums[name]["accepted_tokens"];
    }
    CHECK(run["speculation_steps"].get<int64_t>() > 0);
    CHECK(run["speculation_tokens_per_step"].get<double>() >= 1);
    CHECK(run["speculation_saved_s"].is_number());
    CHECK(run["speculation_predicted_saved_s"].is_number());
  }
  CHECK(is_seen());
}

TEST_CASE("one KV cache is for the model and its draft, and the run says so; over ranks two are divided") {
  const TemporaryDirectory dir;
  std::string input;
  for (int i = 0; i < 12; ++i)
    input += Json{{"prompt", "Once upon a time"}, {"max_tokens", 120}, {"temperature", 0.8}, {"seed", i}}.dump() + "\n";
  std::string err;
  const auto answers = [&](const std::vector<std::string>& arguments) {
    const ProcessResult result = run_process(
        with({kProgram, "-m", kModel, "--max-model-len", "160", "--metrics", dir.file("m")}, arguments), input);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    err = result.err;
    return stable_output(result.out);
  };
  const auto says = [&](const std::string& words) { return err.find(words) != std::string::npos; };
  const std::string plain = answers({"--speculative", "none", "--kv-cache-memory-bytes", "320K"});
  CHECK(says("room for 320 tokens"));
  // A token takes 1 KiB, one of the draft's 256 bytes. Who drafts goes by the clock: in some run somebody does.
  int64_t most = 0;
  for (int attempt = 0; attempt < 10 && most == 0; ++attempt) {
    CHECK(answers({"--speculative", kDraft, "--kv-cache-memory-bytes", "320K", "--max-num-seqs", "2"}) == plain);
    CHECK(says("room for 320 tokens"));  // all of it, for rows that are not drafted for
    CHECK(says("keys and values lie in the KV cache, 64 tokens in a block"));
    const Json metrics = parse_lines(read_file(dir.file("m"))).back();
    most = metrics["speculation_kv_blocks_peak"].get<int64_t>();
    CHECK(most < 20);
    CHECK(metrics["speculation_kv_blocks_taken_back"].get<int64_t>() >= 0);
    CHECK((most > 0) == says(" of 20 blocks of the KV cache"));
  }
  CHECK(most > 0);
  CHECK(answers({"--speculative", kDraft, "--kv-cache-memory-bytes", "320K", "--pipeline-parallel-size", "2"}) == plain);
  CHECK(says("room for 256 tokens"));
  CHECK(says("keys and values lie beside the KV cache, 0.1 MiB at most"));
}

TEST_CASE("a job that is killed again and again, each time continued with another drafter") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), lines());
  const auto arguments = [&](const std::string& output) {
    return std::vector<std::string>{dir.file("in.jsonl"), "--max-num-seqs", "4", "-o", dir.file(output)};
  };
  REQUIRE(run_llm_batch(arguments("whole.jsonl")).exit_code == 0);
  StoppedProcess run;
  int num_stops = 0;
  for (int attempt = 0; run.exit_code != 0; ++attempt) {
    std::vector<std::string> argv = {kProgram, "-m", kModel, "--progress", "none"};
    argv = with(with(argv, drafters()[attempt % drafters().size()]), arguments("resumed.jsonl"));
    StopPlan plan;
    plan.when = can_count_file_calls() ? StopPlan::When::kAtFileCall : StopPlan::When::kAfterTime;
    plan.file_call = 10 * (attempt + 1);
    plan.after_ms = 60 * (attempt + 1);
    run = run_and_stop(argv, "/dev/null", dir.file("err"), plan);
    REQUIRE_MESSAGE((run.exit_code == 0 || run.exit_code == 137), run.err);
    num_stops += run.exit_code != 0;
  }
  CHECK(num_stops > 1);
  CHECK(stable_output(read_file(dir.file("resumed.jsonl"))) == stable_output(read_file(dir.file("whole.jsonl"))));
}

TEST_CASE("who cannot guess is refused in one line, before anything runs") {
  const auto refusal = [](const std::string& kind, int num_lines = 1) {
    const ProcessResult result = run_llm_batch({"--speculative", kind}, R"({"prompt":"a"})"
                                                                        "\n");
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == num_lines);
    return result.err;
  };
  CHECK(refusal("layers:4").find("the model has 4 layers") != std::string::npos);
  const std::string expected = "expected none, auto, lookup, draft:MODEL, mtp, eagle:DIR, medusa:DIR, layers:N, "
                               "lookahead or tree";
  for (const char* kind : {"layers:0", "guess"})  // and a line about --help
    CHECK(refusal(kind, 2).find(expected) != std::string::npos);
  CHECK(refusal("draft:" + source_dir() + "/data/fixtures/models/llama-gqa").find("its vocabulary has") !=
        std::string::npos);
  const TemporaryDirectory other;
  for (const char* name : {"config.json", "model.safetensors"})
    write_file(other.file(name), read_file(source_dir() + "/data/draft-model/" + name));
  Json tokenizer = Json::parse(read_file(source_dir() + "/data/draft-model/tokenizer.json"));
  std::swap(tokenizer["model"]["vocab"]["a"], tokenizer["model"]["vocab"]["b"]);
  write_file(other.file("tokenizer.json"), tokenizer.dump());
  CHECK(refusal("draft:" + other.path()).find("its tokenizer is another than the model's") != std::string::npos);
  CHECK(refusal("medusa:" + source_dir() + "/data/fixtures/medusa")
            .find("its heads take hidden states of 32, the model's have 192") != std::string::npos);
  const TemporaryDirectory other_vocabulary;
  write_medusa_heads(other_vocabulary.path(), 2, 192, 1000);
  CHECK(refusal("medusa:" + other_vocabulary.path()).find("its heads' vocabulary has 1000 tokens, the model's 1536") !=
        std::string::npos);
  CHECK(refusal("medusa:/nowhere/at/all").find("/nowhere/at/all") != std::string::npos);
  const TemporaryDirectory pickled;
  write_file(pickled.file("config.json"), R"({"medusa_num_heads": 3})");
  write_file(pickled.file("medusa_lm_head.pt"), "PK");
  CHECK(refusal("medusa:" + pickled.path()).find("is pickled: convert it there with python3") != std::string::npos);
  const std::string eagle = "eagle:" + source_dir() + "/data/fixtures/eagle/llama-gqa";
  CHECK(refusal(eagle).find("its layer has hidden_size 32, the model 192") != std::string::npos);
  CHECK(refusal(eagle + ",mtp").find("mtp and eagle: both are a layer behind the last one") != std::string::npos);
  CHECK(refusal("eagle:/nowhere/at/all").find("/nowhere/at/all") != std::string::npos);
  CHECK(refusal("draft:/nowhere/at/all").find("/nowhere/at/all") != std::string::npos);
}

}  // namespace llmb::test
