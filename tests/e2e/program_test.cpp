// The program as a citizen of the shell: exit codes, help, files, pipes.
#include <doctest/doctest.h>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace {
const std::string kLine = R"({"prompt":"Once upon a time","max_tokens":3})"
                          "\n";
}

TEST_CASE("--help and --version go to stdout with exit code 0, usage errors to stderr with 2") {
  const ProcessResult help = run_process({kProgram, "--help"});
  CHECK(help.exit_code == 0);
  CHECK(help.out.find("--retry-errors [=CODE,…]") != std::string::npos);
  for (const char* word : {"Model", "Batching", "Sampling", "Report", "--max-num-seqs", "Exit codes"}) {
    INFO(word);
    CHECK(help.out.find(word) != std::string::npos);
  }
  CHECK(run_process({kProgram, "--version"}).out.starts_with("llm-batch "));
  const std::vector<std::vector<std::string>> wrong = {
      {},  // no model
      {"-m", kModel, "--no-such-flag"},
      {"-m", kModel, "--max-num-seqs", "0"},
      {"-m", kModel, "--temperature", "-1"},
      {"-m", kModel, "--temperature", "nan"},
      {"-m", kModel, "--top-p", "0"},
      {"-m", kModel, "--batching", "sometimes"},
      {"-m", kModel, "--slo", "ttft"},
      {"-m", kModel, "--max-model-len", "1000000"},
      {"-m", kModel, "--logit-bias", "[1]"},
      {"-m", kModel, "-", "-"},
  };
  for (std::vector<std::string> arguments : wrong) {
    arguments.insert(arguments.begin(), kProgram);
    const ProcessResult result = run_process(arguments);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out == "");
    CHECK(result.err.starts_with("llm-batch: error: "));
  }
}

TEST_CASE("what --help and --version were asked for is there, or the exit code says so") {
  for (const std::string flag : {"--help", "--version"}) {
    const ProcessResult full = run_shell(kProgram + " " + flag + " > /dev/full");
    CHECK(full.exit_code == 6);
    CHECK(full.err == "llm-batch: error: standard output: cannot write: No space left on device\n");
  }
}

TEST_CASE("FAULTS 46: empty names and names that are too long are refused with 2 before anything is loaded") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), kLine);
  const std::string no_model = dir.file("none"), in = dir.file("in.jsonl");  // noticed later, with 4
  const auto refused = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {kProgram, "-m", no_model, "--device", "ledger"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const ProcessResult result = run_process(argv);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err.starts_with("llm-batch: error: "));
    return result.err;
  };
  refused({in, "-o", ""});
  refused({""});
  refused({in, ""});
  const std::string longest = dir.file(std::string(237, 'o')), too_long = dir.file(std::string(238, 'o'));
  CHECK(refused({in, "-o", too_long}).find(too_long + ": this name has 238 bytes; the limit is 237") !=
        std::string::npos);
  for (const char* flag : {"--error-file", "--metrics"})
    CHECK(refused({in, "-o", dir.file("out"), flag, dir.file(std::string(256, 'e'))}).find(std::string(flag) + ": ") !=
          std::string::npos);
  CHECK(run_llm_batch({in, "-o", longest, "--device", "ledger"}).exit_code == 0);
  CHECK(parse_lines(read_file(longest + ".metrics.jsonl")).size() == 1);
}

TEST_CASE("the report counts the records that are in the output, and the errors among them") {
  const std::string bad = R"({"prompt":5})"
                          "\n";
  const ProcessResult full =
      run_shell("printf '%s' '" + bad + kLine + "' | " + kProgram + " -m " + kModel + " --progress none > /dev/full");
  CHECK(full.exit_code == 6);
  const auto report = nlohmann::json::parse(full.err.substr(full.err.rfind('{')));
  CHECK(report["done"] == 0);
  CHECK(report["failed"] == 0);
}

TEST_CASE("a flag with choices takes their names alone, and lists them in one line") {
  const std::vector<std::pair<std::string, std::string>> flags = {
      {"--quantization", "none, int8, int4, w4a8, fp8"},
      {"--gguf-activations", "float32, int8"},
      {"--order", "completion, input"},
      {"--batching", "none, static, dynamic, continuous"},
      {"--truncate", "left, right"},
      {"--progress", "auto, bar, plain, none"},
      {"--load-format", "auto, dummy"},
      {"--dtype", "auto, float32, bfloat16, float16"},
      {"--kv-cache-dtype", "auto, float32, bfloat16, float16, int8, fp8, int4"},
      {"--block-size", "8, 16, 32, 64, 128"},
      {"--device", "auto, cpu, cuda, cuda:N, ledger"},
  };
  for (const auto& [flag, names] : flags) {
    for (const std::string value : {"int5", "1", "INT8", ""}) {
      CAPTURE(flag);
      const ProcessResult result = run_process({kProgram, "-m", kModel, flag, value});
      CHECK(result.exit_code == 2);
      CHECK(result.err ==
            "llm-batch: error: " + flag + ": '" + value + "' is not one of " + names + "\nTry 'llm-batch --help'.\n");
    }
  }
  const ProcessResult last =
      run_llm_batch({"--quantization", "int4", "--order", "input", "--batching", "static", "--truncate", "right",
                     "--dtype", "float32", "--block-size", "128", "--kv-cache-dtype", "int8"},
                    kLine);
  CHECK_MESSAGE(last.exit_code == 0, last.err);
}

