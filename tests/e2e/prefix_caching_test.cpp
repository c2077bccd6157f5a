// Prompts that begin alike: the same bytes for every line with and without the prefix cache, whatever the pool, the
// mode and the format of the KV cache, and where a run is killed and continued.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/e2e/killed_runs.h"
#include "tests/e2e/run.h"
#include "tests/support/killed_process.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace {

// Questions about three documents, greedy and sampled; now and then a prompt that was there before, alone or with more
// behind it.
std::string make_questions(int num_lines) {
  const std::vector<std::string> documents = {
      "Once upon a time there was a little girl who lived near a big forest with her brother and her old grey cat.",
      "Once upon a time there was a little boy. He liked to play with his red ball in the garden behind the house.",
      "Tom and Lily were friends. One day they went to the park to look for birds, but there were only two of them."};
  const std::vector<std::string> questions = {" Then", " One day she", " He said", "", " But the cat"};
  std::string lines;
  for (int i = 0; i < num_lines; ++i) {
    nlohmann::json line;
    line["id"] = i;
    line["prompt"] = documents[i * 7 % 3] + questions[i % 5] + (i % 4 == 3 ? " was so happy that" : "");
    line["seed"] = i;
    line["max_tokens"] = 3 + i * 5 % 30;
    line["ignore_eos"] = i % 3 == 0;
    if (i % 2 == 1) line["temperature"] = 1.1;
    if (i % 6 == 2) line["repetition_penalty"] = 1.2;
    if (i % 6 == 4) line["logprobs"] = 2;
    lines += line.dump() + "\n";
  }
  return lines;
}

uintmax_t file_size(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

int64_t num_cached(const std::string& output) {
  int64_t count = 0;
  for (const auto& record : parse_lines(output)) count += record["metrics"]["cached_tokens"].get<int64_t>();
  return count;
}

}  // namespace

TEST_CASE("the same bytes with the prefix cache and without, in every format of the KV cache") {
  const std::string input = make_questions(40);
  const std::vector<std::vector<std::string>> schedules = {
      {},
      {"--max-num-seqs", "3", "--block-size", "8"},
      {"--max-num-batched-tokens", "17"},
      {"--batching", "static", "--max-num-seqs", "7"},
      {"--batching", "none", "--block-size", "64"},
      {"--num-gpu-blocks-override", "14", "--max-model-len", "128"},  // forces preemption and eviction
      {"--num-gpu-blocks-override", "14", "--max-model-len", "128", "--preemption", "swap"},
  };
  for (const std::string dtype : {"bfloat16", "float32", "int8"}) {
    CAPTURE(dtype);
    const ProcessResult plain =
        run_llm_batch({"--no-enable-prefix-caching", "--batching", "none", "--kv-cache-dtype", dtype}, input);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    CHECK(num_cached(plain.out) == 0);
    for (std::vector<std::string> arguments : schedules) {
      std::string name;
      for (const std::string& word : arguments) name += word + " ";
      CAPTURE(name);
      arguments.insert(arguments.end(), {"--kv-cache-dtype", dtype});
      const ProcessResult cached = run_llm_batch(arguments, input);
      REQUIRE_MESSAGE(cached.exit_code == 0, cached.err);
      CHECK(stable_output(cached.out) == stable_output(plain.out));
      CHECK(num_cached(cached.out) > 0);
    }
  }
}

TEST_CASE("questions about a long document read its keys and values together: the same bytes in every format") {
  std::string document;
  for (int i = 0; i < 45; ++i) document += "Once there was a cat who had " + std::to_string(i) + " red balls. ";
  std::string input;
  for (int i = 0; i < 12; ++i) {
    nlohmann::json line;
    line["id"] = i;
    // Some prompts end within the document.
    line["prompt"] =
        i % 5 == 4 ? document.substr(0, document.size() * 3 / 4) : document + "Then came dog " + std::to_string(i);
    line["seed"] = i;
    line["max_tokens"] = 8 + i % 3;
    if (i % 2 == 1) line["temperature"] = 1.1;
    input += line.dump() + "\n";
  }
  for (const std::string dtype : {"bfloat16", "float32", "int8"}) {
    CAPTURE(dtype);
    const ProcessResult plain =
        run_llm_batch({"--no-enable-prefix-caching", "--batching", "none", "--kv-cache-dtype", dtype}, input);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    REQUIRE(parse_lines(plain.out)[0]["usage"]["prompt_tokens"] > 2 * 256);  // segments of attention
    for (std::vector<std::string> arguments : {std::vector<std::string>{}, {"--max-num-batched-tokens", "100"}}) {
      arguments.insert(arguments.end(), {"--kv-cache-dtype", dtype});
      const ProcessResult shared = run_llm_batch(arguments, input);
      REQUIRE_MESSAGE(shared.exit_code == 0, shared.err);
      CHECK(stable_output(shared.out) == stable_output(plain.out));
      CHECK(num_cached(shared.out) > 0);
    }
  }
}

