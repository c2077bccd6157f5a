// --pipeline-parallel-size and --prefill-context-parallel-size: stages of layers, and processes that share out the rows
// of steps, give the bytes of one process.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/document_questions.h"
#include "tests/e2e/rank_lines.h"
#include "tests/e2e/run.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace {

std::vector<std::string> stages(int count) { return {"--pipeline-parallel-size", std::to_string(count)}; }

}  // namespace

TEST_CASE("two, three and four stages, whatever the batch, cache, drafts, policy and workers: the bytes of one process") {
  const std::string lines = mixed_lines(40);
  const ProcessResult plain = run_llm_batch({}, lines);
  REQUIRE_MESSAGE(plain.exit_code == 3, plain.err);
  const std::vector<std::vector<std::string>> schedules = {
      {},
      {"--max-num-seqs", "3", "--max-num-batched-tokens", "16"},
      {"--no-enable-prefix-caching", "--batching", "static"},
      {"--speculative", "none", "--max-num-seqs", "5"},
      {"--kv-cache-memory-bytes", "3000000", "--preemption", "swap"},
      {"--policy", "mlfq", "--max-num-seqs", "4"}};
  for (size_t i = 0; i < schedules.size(); ++i)
    for (const int count : {2, 3, 4}) {
      if (i > 0 && (static_cast<int>(i) + count) % 2 == 0) continue;  // each schedule with some counts
      CAPTURE(schedules[i]);
      CAPTURE(count);
      const ProcessResult result = run_llm_batch(with(stages(count), schedules[i]), lines);
      CHECK_MESSAGE(result.exit_code == 3, result.err);
      CHECK(stable_output(result.out) == stable_output(plain.out));
    }
}

TEST_CASE("processes that share out rows, with stages and without: the bytes of one process, parts of layers aside") {
  const std::string lines = mixed_lines(40);
  const auto rows = [](int count) {
    return std::vector<std::string>{"--prefill-context-parallel-size", std::to_string(count)};
  };
  const ProcessResult plain = run_llm_batch({}, lines);
  REQUIRE_MESSAGE(plain.exit_code == 3, plain.err);
  for (const std::vector<std::string>& flags :
       {rows(2), with(rows(3), {"--speculative", "none", "--max-num-batched-tokens", "100"}), with(rows(2), stages(2)),
        with(rows(2), {"--kv-cache-memory-bytes", "3000000", "--preemption", "swap"}),
        with(rows(2), {"--quantization", "none", "--workers", "2"})}) {
    CAPTURE(flags);
    const ProcessResult result = run_llm_batch(flags, lines);
    CHECK_MESSAGE(result.exit_code == 3, result.err);
    CHECK(stable_output(result.out) == stable_output(plain.out));
  }
  const std::vector<std::string> tensor = {"--tensor-parallel-size", "2"};
  const ProcessResult parts = run_llm_batch(tensor, lines), both = run_llm_batch(with(tensor, rows(2)), lines);
  CHECK_MESSAGE(both.exit_code == 3, both.err);
  CHECK(stable_output(both.out) == stable_output(parts.out));
}

TEST_CASE("layers with inputs of their own, some with the keys and values of earlier ones: the bytes of one process") {
  const std::string models = source_dir() + "/data/fixtures/models/", draft = "draft:" + models + "gemma4";
  const auto run = [&](const std::vector<std::string>& more) {
    return run_process(with({kProgram, "-m", models + "gemma4", "--tokenizer", kModel, "--progress", "none"}, more),
                       document_questions(36, {.shortest = 31}));
  };
  const ProcessResult plain = run({"--batching", "none", "--no-enable-prefix-caching", "--speculative", "none"});
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const std::vector<std::string> context = {"--prefill-context-parallel-size", "2"};
  const std::vector<std::string> slices = {"--decode-context-parallel-size", "2"}, small = {"--block-size", "8"};
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           with(with(stages(2), small), {"--speculative", "lookup,tree", "--num-gpu-blocks-override", "40"}),
           with(stages(3), {"--speculative", draft, "--max-num-batched-tokens", "9"}),
           with(with(stages(2), small), {"--num-gpu-blocks-override", "40", "--preemption", "swap"}),
           with(stages(2), {"--workers", "2", "--max-num-seqs", "3"}),
           with(context, {"--speculative", "lookup"}), with(with(context, small), stages(2)),
           with(slices, {"--speculative", draft}), with(slices, stages(3))}) {
    CAPTURE(flags);
    const ProcessResult result = run(flags);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    CHECK(stable_output(result.out) == stable_output(plain.out));
  }
}

TEST_CASE("stages of a model that is worth it are balanced by what is measured, which the start says: the bytes of one process") {
  const TemporaryDirectory dir;
  write_file(dir.file("config.json"),
             nlohmann::json({{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}, {"hidden_size", 1024},
                             {"num_hidden_layers", 6}, {"num_attention_heads", 16}, {"num_key_value_heads", 4},
                             {"intermediate_size", 2048}, {"vocab_size", 1536}, {"max_position_embeddings", 256},
                             {"rms_norm_eps", 1e-5}, {"rope_theta", 10000.0}, {"tie_word_embeddings", true},
                             {"torch_dtype", "bfloat16"}})
                 .dump());
  std::string lines;
  for (int i = 0; i < 12; ++i)
    lines += nlohmann::json({{"prompt_token_ids", {5 + i, 9, 17}}, {"max_tokens", 4}, {"ignore_eos", true},
                             {"return_token_ids", true}, {"temperature", i % 2}})
                 .dump() +
             "\n";
  const auto run = [&](const std::vector<std::string>& more) {
    return run_process(with({kProgram, "-m", dir.path(), "--tokenizer", kModel, "--load-format", "dummy", "--device", "cpu",
                             "--progress", "none"},
                            more),
                       lines);
  };
  const ProcessResult plain = run({});
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  CHECK(plain.err.find("stages have") == std::string::npos);
  for (const auto& flags : {stages(2), with(stages(2), {"--workers", "2"}), stages(3)}) {
    CAPTURE(flags);
    const ProcessResult result = run(flags);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK(stable_output(result.out) == stable_output(plain.out));
    CHECK_MESSAGE(result.err.find("stages have ") != std::string::npos, result.err);
    CHECK_MESSAGE(result.err.find(" layers; in steps of answers the LM head takes as long as 0.") != std::string::npos, result.err);
  }
}

TEST_CASE("the metrics line and the report say how idle each rank was") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), greedy_lines(24));
  const ProcessResult run =
      run_llm_batch(with(stages(3), {dir.file("in.jsonl"), "-o", dir.file("out.jsonl"), "--metrics",
                                     dir.file("m.jsonl"), "--report", dir.file("report.html")}));
  REQUIRE_MESSAGE(run.exit_code == 0, run.err);
  const auto ranks = parse_lines(read_file(dir.file("m.jsonl"))).at(0).at("ranks");
  const double step_s = ranks.at("step_s").get<double>();
  CHECK(step_s > 0);
  REQUIRE(ranks.at("idle_s").size() == 3);
  for (const auto& idle_s : ranks["idle_s"]) {
    CHECK(idle_s.get<double>() >= 0);
    CHECK(idle_s.get<double>() <= step_s);
  }
  CHECK(read_file(dir.file("report.html")).find("ranks were idle: rank 0 <b>") != std::string::npos);
}

}  // namespace llmb::test
