// --decode-context-parallel-size: processes that keep the keys and values of their part of the positions give the bytes
// of one that keeps all, and together hold what one cannot.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/hostile_run.h"
#include "tests/e2e/rank_lines.h"
#include "tests/e2e/run.h"
#include "tests/support/bounded.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace {

std::vector<std::string> divided(int count) { return {"--decode-context-parallel-size", std::to_string(count)}; }

// Prompts of up to 1,700 tokens, some with a long beginning in common, beside short ones of every kind.
std::string long_lines() {
  std::string story;
  for (int i = 0; i < 130; ++i) story += "Then the little dog number " + std::to_string(i) + " ran to the big old tree. ";
  std::string lines = mixed_lines(12);
  for (int i = 0; i < 14; ++i) {
    nlohmann::json line = {{"id", 100 + i}, {"max_tokens", 4 + i}};
    line["prompt"] = story.substr(0, static_cast<size_t>(i % 2 == 0 ? 5000 : 300 + 370 * i)) + std::to_string(i % 5);
    if (i % 3 == 0) line["temperature"] = 0;
    if (i % 4 == 1) line["logprobs"] = 2;
    if (i % 7 == 1) line["n"] = 3;
    if (i % 7 == 3) line["guided_choice"] = {"yes", "no"};
    lines += line.dump() + "\n";
  }
  return lines;
}

// 64 KiB of keys and values a token in few weights.
void write_shape(const std::string& path) {
  write_file(path, nlohmann::json({{"model_type", "llama"}, {"architectures", {"LlamaForCausalLM"}},
                                   {"vocab_size", 512}, {"hidden_size", 64}, {"intermediate_size", 64},
                                   {"num_hidden_layers", 4}, {"num_attention_heads", 32}, {"num_key_value_heads", 32},
                                   {"head_dim", 64}, {"max_position_embeddings", 65536}, {"rms_norm_eps", 1e-5},
                                   {"rope_theta", 10000.0}, {"hidden_act", "silu"}, {"tie_word_embeddings", true},
                                   {"torch_dtype", "float32"}})
                       .dump());
}

// Peak resident memory of the largest process of a command, in MiB.
double peak_mebibytes(const std::string& command) {
  const TemporaryDirectory dir;
  const BoundedRun run = run_bounded(
      [&] {
        const ProcessResult result = run_shell(command);
        if (result.exit_code != 0) std::fprintf(stderr, "exit code %d: %s\n", result.exit_code, result.err.c_str());
        rusage usage{};
        getrusage(RUSAGE_CHILDREN, &usage);
        write_file(dir.file("peak"), std::to_string(usage.ru_maxrss));
        return result.exit_code == 0 ? 0 : 1;
      },
      300);
  CHECK(run.exit_code == 0);
  return std::stod("0" + read_file(dir.file("peak"))) / 1024;
}

}  // namespace

TEST_CASE("two and three processes, whatever the batch, cache, pool, drafts, stages and workers: the bytes of one") {
  const std::string lines = long_lines();
  const ProcessResult plain = run_llm_batch({}, lines);
  REQUIRE_MESSAGE(plain.exit_code == 3, plain.err);
  for (const std::vector<std::string>& flags :
       {divided(2), with(divided(3), {"--speculative", "none", "--max-num-batched-tokens", "100"}),
        with(divided(2), {"--max-num-seqs", "3", "--no-enable-prefix-caching"}),
        with(divided(2), {"--kv-cache-memory-bytes", "12000000", "--preemption", "swap", "--max-num-seqs", "16"}),
        with(divided(2), {"--kv-cache-memory-bytes", "12000000", "--preemption", "recompute", "--policy", "mlfq"}),
        with(divided(2), {"--prefill-context-parallel-size", "2", "--batching", "static"}),
        with(divided(2), {"--pipeline-parallel-size", "2"}), with(divided(2), {"--workers", "2"})}) {
    CAPTURE(flags);
    const ProcessResult result = run_llm_batch(flags, lines);
    CHECK_MESSAGE(result.exit_code == 3, result.err);
    CHECK(stable_output(result.out) == stable_output(plain.out));
  }
  const std::vector<std::string> tensor = {"--tensor-parallel-size", "2"};
  const ProcessResult parts = run_llm_batch(tensor, lines), both = run_llm_batch(with(tensor, divided(2)), lines);
  CHECK_MESSAGE(both.exit_code == 3, both.err);
  CHECK(stable_output(both.out) == stable_output(parts.out));
}

