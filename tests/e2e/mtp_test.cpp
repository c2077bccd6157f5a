// Multi-token prediction and EAGLE draft: the built program gives the same bytes with it and without, whatever the schedule and
// however often it is killed; what cannot draft so is refused in one line.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/killed_runs.h"
#include "tests/e2e/record_metrics.h"
#include "tests/e2e/run.h"
#include "tests/support/all_schedules.h"
#include "tests/support/killed_process.h"

namespace llmb::test {

namespace {

using Json = nlohmann::json;

const std::string kModels = source_dir() + "/data/fixtures/mtp/";

struct DraftingModel {
  std::string model, drafter;
};
const std::vector<DraftingModel>& drafting_models() {
  const auto with_eagle = [](const std::string& name) {
    const std::string fixtures = source_dir() + "/data/fixtures/";
    const std::string model = name.ends_with("-3") ? name.substr(0, name.size() - 2) : name;
    return DraftingModel{fixtures + "models/" + model, "eagle:" + fixtures + "eagle/" + name};
  };
  static const std::vector<DraftingModel> all = {
      {kModels + "qwen3_5-text", "mtp"}, {kModels + "deepseek_v3", "mtp"}, {kModels + "qwen3_next", "mtp"},
      {kModels + "glm4_moe", "mtp"},     with_eagle("llama-gqa"),          with_eagle("qwen3-3"),
      {source_dir() + "/data/fixtures/gguf/of_models/qwen35-mtp.gguf", "mtp"}};
  return all;
}

// Prompts whose beginnings are shared, up to borders of blocks and beyond: greedy and sampled, some with several answers.
std::string lines(int num_lines) {
  std::string text;
  for (int i = 0; i < num_lines; ++i) {
    std::vector<int> tokens;
    for (int at = 0; at < 14 + i % 5; ++at) tokens.push_back((at * at * (i % 3 + 2) + at) % 61 + 1);
    for (int at = 0; at < i % 4; ++at) tokens.push_back((i * 5 + at * 3) % 61 + 1);
    Json line = {{"id", i},        {"prompt_token_ids", tokens}, {"seed", i},
                 {"max_tokens", 20 + i * 5 % 50}, {"ignore_eos", true}, {"return_token_ids", true}};
    line["temperature"] = i % 3 == 1 ? 0.7 : 0.0;
    if (i % 7 == 3) line["n"] = 3, line["temperature"] = 0.9;
    if (i % 6 == 2) line["repetition_penalty"] = 1.2;
    if (i % 5 == 4) line["logprobs"] = 2;
    text += line.dump() + "\n";
  }
  return text;
}

std::vector<std::string> command(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {kProgram, "-m", model, "--tokenizer", kModel, "--progress", "none"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

const std::vector<std::vector<std::string>>& schedules() {
  static const std::vector<std::vector<std::string>> all = {
      {"--max-num-seqs", "1"},
      {"--max-num-seqs", "3", "--block-size", "8"},
      {"--max-num-batched-tokens", "9", "--block-size", "8", "--num-speculative-tokens", "3"},
      {"--num-gpu-blocks-override", "30", "--block-size", "8", "--max-num-seqs", "6", "--threads", "3"},
      {"--no-enable-prefix-caching", "--batching", "static", "--max-num-seqs", "7", "--num-speculative-tokens", "1"},
      {"--block-size", "32", "--num-speculative-tokens", "8", "--workers", "2"}};
  return all;
}

// A copy of a model with the tensor's values all 0.
void copy_with_zeros(const std::string& model, const std::string& tensor, const TemporaryDirectory& dir) {
  write_file(dir.file("config.json"), read_file(model + "/config.json"));
  std::string weights = read_file(model + "/model.safetensors");
  uint64_t header_size = 0;
  std::memcpy(&header_size, weights.data(), 8);
  const Json offsets = Json::parse(weights.substr(8, header_size))[tensor]["data_offsets"];
  const size_t begin = 8 + header_size + offsets[0].get<size_t>(), end = 8 + header_size + offsets[1].get<size_t>();
  std::fill(weights.begin() + static_cast<std::ptrdiff_t>(begin), weights.begin() + static_cast<std::ptrdiff_t>(end), 0);
  write_file(dir.file("model.safetensors"), weights);
}

}  // namespace

TEST_CASE("drafts by a layer behind the last one change no byte") {
  const std::string input = lines(24);
  for (size_t m = 0; m < drafting_models().size(); ++m) {
    const auto& [model, drafter] = drafting_models()[m];
    CAPTURE(model);
    const ProcessResult plain = run_process(
        command(model, {"--batching", "none", "--threads", "1", "--no-enable-prefix-caching", "--speculative", "none"}),
        input);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    int64_t num_drafted = 0, num_accepted = 0, num_cached = 0, num_preemptions = 0;
    for (size_t s = 0; s < schedules().size(); ++s) {
      if (!runs_all_schedules() && (s + m) % 2 == 1) continue;
      std::vector<std::string> flags = schedules()[s];
      flags.insert(flags.end(), {"--speculative", s == 2 ? drafter + ",lookup" : drafter});
      CAPTURE(s);
      const ProcessResult result = run_process(command(model, flags), input);
      REQUIRE_MESSAGE(result.exit_code == 0, result.err);
      CHECK(stable_output(result.out) == stable_output(plain.out));
      num_drafted += sum_of_metric(result.out, "drafted_tokens");
      num_accepted += sum_of_metric(result.out, "accepted_tokens");
      num_cached += sum_of_metric(result.out, "cached_tokens");
      num_preemptions += sum_of_metric(result.out, "num_preemptions");
    }
    MESSAGE(model << ": " << num_accepted << " of " << num_drafted << " drafts accepted, " << num_cached
                      << " tokens found, " << num_preemptions << " preemptions");
    CHECK(num_drafted > 0);
    CHECK(num_cached > 0);
  }
}

TEST_CASE("a job that is killed again and again, with and without the layer") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), lines(20));
  for (const size_t m : {0, 1, 4, 5}) {
    const auto& [model, drafter] = drafting_models()[m];
    CAPTURE(model);
    const ProcessResult plain = run_process(command(model, {dir.file("in.jsonl"), "--speculative", "none"}));
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    const std::string out = dir.file(std::to_string(m) + ".jsonl");
    kill_until_done(dir, [&, model = model, drafter = drafter](int attempt) {
      return command(model, {dir.file("in.jsonl"), "-o", out, "--max-num-seqs", "3", "--speculative",
                             attempt % 3 == 0 ? "none" : drafter});
    });
    CHECK(stable_output(read_file(out)) == stable_output(plain.out));
  }
}

