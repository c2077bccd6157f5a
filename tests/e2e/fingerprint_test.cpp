// Every setting that answers depend on is a component of the fingerprint, and nothing else is: FAULTS row 10.
#include "job/fingerprint.h"

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>

#include "backend/make_backend.h"
#include "kernels/cpu/linear.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

Fingerprint fingerprint_of(std::vector<std::string> arguments, const std::string& model = kModel,
                           const Fingerprint* recorded = nullptr) {
  std::vector<const char*> argv = {"llm-batch", "-m", model.c_str()};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  const ParsedCommandLine parsed = parse_command_line(static_cast<int>(argv.size()), argv.data());
  REQUIRE(!parsed.exit_code);
  const auto files = load_model_files(parsed.options);
  REQUIRE(files.ok());
  const auto device = choose_device(parsed.options.device);
  REQUIRE(device.ok());
  auto fingerprint = compute_fingerprint(parsed.options, *files, device->identity, recorded);
  REQUIRE(fingerprint.ok());
  return std::move(*fingerprint);
}

std::string joined(const std::vector<std::string>& differences) {
  std::string text;
  for (const std::string& difference : differences) text += difference + "\n";
  return text;
}

}  // namespace

TEST_CASE("each setting that changes answers is one component") {
  const Fingerprint base = fingerprint_of({});
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--temperature", "0.25"}, "temperature"},
      {{"--top-p", "0.5"}, "top_p"},
      {{"--top-k", "5"}, "top_k"},
      {{"--min-p", "0.5"}, "min_p"},
      {{"--repetition-penalty", "1.5"}, "repetition_penalty"},
      {{"--presence-penalty", "0.5"}, "presence_penalty"},
      {{"--frequency-penalty", "0.5"}, "frequency_penalty"},
      {{"--logit-bias", "{\"7\": 1}"}, "logit_bias"},
      {{"--logprobs", "0"}, "logprobs"},
      {{"--max-tokens", "5"}, "max_tokens"},
      {{"--min-tokens", "5"}, "min_tokens"},
      {{"--stop", "x"}, "stop"},
      {{"--stop-token-ids", "5,6"}, "stop_token_ids"},
      {{"--truncate", "left"}, "truncate"},
      {{"--ignore-eos"}, "ignore_eos"},
      {{"--include-stop-str-in-output"}, "include_stop_str_in_output"},
      {{"--no-skip-special-tokens"}, "skip_special_tokens"},
      {{"--return-token-ids"}, "return_token_ids"},
      {{"--seed", "1"}, "seed"},
      {{"--device", "ledger"}, "device"},
      {{"--dtype", cpu::has_fast_bf16() ? "float32" : "bfloat16"}, "dtype"},
      {{"--kv-cache-dtype", "float32"}, "kv_cache_dtype"},
      {{"--kv-cache-dtype", "int8"}, "kv_cache_dtype"},
      {{"--max-model-len", "100"}, "max_model_len"},
      {{"--no-metrics"}, "no_metrics"},
  };
  for (const auto& [arguments, component] : cases) {
    INFO(std::string(component));
    const auto differences = fingerprint_differences(base, fingerprint_of(arguments));
    REQUIRE_MESSAGE(differences.size() == 1, joined(differences));
    CHECK(differences[0].starts_with(std::string(component) + " was "));
  }
  CHECK_FALSE(fingerprint_differences(base, fingerprint_of({"--load-format", "dummy"})).empty());
  // Explicit defaults and matters of schedule are no difference.
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--device", "cpu"},
                                             {"--dtype", cpu::has_fast_bf16() ? "bfloat16" : "float32"},
                                             {"--kv-cache-dtype", "bfloat16"},
                                             {"--deterministic"},
                                             {"--watchdog-timeout", "9"},
                                             {"--top-p", "1"},
                                             {"--min-tokens", "0"},
                                             {"--max-num-seqs", "3"},
                                             {"--threads", "2"},
                                             {"--batching", "static"},
                                             {"--block-size", "32"},
                                             {"--order", "input"},
                                             {"--progress", "none"},
                                             {"--request-rate", "5"},
                                             {"--max-num-batched-tokens", "64"},
                                             {"--tokenizer", kModel},
                                             {"--restart"},
                                             {"--max-errors", "1"},
                                             {"--grace", "1"}})
    CHECK(joined(fingerprint_differences(base, fingerprint_of(arguments))) == "");
}

TEST_CASE("a recorded hash is used again only while size, time and inode are the same and the file was not young") {
  const TemporaryDirectory dir;
  const std::string model = dir.file("model"), config = model + "/config.json";
  fs::copy(kModel, model);
  const auto old_time = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(config, old_time);
  Fingerprint recorded = fingerprint_of({}, model);
  REQUIRE(recorded.files[0].name == "model/config.json");
  CHECK(recorded.files[0].mtime_ns != 0);
  const uint64_t hash = recorded.files[0].content_hash;
  recorded.files[0].content_hash = 42;  // as a mark
  CHECK(fingerprint_of({}, model, &recorded).files[0].content_hash == 42);
  fs::last_write_time(config, old_time + std::chrono::seconds(1));
  CHECK(fingerprint_of({}, model, &recorded).files[0].content_hash == hash);
  fs::last_write_time(config, fs::file_time_type::clock::now());
  Fingerprint young = fingerprint_of({}, model);
  CHECK(young.files[0].mtime_ns == 0);
  young.files[0].content_hash = 42;
  CHECK(fingerprint_of({}, model, &young).files[0].content_hash == hash);
}

TEST_CASE("beside other work the fingerprint is the same, and it is given up where nobody waits for it") {
  const char* argv[] = {"llm-batch", "-m", kModel.c_str(), "--device", "cpu"};
  const ParsedCommandLine parsed = parse_command_line(5, argv);
  const auto files = load_model_files(parsed.options);
  REQUIRE(files.ok());
  { const FingerprintTask dropped(parsed.options, *files, "cpu"); }
  FingerprintTask task(parsed.options, *files, "cpu");
  const auto fingerprint = task.wait();
  REQUIRE(fingerprint.ok());
  CHECK(fingerprint->files.size() > 3);
  CHECK(joined(fingerprint_differences(fingerprint_of({"--device", "cpu"}), *fingerprint)) == "");
  const std::atomic<bool> stop{true};
  CHECK(compute_fingerprint(parsed.options, *files, "cpu", nullptr, &stop).status().code() == StatusCode::kCancelled);
}

}  // namespace llmb::test
