// FAULTS row 41: memory that can no longer be read ends the run with a line and a code, and what was written stays.
// For mapped models and weight caches see unit/mapped_file_test, e2e/weight_cache_test.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include <memory>
#include <string>
#include <utility>

#include "backend/ledger/ledger_backend.h"
#include "tests/e2e/run_in_child.h"
#include "tests/support/file_changes.h"

namespace llmb::test {

namespace {

// Reads memory that is gone while it computes a step.
class FailingBackend final : public Backend {
 public:
  explicit FailingBackend(std::string path) : inner_(make_ledger_backend({})), path_(std::move(path)) {}
  Status load(const ModelConfig& config, const LoadOptions& options) override { return inner_->load(config, options); }
  const BackendInfo& info() const override { return inner_->info(); }
  Status submit(const StepPlan& plan) override { return inner_->submit(plan); }
  Status wait(StepOutput* output) override {
    const Status status = inner_->wait(output);
    if (++num_steps_ < 20) return status;
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    const auto* data = static_cast<const volatile char*>(mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0));
    cut_file(path_, 0);
    return data[0] == 0 ? status : internal_error("it could be read");
  }

 private:
  const std::unique_ptr<Backend> inner_;
  const std::string path_;
  int num_steps_ = 0;
};

}  // namespace

TEST_CASE("a page that is gone ends the run with 9 and one line; the same command goes on") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in"), out = dir.file("out"), mapped = dir.file("mapped");
  std::string lines;
  for (int i = 0; i < 60; ++i) {  // rows that differ: equal ones are computed once
    lines += R"({"prompt_token_ids":[1,2,)" + std::to_string(i) + R"(],"ignore_eos":true,"max_tokens":3})" "\n";
  }
  write_file(in, lines);
  write_file(mapped, "x");
  const std::vector<std::string> arguments = {in, "-o", out, "--device", "ledger", "--max-num-seqs", "4"};
  const auto failed = run_in_child(arguments, [&](std::string_view) -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(std::make_unique<FailingBackend>(mapped));
  });
  CHECK(failed.process.exit_code == 9);
  CHECK(failed.process.err.starts_with("llm-batch: error: a page of memory can no longer be read"));
  CHECK(std::count(failed.process.err.begin(), failed.process.err.end(), '\n') == 1);
  const auto again = run_in_child(arguments, make_backend);
  CHECK_MESSAGE(again.process.exit_code == 0, again.process.err);
  CHECK(parse_lines(read_file(out)).size() == 60);
}

TEST_CASE("a SIGBUS that somebody sends ends the process as that signal") {
  const TemporaryDirectory dir;
  // A first answer says that all handlers are there; the pipe keeps the run waiting for more.
  const ProcessResult result = run_shell(
      "cd " + dir.path() + "; mkfifo pipe; " + kProgram + " -m " + kModel +
      " --device ledger --progress none <pipe >out 2>/dev/null & p=$!; exec 3>" + dir.file("pipe") +
      R"(; echo '{"prompt_token_ids":[1],"max_tokens":1}' >&3; until [ -s )" + dir.file("out") +
      " ]; do sleep 0.02; done; kill -BUS $p; wait $p; echo $?");
  CHECK(result.out == std::to_string(128 + SIGBUS) + "\n");
}

}  // namespace llmb::test
