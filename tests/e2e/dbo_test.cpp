// --enable-dbo, of the whole program, with the host SIMT layer in place of a GPU: no byte of an answer shows it.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

std::vector<std::string> on_gpu(const std::vector<std::string>& more) {
  return with({binary_dir() + "/tests/gpu_program", "-m", source_dir() + "/data/fixtures/models/llama-gqa",
               "--tokenizer", kModel, "--progress", "none", "--device", "cuda", "--max-model-len", "64",
               "--max-num-seqs", "6", "--max-num-batched-tokens", "32", "--threads", "1", "--kv-cache-memory-bytes",
               "2000000", "--deterministic"},
              more);
}

}  // namespace

TEST_CASE("--enable-dbo changes no byte of a deterministic run") {
  std::string lines;
  for (int i = 0; i < 10; ++i)
    lines += "{\"prompt_token_ids\":[" + std::to_string(5 + i) + ",9,17],\"max_tokens\":5,\"ignore_eos\":true," +
             "\"return_token_ids\":true,\"temperature\":" + (i % 2 == 0 ? "0" : "0.9") + "}\n";
  const ProcessResult plain = run_process(on_gpu({}), lines), halves = run_process(on_gpu({"--enable-dbo"}), lines);
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  REQUIRE_MESSAGE(halves.exit_code == 0, halves.err);
  CHECK(stable_output(halves.out) == stable_output(plain.out));
}

TEST_CASE("--enable-dbo is refused with ranks, by name, and changes nothing on a CPU") {
  const ProcessResult ranks = run_llm_batch({"--enable-dbo", "--tensor-parallel-size", "2"});
  CHECK(ranks.exit_code == 2);
  CHECK_MESSAGE(ranks.err.find("--enable-dbo cannot be combined with --tensor-parallel-size") != std::string::npos, ranks.err);
  const std::string line = "{\"prompt\":\"1+2=\",\"max_tokens\":4,\"temperature\":0}\n";
  const ProcessResult plain = run_llm_batch({"--device", "cpu"}, line);
  const ProcessResult flagged = run_llm_batch({"--device", "cpu", "--enable-dbo"}, line);
  CHECK(plain.exit_code == 0);
  CHECK_MESSAGE(flagged.exit_code == 0, flagged.err);
  CHECK(stable_output(flagged.out) == stable_output(plain.out));
}

}  // namespace llmb::test
