// --cpu-target, --version --verbose, and that a target changes no byte of its class of arithmetic.
#include <doctest/doctest.h>

#include <regex>

#include "kernels/cpu/cpu_target.h"
#include "tests/e2e/run.h"
#include "tests/support/kernel_support.h"

namespace llmb::test {

namespace {

const std::string kLines =
    "{\"prompt\": \"12 + 30 =\", \"max_tokens\": 8, \"logprobs\": 2}\n"
    "{\"prompt\": \"Once upon a time\", \"max_tokens\": 12, \"temperature\": 1.1, \"seed\": 3}\n";

std::string verbose_version(std::vector<std::string> more) {
  more.insert(more.begin(), {kProgram, "--version", "--verbose"});
  const ProcessResult result = run_process(more);
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  return result.out;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a target gives the bytes of its arithmetic, and is the one that --version --verbose names") {
  const auto answers = [](const std::vector<std::string>& flags) {
    const ProcessResult result = run_llm_batch(flags, kLines);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    return stable_output(result.out);
  };
  for (const char* quantization : {"none", "int8", "int4", "w4a8"}) {
    const std::string fused = answers({"--quantization", quantization, "--dtype", "float32"});
    const std::string unfused = answers({"--quantization", quantization, "--arithmetic", "unfused"});
    for (const std::string& target : cpu::target_names()) {
      CAPTURE(target);
      const std::string now = answers({"--quantization", quantization, "--dtype", "float32", "--cpu-target", target});
      CHECK(now == (has_fused_multiply_add(target) ? fused : unfused));
    }
  }
  for (const std::string& target : cpu::target_names())
    CHECK(contains(verbose_version({"--cpu-target", target}), "\ntarget      " + target + ", as --cpu-target asks, of "));
}

TEST_CASE("--version --verbose tells of processor, caches and the best target; --version stays one line") {
  const std::string text = verbose_version({});
  CHECK(std::regex_search(text, std::regex("^llm-batch [0-9.]+\nprocessor   .+; usable cores: [1-9][0-9]*\n"
                                           "caches      first level [0-9]+ KiB and second [0-9]+ KiB for each core")));
  CHECK(contains(text, "\ntarget      " + cpu::target_names().front() + ", the best of " + cpu::target_names().front()));
  CHECK(contains(text, "\narithmetic  "));
  const ProcessResult plain = run_process({kProgram, "--version"});
  CHECK(plain.out == text.substr(0, text.find('\n') + 1));
  const ProcessResult alone = run_process({kProgram, "-m", kModel, "--verbose"});
  CHECK(alone.exit_code == 2);
  CHECK(contains(alone.err, "--verbose is for llm-batch --version"));
}

TEST_CASE("a target that this processor lacks is refused in one line that lists those it has") {
  for (const char* name : {"SSE9", "avx2", "", "NEON AVX2"}) {
    const ProcessResult result = run_llm_batch({"--cpu-target", name}, kLines);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, std::string("--cpu-target: no such target here: ") + name + "; this processor has " +
                                   cpu::target_names().front()));
    CHECK(result.out.empty());
  }
}

TEST_CASE("an arithmetic that the forced target does not have is refused by name") {
  for (const std::string& target : cpu::target_names()) {
    const char* other = has_fused_multiply_add(target) ? "unfused" : "fma";
    const ProcessResult result = run_llm_batch({"--cpu-target", target, "--arithmetic", other}, kLines);
    CHECK(result.exit_code == 4);
    CHECK(contains(result.err, "cannot compute it (it can: "));
  }
}

}  // namespace llmb::test