TEST_CASE("killed and continued with the prefix cache, a run gives the bytes of one without it") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");
  write_file(in, make_questions(60));
  const ProcessResult plain = run_llm_batch({"--no-enable-prefix-caching", in});
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  int num_continued = 0;
  StoppedProcess run;
  for (int attempt = 1; run.exit_code != 0; ++attempt) {
    const StopPlan plan = stop_of_attempt(attempt);
    run = run_and_stop({kProgram, "-m", kModel, "--progress", "none", "--max-num-seqs", "4", in, "-o", out},
                       "/dev/null", dir.file("err"), plan);
    REQUIRE_MESSAGE((run.exit_code == 0 || run.exit_code == 137), run.err);
    num_continued += run.exit_code == 137 && file_size(out + ".partial") > 0;
  }
  if (can_count_file_calls()) CHECK(num_continued > 0);
  CHECK(stable_output(read_file(out)) == stable_output(plain.out));
}

TEST_CASE("swapped and recomputed, preempted requests get the same bytes; the metrics count blocks and bytes") {
  const TemporaryDirectory dir;
  std::string input;
  for (int i = 0; i < 12; ++i)
    input += nlohmann::json({{"prompt", std::string(20, static_cast<char>('a' + i)) + " went to the park"},
                             {"max_tokens", 60},
                             {"ignore_eos", true}})
                 .dump() +
             "\n";
  std::vector<std::string> outputs;
  for (const std::string mode : {"recompute", "swap"}) {
    const std::string metrics = dir.file(mode + ".jsonl");
    const ProcessResult result = run_llm_batch({"--metrics", metrics, "--num-gpu-blocks-override", "16",
                                                "--max-model-len", "128", "--preemption", mode},
                                               input);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    outputs.push_back(stable_output(result.out));
    const nlohmann::json line = nlohmann::json::parse(read_file(metrics));
    CHECK(line["num_preemptions"] > 0);
    const int64_t num_out = line["kv_blocks_swapped_out"], num_in = line["kv_blocks_swapped_in"];
    CHECK((num_out > 0) == (mode == "swap"));
    CHECK((num_in > 0) == (mode == "swap"));
    CHECK((line["kv_swapped_bytes"] > 0) == (mode == "swap"));
  }
  CHECK(outputs[0] == outputs[1]);
  const ProcessResult refused = run_llm_batch({"--preemption", "swap", "--no-enable-prefix-caching"}, input);
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("--preemption swap needs the prefix cache") != std::string::npos);
}

TEST_CASE("the metrics file says how many prompt tokens were asked for, computed and saved") {
  const TemporaryDirectory dir;
  const std::string input = make_questions(40);
  for (const bool is_cached : {true, false}) {
    const std::string metrics = dir.file(is_cached ? "on.jsonl" : "off.jsonl");
    const ProcessResult result = run_llm_batch(
        {"--metrics", metrics, is_cached ? "--enable-prefix-caching" : "--no-enable-prefix-caching"}, input);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    const nlohmann::json line = nlohmann::json::parse(read_file(metrics));
    CHECK(line["prompt_tokens_asked"] == line["total_input_tokens"]);
    CHECK(line["prompt_tokens_saved"] == num_cached(result.out));
    CHECK(line["prompt_tokens_computed"].get<int64_t>() ==
          line["prompt_tokens_asked"].get<int64_t>() - line["prompt_tokens_saved"].get<int64_t>());
    CHECK((line["prompt_tokens_saved"] == 0) != is_cached);
    CHECK(line["prompt_tokens_repeated"] >= line["prompt_tokens_saved"]);
    CHECK(line["prompt_tokens_repeated"] > 0);
    CHECK(line["prompt_tokens_repeated_granularity"] == 1);
    CHECK((line["kv_block_copies"] == 0) != is_cached);
    CHECK(line["prefix_cache_evictions"] == 0);
  }
}

}  // namespace llmb::test
