// Sampling and ends as a model's generation_config.json and tokenizer give them: used, and shown at the start.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

const std::string kStory = R"({"prompt":"Once upon a time","temperature":0})"
                           "\n";

// The bundled model with another generation_config.json.
std::string model_with(const TemporaryDirectory& dir, const std::string& generation_config) {
  const std::string model = dir.file("model");
  fs::create_directories(model);
  for (const auto& entry : fs::directory_iterator(kModel))
    if (entry.path().filename() != "generation_config.json")
      fs::create_symlink(entry.path(), fs::path(model) / entry.path().filename());
  if (!generation_config.empty()) write_file(model + "/generation_config.json", generation_config);
  return model;
}

ProcessResult run_model(const std::string& model, std::vector<std::string> arguments, const std::string& input) {
  std::vector<std::string> argv = {kProgram, "-m", model, "--metrics", "none"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run_process(argv, input);
}

int output_tokens(const ProcessResult& result) {
  const auto records = parse_lines(result.out);
  if (records.size() != 1) return -1;
  const auto& record = records[0];
  return record.contains("usage") ? record["usage"]["completion_tokens"].get<int>()
                                  : record["response"]["body"]["usage"]["completion_tokens"].get<int>();
}

void check_shows(const ProcessResult& result, const std::string& part) {
  CHECK_MESSAGE(result.err.find(part) != std::string::npos, part << " is not in:\n" << result.err);
}

}  // namespace

TEST_CASE("sampling defaults of generation_config.json are used and shown; flags and lines go before them") {
  const TemporaryDirectory dir;
  const std::string model =
      model_with(dir, R"({"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1,
                          "max_new_tokens": 7, "eos_token_id": 1})");
  const ProcessResult shown = run_model(model, {"--dry-run"}, kStory);
  check_shows(shown,
              "sampling  temperature 0.6, top-p 0.9, top-k 20, min-p 0.05, repetition-penalty 1.1, max-tokens 7");
  check_shows(run_model(model, {"--dry-run", "--temperature", "0", "--max-tokens", "9"}, kStory),
              "sampling  temperature 0, top-p 0.9, top-k 20, min-p 0.05, repetition-penalty 1.1, max-tokens 9");

  CHECK(output_tokens(run_model(model, {}, kStory)) == 7);
  CHECK(output_tokens(run_model(model, {"--max-tokens", "9"}, kStory)) == 9);
  CHECK(output_tokens(run_model(model, {"--min-tokens", "8"}, kStory)) == 8);
  CHECK(output_tokens(run_model(model, {},
                                R"({"prompt":"Once upon a time","max_tokens":5})"
                                "\n")) == 5);
  const std::string completion =
      R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"Once upon a time"}})"
      "\n";
  CHECK(output_tokens(run_model(model, {}, completion)) == 7);
}

TEST_CASE("several ends of a text, with their spelling; the tokenizer's own is one of them in any case") {
  const auto ends_of = [](const std::string& generation_config, std::vector<std::string> arguments = {}) {
    const TemporaryDirectory dir;
    arguments.push_back("--dry-run");
    const ProcessResult result = run_model(model_with(dir, generation_config), arguments, kStory);
    const size_t at = result.err.find("ends ");
    return at == std::string::npos ? result.err : result.err.substr(at, result.err.find('\n', at) - at);
  };
  const std::string end = "<|end|>", text = "<|endoftext|>";
  CHECK(ends_of(R"({"eos_token_id": [0, 1]})") == "ends      at " + text + " 0, " + end + " 1, or max-tokens");
  CHECK(ends_of(R"({"eos_token_id": 0})") == "ends      at " + text + " 0, " + end + " 1, or max-tokens");
  CHECK(ends_of(R"({"eos_token_id": []})", {"--stop", "\n", "--stop-token-ids", "5"}).find("\"\\n\"") !=
        std::string::npos);
  CHECK(ends_of("", {"--ignore-eos"}) == "ends      at max-tokens only: --ignore-eos");
  CHECK(ends_of("", {"--progress", "none"}).find("ends ") == std::string::npos);
}

TEST_CASE("--max-model-len: k are thousands, K are 1024s, never more than the model's context") {
  const std::string line = R"({"prompt":"Once upon a time","temperature":0,"max_tokens":1})"
                           "\n";
  for (const auto& [given, tokens] :
       {std::pair("1000", "1000"), {"1k", "1000"}, {"1K", "1024"}, {"1.5k", "1500"}, {"2K", "2048"}}) {
    const ProcessResult result = run_model(kModel, {"--max-model-len", given}, line);
    CHECK(result.exit_code == 0);
    check_shows(result, std::string("max-model-len ") + tokens + "\n");
  }
  const ProcessResult longer = run_model(kModel, {"--max-model-len", "3k"}, line);
  CHECK(longer.exit_code == 2);
  check_shows(longer, "--max-model-len 3000 is more than the model's context of 2048 tokens");
  for (const char* bad : {"0", "-1", "1x", "k", "1e99"})
    CHECK(run_model(kModel, {std::string("--max-model-len=") + bad}, line).exit_code == 2);
}

}  // namespace llmb::test