// How often a draft model is asked, and for how much, goes by the time that steps take; guesses for several later places
// are trees whenever they are verified.
TEST_CASE("trees of drafts over two processes: the bytes of none, and trees they are") {
  const TemporaryDirectory dir;
  std::string lines;
  for (int i = 0; i < 4; ++i)
    lines += nlohmann::json({{"id", i}, {"seed", i}, {"prompt", "Once upon a time"}, {"max_tokens", 200},
                             {"ignore_eos", true}, {"temperature", i % 2 == 0 ? 0.0 : 1.2}})
                 .dump() +
             "\n";
  const ProcessResult plain = run_llm_batch({"--speculative", "none"}, lines);
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const std::string draft = "draft:" + source_dir() + "/data/draft-model";
  const auto num_tree_steps = [&](const std::string& drafters) {
    CAPTURE(drafters);
    const std::string metrics = dir.file("metrics.jsonl");
    const ProcessResult result = run_llm_batch(
        with(divided(2), {"--speculative", drafters, "--max-num-seqs", "1", "--metrics", metrics}), lines);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    CHECK(stable_output(result.out) == stable_output(plain.out));
    const nlohmann::json run = parse_lines(read_file(metrics)).back();
    CHECK(run.at("speculation_steps").get<int64_t>() > 0);
    return run.at("speculation_tree_steps").get<int64_t>();
  };
  CHECK(num_tree_steps("lookahead") > 0);
  num_tree_steps(draft + ",tree");
  CHECK(num_tree_steps(draft) == 0);
}

TEST_CASE("an output that one process began goes on with divided keys and values") {
  const TemporaryDirectory dir;
  const std::string lines = long_lines(), out = dir.file("out.jsonl"), whole = dir.file("whole.jsonl");
  write_file(dir.file("in.jsonl"), lines);
  REQUIRE(run_llm_batch({dir.file("in.jsonl"), "-o", whole}).exit_code == 3);
  write_file(dir.file("in.jsonl"), lines.substr(0, lines.find("{\"id\":105")));
  REQUIRE(run_llm_batch({dir.file("in.jsonl"), "-o", out}).exit_code == 3);
  write_file(dir.file("in.jsonl"), lines);
  const ProcessResult rest = run_llm_batch(with(divided(2), {dir.file("in.jsonl"), "-o", out}));
  CHECK_MESSAGE(rest.exit_code == 3, rest.err);
  CHECK(stable_output(read_file(out)) == stable_output(read_file(whole)));
}

TEST_CASE("options that contradict each other are refused by name") {
  const auto refused = [](const std::vector<std::string>& flags, int exit_code, const std::string& name) {
    const ProcessResult result = run_llm_batch(flags, greedy_lines(1));
    CHECK(result.exit_code == exit_code);
    CHECK_MESSAGE(result.err.find(name) != std::string::npos, result.err);
  };
  refused(with(divided(2), {"--prefill-context-parallel-size", "3"}), 2, "--prefill-context-parallel-size");
  refused(with(divided(2), {"--block-size", "32"}), 2, "--block-size");
}

TEST_CASE("of a long context each process has at most 1.1 times its share beside the program's own memory") {
  const TemporaryDirectory dir;
  std::filesystem::create_directory(dir.file("model"));
  write_shape(dir.file("model/config.json"));
  nlohmann::json line = {{"max_tokens", 2}, {"ignore_eos", true}};
  for (int i = 0; i < 3000; ++i) line["prompt_token_ids"].push_back(i * 7 % 500);
  write_file(dir.file("in"), line.dump() + "\n");
  const std::string program = kProgram + " --device cpu --threads 2 --progress none --load-format dummy -m " +
                              quoted(dir.file("model")) + " --max-model-len 3072 --max-num-batched-tokens 256 ";
  const auto peak = [&](const std::string& arguments) {
    return peak_mebibytes(program + arguments + " " + quoted(dir.file("in")) + " > " + quoted(dir.file("out")));
  };
  const double alone = peak("");
  const std::string expected = stable_output(read_file(dir.file("out")));
  const double largest = peak("--decode-context-parallel-size 2");  // of both
  CHECK(stable_output(read_file(dir.file("out"))) == expected);
  write_file(dir.file("in"), "{\"prompt_token_ids\":[1,2,3],\"max_tokens\":2,\"ignore_eos\":true}\n");
  const double own = peak("");
  MESSAGE(largest << " MiB of " << alone << ", the program's own " << own);
  CHECK(alone - own > 150);
  if (memory_figures_count()) CHECK(largest - own <= 1.1 * (alone - own) / 2);
}

TEST_CASE("a pool that one process has no address space for: two have it") {
  const TemporaryDirectory dir;
  std::filesystem::create_directory(dir.file("model"));
  write_shape(dir.file("model/config.json"));
  const auto run = [&](const std::string& flags) {
    return run_shell("ulimit -v 2800000; echo '{\"prompt_token_ids\":[1,2,3],\"max_tokens\":2,\"ignore_eos\":true}' | " +
                     kProgram + " --device cpu --threads 2 --progress none --load-format dummy --swap-space 0 -m " +
                     quoted(dir.file("model")) + " --max-model-len 40000 --kv-cache-memory-bytes 2800M " + flags);
  };
  const ProcessResult alone = run(""), both = run("--decode-context-parallel-size 2");
  CHECK_MESSAGE(alone.exit_code == 10, alone.err);
  CHECK_MESSAGE(both.exit_code == 0, both.err);
}

}  // namespace llmb::test