TEST_CASE("FAULTS 38: control characters of a command line are escaped in what is said about it") {
  const std::string bell = "\x1b]0;title\x07";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--order", bell}, {"--" + bell}, {"--top-p", bell}, {"--max-num-seqs", bell}}) {
    std::vector<std::string> argv = {kProgram, "-m", kModel};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const ProcessResult result = run_process(argv);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find("\\x1b]0;title\\x07") != std::string::npos);
    CHECK(result.err.find_first_of("\x1b\x07") == std::string::npos);
  }
}

TEST_CASE(
    "a missing model is refused with 4, an unreadable input with 5, an impossible output with 6, one line each before "
    "the report") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), kLine);
  const ProcessResult model = run_process({kProgram, "-m", dir.file("nowhere"), dir.file("in.jsonl")});
  CHECK(model.exit_code == 4);
  CHECK(model.err.find("nowhere") != std::string::npos);
  const ProcessResult input = run_llm_batch({dir.file("missing.jsonl")});
  CHECK(input.exit_code == 5);
  CHECK(input.err.find("missing.jsonl") != std::string::npos);
  const ProcessResult output = run_llm_batch({dir.file("in.jsonl"), "-o", dir.file("no/such/dir/out.jsonl")});
  CHECK(output.exit_code == 6);
  const ProcessResult same = run_llm_batch({dir.file("in.jsonl"), "-o", dir.file("in.jsonl")});
  CHECK(same.exit_code == 2);
  CHECK(read_file(dir.file("in.jsonl")) == kLine);
  for (const ProcessResult* r : {&model, &input, &output, &same}) {
    // Usage errors have no report: nothing ran.
    const int num_reports = r->exit_code == 2 ? 0 : 1;
    CHECK(std::count(r->err.begin(), r->err.end(), '\n') == 1 + num_reports);
    CHECK(r->err.starts_with("llm-batch: error: "));
    if (num_reports > 0) CHECK(nlohmann::json::parse(r->err.substr(r->err.find('\n')))["exit_code"] == r->exit_code);
  }
}

TEST_CASE("a file output appears whole, with its metrics beside it; stdout carries results only") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), kLine + kLine);
  const std::vector<std::string> argv = {
      kProgram, "-m", kModel, dir.file("in.jsonl"), "-o", dir.file("out.jsonl"), "--slo", "ttft=10s,tpot=10s"};
  const ProcessResult result = run_process(argv);
  CHECK_MESSAGE(result.exit_code == 0, result.err);
  CHECK(result.out == "");
  CHECK(parse_lines(read_file(dir.file("out.jsonl"))).size() == 2);
  CHECK(read_file(dir.file("out.jsonl.partial")) == "");
  for (const char* word : {"summary", "TTFT", "TPOT", "ITL", "E2E", "queue", "goodput", "KV cache", "MFU"}) {
    INFO(word);
    CHECK(result.err.find(word) != std::string::npos);
  }
  const auto metrics = parse_lines(read_file(dir.file("out.metrics.jsonl")));
  REQUIRE(metrics.size() == 1);
  for (const char* stem : {"ttft", "tpot", "itl", "e2el", "queue"})
    for (const char* statistic : {"mean", "p50", "p90", "p95", "p99", "max"}) {
      const std::string name = std::string(statistic) + "_" + stem + "_ms";
      INFO(name);
      REQUIRE(metrics[0].contains(name));
      CHECK(metrics[0][name].get<double>() >= 0);
    }
  CHECK(metrics[0]["completed"] == 2);
  CHECK(metrics[0]["total_output_tokens"] == 6);
  CHECK(metrics[0]["request_goodput"].get<double>() > 0);
  CHECK(metrics[0]["mfu"].get<double>() > 0);
  CHECK(metrics[0]["mfu"].get<double>() < 1);
}