TEST_CASE("over tensor-parallel ranks drafts by heads and by layers change no byte") {
  const std::string input = lines(12), fixtures = source_dir() + "/data/fixtures/";
  std::vector<DraftingModel> models = drafting_models();
  models.push_back({fixtures + "models/llama-gqa", "medusa:" + fixtures + "medusa"});
  int64_t num_accepted = 0;
  for (size_t m = 0; m < models.size(); ++m) {
    const auto& [model, drafter] = models[m];
    CAPTURE(drafter);
    CAPTURE(model);
    const auto run = [&](std::vector<std::string> flags) {
      flags.insert(flags.end(), {"--tensor-parallel-size", "2"});
      const ProcessResult result = run_process(command(model, flags), input);
      REQUIRE_MESSAGE(result.exit_code == 0, result.err);
      return result.out;
    };
    const std::string plain = run({"--speculative", "none"});
    std::vector<std::string> flags = schedules()[m % schedules().size()];
    flags.insert(flags.end(), {"--speculative", drafter});
    const std::string drafted = run(flags);
    CHECK(stable_output(drafted) == stable_output(plain));
    num_accepted += sum_of_metric(drafted, "accepted_tokens");
  }
  CHECK(num_accepted > 0);
}

TEST_CASE("over stages and context ranks drafts give the bytes of one process that drafts nothing") {
  const std::string input = lines(8), fixtures = source_dir() + "/data/fixtures/";
  const auto& models = drafting_models();
  const DraftingModel heads = {fixtures + "models/llama-gqa", "medusa:" + fixtures + "medusa"};
  const std::string stages = "--pipeline-parallel-size", rows = "--prefill-context-parallel-size";
  const std::pair<DraftingModel, std::vector<std::string>> runs[] = {
      {models[0], {stages, "2"}},
      {models[1], {stages, "2", "--max-num-batched-tokens", "9"}},
      {models[3], {rows, "2", "--max-num-seqs", "3"}},
      {models[4], {stages, "2", rows, "2"}},
      {models[5], {"--decode-context-parallel-size", "2"}},
      {models[5], {stages, "2", "--num-gpu-blocks-override", "30", "--block-size", "8", "--max-num-seqs", "6"}},
      {heads, {stages, "2", "--workers", "2"}},
      {{fixtures + "models/llama-gqa", "layers:1"}, {stages, "2", "--block-size", "8"}}};
  int64_t num_drafted = 0;
  for (const auto& [drafting, flags] : runs) {
    CAPTURE(drafting.model);
    CAPTURE(drafting.drafter);
    const ProcessResult plain = run_process(command(drafting.model, {"--speculative", "none"}), input);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    const ProcessResult drafted = run_process(
        command(drafting.model, with({"--speculative", drafting.drafter}, flags)), input);
    REQUIRE_MESSAGE(drafted.exit_code == 0, drafted.err);
    CHECK(stable_output(drafted.out) == stable_output(plain.out));
    num_drafted += sum_of_metric(drafted.out, "drafted_tokens");
  }
  CHECK(num_drafted > 0);
}

