// Every setting that answers depend on is a component of the fingerprint, and nothing else is: FAULTS row 10.
#include "job/fingerprint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "backend/make_backend.h"
#include "cli/options.h"
#include "kernels/cpu/arithmetic.h"
#include "kernels/cpu/linear.h"
#include "tests/e2e/run_in_child.h"
#include "tests/support/file_changes.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

JobModel model_of(const JobOptions& options) {
  auto files = load_model_files(options);
  REQUIRE(files.ok());
  auto device = choose_device(options.device);
  REQUIRE(device.ok());
  auto inventory = take_inventory(options.model);
  REQUIRE(inventory.ok());
  return {std::move(*device), std::move(*inventory), std::move(*files)};
}

Fingerprint fingerprint_of(std::vector<std::string> arguments, const std::string& model = kModel,
                           const Fingerprint* recorded = nullptr) {
  std::vector<const char*> argv = {"llm-batch", "-m", model.c_str()};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  const ParsedCommandLine parsed = parse_command_line(static_cast<int>(argv.size()), argv.data());
  REQUIRE(!parsed.exit_code);
  const JobModel loaded = model_of(parsed.options.job);
  auto fingerprint = compute_fingerprint(parsed.options.job, loaded, recorded, [] { return true; });
  REQUIRE(fingerprint.ok());
  return std::move(*fingerprint);
}

// As on the device: nothing of it is needed to say what its answers depend on.
Fingerprint gpu_fingerprint() {
  const char* argv[] = {"llm-batch", "-m", kModel.c_str()};
  const ParsedCommandLine parsed = parse_command_line(3, argv);
  JobModel model = model_of(parsed.options.job);
  model.device = {DeviceKind::kCuda, "cuda:0", "cuda (a GPU)", ""};
  auto fingerprint = compute_fingerprint(parsed.options.job, model, nullptr, [] { return true; });
  REQUIRE(fingerprint.ok());
  return std::move(*fingerprint);
}

std::string joined(const std::vector<std::string>& differences) {
  std::string text;
  for (const std::string& difference : differences) text += difference + "\n";
  return text;
}

}  // namespace

TEST_CASE("answers of a CPU and of a GPU change from build to build apart from each other") {
  const auto version_of = [](const Fingerprint& fingerprint) {
    for (const auto& [name, value] : fingerprint.settings)
      if (name == kAnswersVersionName) return value;
    return std::string();
  };
  CHECK(version_of(fingerprint_of({})) == std::to_string(kAnswersVersion));
  CHECK(version_of(gpu_fingerprint()) == std::to_string(kGpuAnswersVersion));
}

TEST_CASE("each setting that changes answers is one component") {
  const Fingerprint base = fingerprint_of({});
  const TemporaryDirectory forms;
  write_file(forms.file("g"), "root ::= \"a\"");
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
      {{"--n", "2"}, "n"},
      {{"--best-of", "2"}, "best_of"},
      {{"--json-schema", source_dir() + "/examples/order.schema.json"}, "json_schema"},
      {{"--regex", "a+"}, "regex"},
      {{"--choice", "a,b"}, "choice"},
      {{"--grammar", forms.file("g")}, "grammar"},
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
      {{"--arithmetic", "unfused"}, "arithmetic"},
      {{"--kv-cache-dtype", "float32"}, "kv_cache_dtype"},
      {{"--kv-cache-dtype", "int8"}, "kv_cache_dtype"},
      {{"--max-model-len", "100"}, "max_model_len"},
      {{"--no-metrics"}, "no_metrics"},
  };
  for (const auto& [arguments, component] : cases) {
    INFO(std::string(component));
    auto differences = fingerprint_differences(base, fingerprint_of(arguments));
    // A processor may have another arithmetic for another dtype, and the other way round.
    for (const auto& [asked, follows] : {std::pair("dtype", "arithmetic was "), std::pair("arithmetic", "dtype was ")})
      if (std::string(component) == asked)
        std::erase_if(differences, [&](const std::string& text) { return text.starts_with(follows); });
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
                                             {"--arithmetic", arithmetic_name(cpu::arithmetic())},
                                             {"--watchdog-timeout", "9"},
                                             {"--top-p", "1"},
                                             {"--n", "1"},
                                             {"--min-tokens", "0"},
                                             {"--max-num-seqs", "3"},
                                             {"--threads", "2"},
                                             {"--batching", "static"},
                                             {"--block-size", "32"},
                                             {"--no-enable-prefix-caching"},
                                             {"--preemption", "swap"},
                                             {"--swap-space", "1"},
                                             {"--order", "input"},
                                             {"--progress", "none"},
                                             {"--request-rate", "5"},
                                             {"--policy", "mlfq"},
                                             {"--max-num-batched-tokens", "64"},
                                             {"--tokenizer", kModel},
                                             {"--restart"},
                                             {"--max-errors", "1"},
                                             {"--grace", "1"}})
    CHECK(joined(fingerprint_differences(base, fingerprint_of(arguments))) == "");
}