TEST_CASE("the reader of a pipe may leave early") {
  const TemporaryDirectory dir;
  std::string input;
  for (int i = 0; i < 300; ++i) input += kLine;
  write_file(dir.file("in.jsonl"), input);
  const ProcessResult result = run_process({"bash", "-c",
                                            kProgram + " -m " + kModel + " --progress none " + dir.file("in.jsonl") +
                                                " | head -n 1; echo \"code ${PIPESTATUS[0]}\""});
  CHECK(result.out.find("code 141") != std::string::npos);
  CHECK(result.err == "");
}

TEST_CASE("results stream: a line is answered while stdin stays open") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in"), out = dir.file("out");
  const ProcessResult result =
      run_shell("mkfifo " + in + " " + out + "; " + kProgram + " -m " + kModel + " --progress none < " + in + " > " +
                out + " & pid=$!; exec 3> " + in + " 4< " + out + "; for i in 1 2; do " +
                R"(printf '%s\n' '{"prompt":"Once","max_tokens":2}' >&3; read -r line <&4; printf '%s\n' "$line"; )" +
                "done; exec 3>&-; wait $pid; echo code $?");
  std::stringstream lines(result.out);
  for (int i = 0; i < 2; ++i) {
    std::string line;
    std::getline(lines, line);
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    REQUIRE(record.is_object());
    CHECK(record["index"] == i);
  }
  CHECK(result.out.ends_with("\ncode 0\n"));
}

TEST_CASE("the first signal drains, and the exit code names it") {
  const TemporaryDirectory dir;
  std::string input;
  for (int i = 0; i < 2000; ++i)
    input += R"({"prompt":"Once upon a time )" + std::to_string(i) + "\",\"max_tokens\":60}\n";
  write_file(dir.file("in.jsonl"), input);
  const ProcessResult result =
      run_process({"bash", "-c",
                   kProgram + " -m " + kModel + " --progress none " + dir.file("in.jsonl") + " -o " +
                       dir.file("out.jsonl") + " & pid=$!; while [ ! -s " + dir.file("out.jsonl.partial") +
                       " ]; do sleep 0.05; done; kill -TERM $pid; wait $pid; echo code $?"});
  CHECK_MESSAGE(result.out.find("code 143") != std::string::npos, result.out << result.err);
  const std::string partial = read_file(dir.file("out.jsonl.partial"));
  REQUIRE(!partial.empty());
  CHECK(partial.back() == '\n');
  CHECK(parse_lines(partial).size() < 2000);
  CHECK(read_file(dir.file("out.jsonl")) == "");
}

TEST_CASE("a model without weights or tokenizer runs with --load-format dummy") {
  const TemporaryDirectory dir;
  REQUIRE(run_shell("cp " + kModel + "/config.json " + dir.path()).exit_code == 0);
  const ProcessResult ids = run_process({kProgram, "-m", dir.path(), "--load-format", "dummy", "--progress", "none"},
                                        R"({"prompt_token_ids":[1,2,3],"max_tokens":4,"ignore_eos":true})"
                                        "\n" +
                                            kLine);
  CHECK(ids.exit_code == 3);
  const auto records = parse_lines(ids.out);
  REQUIRE(records.size() == 2);
  const ProcessResult text = run_process(
      {kProgram, "-m", dir.path(), "--tokenizer", kModel, "--load-format", "dummy", "--progress", "none"}, kLine);
  CHECK_MESSAGE(text.exit_code == 0, text.err);
}

TEST_CASE("FAULTS 41: the limit on stacks changes no byte, however small it is") {
  const std::string lines =
      kLine + R"({"messages":[{"role":"user","content":"What is 70 + 80?"}],"max_tokens":3})" + "\n";
  const std::string expected = stable_output(run_llm_batch({}, lines).out);
  REQUIRE(!expected.empty());
  for (const char* limit : {"64", "128", "256", "1024", "unlimited"}) {
    CAPTURE(limit);
    const ProcessResult result = run_process(
        {"/bin/sh", "-c", "ulimit -s $0; exec \"$@\"", limit, kProgram, "-m", kModel, "--progress", "none"}, lines);
    CHECK(result.exit_code == 0);
    CHECK_MESSAGE(stable_output(result.out) == expected, result.err);
  }
}

TEST_CASE("more threads than the cores can serve are not started, which is said; the bytes are the same") {
  const std::string expected = stable_output(run_llm_batch({"--threads", "1"}, kLine).out);
  const ProcessResult many = run_llm_batch({"--threads", "1024"}, kLine);
  CHECK(stable_output(many.out) == expected);
  CHECK(stable_output(run_llm_batch({"--threads", "16"}, kLine).out) == expected);
  CHECK_MESSAGE(many.err.find("warning: --threads 1024: ") != std::string::npos, many.err);
}

}  // namespace llmb::test