TEST_CASE("a layer that knows nothing costs no byte, and swapped blocks hold what it needs") {
  const TemporaryDirectory dir;
  copy_with_zeros(kModels + "glm4_moe", "model.layers.2.eh_proj.weight", dir);
  const std::string input = lines(24);
  const ProcessResult plain = run_process(command(kModels + "glm4_moe", {"--speculative", "none"}), input);
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const ProcessResult wrong = run_process(command(dir.path(), {"--speculative", "mtp"}), input);
  REQUIRE_MESSAGE(wrong.exit_code == 0, wrong.err);
  CHECK(stable_output(wrong.out) == stable_output(plain.out));
  const ProcessResult swapped = run_process(
      command(kModels + "glm4_moe", {"--speculative", "mtp", "--preemption", "swap", "--num-gpu-blocks-override", "30",
                                     "--block-size", "8", "--max-num-seqs", "6"}),
      input);
  REQUIRE_MESSAGE(swapped.exit_code == 0, swapped.err);
  CHECK(stable_output(swapped.out) == stable_output(plain.out));
  CHECK(sum_of_metric(swapped.out, "num_preemptions") > 0);
}

TEST_CASE("what cannot draft so is refused in one line, before anything runs") {
  const auto refusal = [](const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--speculative", "mtp"};
    flags.insert(flags.end(), more.begin(), more.end());
    const ProcessResult result = run_process(command(model, flags), lines(1));
    CHECK(result.exit_code != 0);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    return result.err;
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  contains(refusal(kModel, {}), "mtp: a model of type \"llama\" has no layer that predicts further tokens");
  contains(refusal(source_dir() + "/data/fixtures/models/qwen3_next", {}), "\"mtp.");
  contains(refusal(source_dir() + "/data/fixtures/models/deepseek_v3", {}), "\"model.layers.2.");
  contains(refusal(kModels + "glm4_moe", {"--device", "ledger"}), "drafts on the CPU");
  contains(refusal(kModels + "glm4_moe", {"--task", "embed", "--pooling", "mean"}), "mtp");
}

}  // namespace llmb::test