TEST_CASE("FAULTS 42: a recorded hash is used again only of a large file whose times tell of any change") {
  const TemporaryDirectory dir;
  const std::string model = dir.file("model"), large = model + "/z.safetensors";
  fs::copy(kModel, model);
  write_file(large, "x");
  fs::resize_file(large, 17 << 20);
  for (const auto& entry : fs::directory_iterator(model)) let_rest(entry.path());
  const auto file_of = [](const Fingerprint& fingerprint, const std::string& name) {
    for (const FileFingerprint& file : fingerprint.files)
      if (file.name == name) return file;
    FAIL("not there");
    return FileFingerprint();
  };
  Fingerprint recorded = fingerprint_of({}, model);
  const uint64_t hash = file_of(recorded, "model/z.safetensors").content_hash;
  const uint64_t small_hash = file_of(recorded, "model/config.json").content_hash;
  const bool are_times_trusted = change_times_at(large) != ChangeTimes::kUnknown;
  for (FileFingerprint& file : recorded.files) file.content_hash = 42;  // as a mark
  const auto now = [&](const std::string& name) {
    return file_of(fingerprint_of({}, model, &recorded), name).content_hash;
  };
  CHECK(now("model/z.safetensors") == (are_times_trusted ? 42 : hash));
  CHECK(now("model/config.json") == small_hash);  // to read it costs nothing
  fs::permissions(large, fs::perms::owner_all);   // not its bytes, but a new change time
  CHECK(now("model/z.safetensors") == hash);
  flip_byte_unseen(large, 9 << 20);
  CHECK(now("model/z.safetensors") != hash);
  Fingerprint young = fingerprint_of({}, model);
  FileFingerprint& file = young.files[0];
  file.identity.mtime_ns = 0;  // as it is recorded of a file that has just changed
  CHECK_FALSE(file.same_identity(file));
}

TEST_CASE("FAULTS 42: a byte of any model file changed with its time put back is refused by name on resume") {
  const TemporaryDirectory dir;
  const std::string model = dir.file("model"), in = dir.file("in"), out = dir.file("out"), tmpl = dir.file("t.jinja");
  const std::string line = "{\"prompt_token_ids\":[1,2,3],\"max_tokens\":2}\n";
  fs::copy(kModel, model);
  write_file(tmpl, "{{ messages[0].content }} 1");
  const auto run = [&](const std::string& input) {
    write_file(in, input);
    return run_process({kProgram, "-m", model, "--chat-template", tmpl, "--device", "ledger", "--progress", "none", in,
                        "-o", out, "--metrics", "none"});
  };
  // In each file a byte whose change leaves it readable.
  const std::pair<std::string, std::string> places[] = {{model + "/model.safetensors", ""},
                                                        {model + "/config.json", "00.0,"},
                                                        {model + "/generation_config.json", "0\n}"},
                                                        {model + "/tokenizer.json", "1.0"},
                                                        {model + "/tokenizer_config.json", "added_tokens_decoder"},
                                                        {tmpl, "1"}};
  for (const auto& place : places) {
    const auto& [path, text] = place;
    CAPTURE(path);
    REQUIRE(run(line).exit_code == 0);
    const std::string before = read_file(path);
    const size_t at = text.empty() ? before.size() / 2 : before.find(text);
    REQUIRE(at < before.size());
    flip_byte_unseen(path, at, 1);
    const ProcessResult result = run(line + line);
    CHECK(result.exit_code == 7);
    CHECK_MESSAGE(result.err.find(" file ") != std::string::npos, result.err);
    CHECK(result.err.find(path == tmpl ? "chat-template" : fs::path(path).filename().string()) != std::string::npos);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 2);
    flip_byte_unseen(path, at, 1);
    CHECK(run(line + line).exit_code == 0);
    fs::remove(out);
    fs::remove(out + ".manifest.json");
  }
}

