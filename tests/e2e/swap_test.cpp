// Runs that are killed while blocks of preempted requests lie in the host's memory, on the CPU backend with the bundled
// model: what was there only is computed again, and no byte of an answer shows it.
#include <doctest/doctest.h>
#include <signal.h>

#include <memory>
#include <set>
#include <utility>

#include "backend/make_backend.h"
#include "tests/e2e/run_in_child.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace {

// Kills its process at the n-th plan that brings blocks back: before that runs, what they hold lies in the host's
// memory and nowhere else.
class KilledWhileSwapped final : public Backend {
 public:
  KilledWhileSwapped(std::unique_ptr<Backend> inner, int64_t plan) : inner_(std::move(inner)), num_left_(plan) {}

  Status load(const ModelConfig& config, const LoadOptions& options) override { return inner_->load(config, options); }
  const BackendInfo& info() const override { return inner_->info(); }
  Status submit(const StepPlan& plan) override {
    for (const BlockCopy& swap : plan.swaps_out) on_host_.insert(swap.to);
    if (!plan.swaps_in.empty() && --num_left_ == 0) {
      for (const BlockCopy& swap : plan.swaps_in)
        if (on_host_.count(swap.from) == 0) return internal_error("a block comes back that was never moved");
      kill(getpid(), SIGKILL);
    }
    return inner_->submit(plan);
  }
  Status wait(StepOutput* output) override { return inner_->wait(output); }
  MachineLimits measure_limits() override { return inner_->measure_limits(); }

 private:
  const std::unique_ptr<Backend> inner_;
  int64_t num_left_;
  std::set<BlockId> on_host_;  // that plans have moved blocks to
};

BackendFactory killed_at(int64_t plan) {
  return [plan](std::string_view device) -> Result<std::unique_ptr<Backend>> {
    Result<std::unique_ptr<Backend>> inner = make_backend(device);
    if (!inner.ok()) return inner;
    return std::unique_ptr<Backend>(std::make_unique<KilledWhileSwapped>(std::move(*inner), plan));
  };
}

// Prompts of their own, answers of different lengths, some with choices and some with beams.
std::string make_lines(int num_lines) {
  std::string lines;
  for (int i = 0; i < num_lines; ++i) {
    nlohmann::json line = {{"id", i},
                           {"prompt", std::string(8 + i % 20, static_cast<char>('a' + i % 26)) + " went to the park"},
                           {"max_tokens", 20 + i * 7 % 45},
                           {"ignore_eos", true}};
    if (i % 2 == 1) line.update({{"temperature", 1.1}, {"seed", i}});
    if (i % 5 == 3) line["n"] = 3;
    if (i % 7 == 4) {
      line.erase("temperature");
      line.update({{"n", 2}, {"use_beam_search", true}});
    }
    lines += line.dump() + "\n";
  }
  return lines;
}

}  // namespace

TEST_CASE("killed again and again while blocks lie in the host's memory only, a run gives the bytes of an ample one") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");
  write_file(in, make_lines(40));
  const ProcessResult ample = run_llm_batch({in, "--no-enable-prefix-caching", "--max-model-len", "128"});
  REQUIRE_MESSAGE(ample.exit_code == 0, ample.err);
  const std::vector<std::string> arguments = {
      in, "-o", out, "--num-gpu-blocks-override", "14", "--max-model-len", "128", "--preemption", "swap", "--speculative",
      "none"};  // so that the steps are the same in each run
  int num_killed = 0, num_continued = 0;
  while (true) {
    REQUIRE(num_killed < 60);
    num_continued += read_file(out + ".partial").find('\n') != std::string::npos;
    const ChildResult run = run_in_child(arguments, killed_at(1 + 2 * num_killed));
    if (run.process.exit_code != 137) {
      REQUIRE_MESSAGE(run.process.exit_code == 0, run.process.err);
      break;
    }
    ++num_killed;
  }
  CHECK(num_killed >= 3);
  CHECK(num_continued >= 2);
  CHECK(stable_output(read_file(out)) == stable_output(ample.out));
}

}  // namespace llmb::test