TEST_CASE("a file that changes, comes or goes while the model is loaded is named, and the run refused") {
  const TemporaryDirectory dir;
  const std::string files = dir.file("files"), in = dir.file("in"), out = dir.file("out");
  write_file(in, "{\"prompt_token_ids\":[1,2,3],\"max_tokens\":2}\n");
  const std::pair<std::function<void()>, std::string> changes[] = {
      {[&] { flip_byte_unseen(files + "/tokenizer.json", 5000, 1); }, "tokenizer.json"},
      {[&] { cut_file(files + "/tokenizer.json", 10); }, "tokenizer.json"},
      {[&] { write_file(files + "/added_tokens.json", "{}"); }, "added_tokens.json"},
      {[&] { write_file(files + "/a.tiktoken", ""); }, "a.tiktoken"},
      {[&] { fs::remove(files + "/special_tokens_map.json"); }, "special_tokens_map.json"},
      {[&] {
         fs::copy(files + "/tokenizer_config.json", files + "/new");
         fs::rename(files + "/new", files + "/tokenizer_config.json");
       },
       "tokenizer_config.json"},
  };
  for (const auto& change : changes) {
    CAPTURE(change.second);
    for (const std::string& output : {out, std::string("-")}) {
      fs::remove_all(files);
      fs::copy(kModel, files);
      // Called when the small files are read, and before weights are.
      const BackendFactory make = [&](std::string_view device) {
        change.first();
        return make_backend(device);
      };
      const auto run = [&](const BackendFactory& factory) {
        return run_in_child({"--tokenizer", files, "--device", "ledger", in, "-o", output}, factory).process;
      };
      const ProcessResult result = run(make);
      INFO(result.err);
      CHECK(result.exit_code == 4);
      CHECK(result.err.find(files + "/" + change.second + ": changed while the model was loaded") != std::string::npos);
      CHECK(result.out.empty());
      CHECK_FALSE(fs::exists(out));
      CHECK_FALSE(fs::exists(out + ".partial"));
      CHECK_FALSE(fs::exists(out + ".manifest.json"));
    }
  }
}

TEST_CASE("beside other work the fingerprint is the same, and it is given up where nobody waits for it") {
  const char* argv[] = {"llm-batch", "-m", kModel.c_str(), "--device", "cpu"};
  const ParsedCommandLine parsed = parse_command_line(5, argv);
  const JobOptions& options = parsed.options.job;
  const JobModel loaded = model_of(options);
  const KeepGoing always = [] { return true; }, never = [] { return false; };
  { const FingerprintTask dropped(options, loaded, always); }
  FingerprintTask task(options, loaded, always);
  const auto fingerprint = task.wait();
  REQUIRE(fingerprint.ok());
  CHECK(fingerprint->files.size() > 3);
  CHECK(joined(fingerprint_differences(fingerprint_of({"--device", "cpu"}), *fingerprint)) == "");
  CHECK(compute_fingerprint(options, loaded, nullptr, never).status().code() == StatusCode::kCancelled);
}

}  // namespace llmb::test
