// Rows of one file name different LoRA adapters: PEFT's answers, the same bytes under every schedule, and an error
// record for every row whose adapter is unknown, damaged or another model's (FAULTS row 36).
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/e2e/killed_runs.h"
#include "tests/e2e/run.h"
#include "tests/support/golden.h"
#include "tests/support/killed_process.h"
#include "tests/support/skip.h"

namespace llmb::test {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const std::string kAdapters = source_dir() + "/data/fixtures/adapters/llama-gqa";
const std::vector<std::string> kNames = {"patterns", "rank-1", "rank-16-stabilised", "rank-256", "rank-8"};

std::vector<std::string> adapted_program(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(),
                   {kProgram, "--order", "input", "-m", source_dir() + "/data/fixtures/models/llama-gqa", "--tokenizer",
                    kModel, "--progress", "none", "--dtype", "float32", "--temperature", "0"});
  return arguments;
}

ProcessResult run_adapted(const std::vector<std::string>& arguments, const std::string& input = "") {
  return run_process(adapted_program(arguments), input);
}

// The golden lines of all adapters in turn; their answers' ids are in `expected`.
std::string golden_lines(std::vector<json>* expected) {
  std::vector<std::vector<json>> golden;
  for (const std::string& name : kNames) golden.push_back(read_json_lines(kAdapters + "/" + name + "/golden.jsonl"));
  std::string lines;
  for (size_t i = 0; i < golden[0].size(); ++i) {
    for (size_t a = 0; a < kNames.size(); ++a) {
      const json& line = golden[a][i];
      lines += json{{"prompt_token_ids", line["prompt_token_ids"]},
                    {"adapter", kNames[a]},
                    {"ignore_eos", true},
                    {"max_tokens", line["token_ids"].size()},
                    {"return_token_ids", true}}
                   .dump() +
               "\n";
      expected->push_back(line["token_ids"]);
    }
  }
  return lines;
}

json plain_line(const std::string& adapter) {
  json line = {{"prompt_token_ids", {5, 6, 7}}, {"max_tokens", 3}, {"ignore_eos", true}, {"return_token_ids", true}};
  if (!adapter.empty()) line["adapter"] = adapter;
  return line;
}

json batch_line(const std::string& model) {
  return {
      {"custom_id", model},
      {"method", "POST"},
      {"url", "/v1/completions"},
      {"body",
       {{"model", model}, {"prompt", {5, 6, 7}}, {"max_tokens", 3}, {"ignore_eos", true}, {"return_token_ids", true}}}};
}

std::string code_of(const json& record) {
  if (!record.contains("error") || record["error"].is_null()) return "";
  return record["error"]["code"];
}

// A folder of adapters that a test may damage.
void copy_adapter(const std::string& name, const fs::path& to) {
  fs::create_directories(to);
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
    fs::copy_file(kAdapters + "/" + name + "/" + file, to / file);
}

}  // namespace

TEST_CASE("rows of five adapters in one file get PEFT's answers, the same bytes under every schedule") {
  std::vector<json> expected;
  const std::string lines = golden_lines(&expected);
  std::string first;
  for (const std::vector<std::string>& schedule : std::vector<std::vector<std::string>>{
           {},
           {"--batching", "none", "--threads", "1"},
           {"--max-num-batched-tokens", "5"},
           {"--schedule", "file", "--no-enable-prefix-caching", "--speculative", "none"},
           {"--max-num-seqs", "3", "--block-size", "8", "--num-gpu-blocks-override", "12"}}) {
    std::vector<std::string> arguments = {"--adapter-dir", kAdapters};
    arguments.insert(arguments.end(), schedule.begin(), schedule.end());
    const ProcessResult result = run_adapted(arguments, lines);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    const std::string bytes = stable_output(result.out);
    if (first.empty()) first = bytes;
    CHECK(bytes == first);
  }
  const auto records = parse_lines(first);
  REQUIRE(records.size() == expected.size());
  for (const json& record : records) CHECK(record["token_ids"] == expected[record["index"].get<size_t>()]);
}

TEST_CASE("a line's adapter, an OpenAI line's model, the default, vLLM's spelling; totals by adapter") {
  const TemporaryDirectory dir;
  const std::vector<std::string> named = {"--adapter", "one=" + kAdapters + "/rank-8", "--lora-modules",
                                          "{\"name\":\"two\",\"path\":\"" + kAdapters + "/rank-256\"}"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), named.begin(), named.end());
    return more;
  };
  const std::string lines = plain_line("one").dump() + "\n" + plain_line("two").dump() + "\n" + plain_line("").dump() +
                            "\n" + batch_line("one").dump() + "\n" + batch_line("base").dump() + "\n" +
                            batch_line("three").dump() + "\n";
  const ProcessResult result =
      run_adapted(with({"--served-model-name", "base", "--metrics", dir.file("metrics.jsonl")}), lines);
  CHECK(result.exit_code == 3);
  auto records = parse_lines(result.out);
  REQUIRE(records.size() == 6);
  CHECK(records[0]["token_ids"] != records[2]["token_ids"]);
  CHECK(records[1]["token_ids"] != records[2]["token_ids"]);
  CHECK(records[3]["response"]["body"]["model"] == "one");
  CHECK(records[3]["response"]["body"]["choices"][0]["token_ids"] == records[0]["token_ids"]);
  CHECK(records[4]["response"]["body"]["choices"][0]["token_ids"] == records[2]["token_ids"]);
  CHECK(records[5].dump().find("unknown_model") != std::string::npos);
  const json metrics = parse_lines(read_file(dir.file("metrics.jsonl"))).at(0);
  CHECK(metrics["adapters"]["one"]["completed"] == 2);
  CHECK(metrics["adapters"]["one"]["output_tokens"] == 6);
  CHECK(metrics["adapters"]["two"]["input_tokens"] == 3);

  const auto defaults = parse_lines(run_adapted(with({"--default-adapter", "two"}), lines).out);
  CHECK(defaults[2]["token_ids"] == records[1]["token_ids"]);
  CHECK(run_adapted(with({"--default-adapter", "three"}), lines).exit_code == 2);

  // Behind the modules stands the input.
  write_file(dir.file("in=put.jsonl"), lines);
  const std::vector<std::string> modules = {"--served-model-name", "base", "--lora-modules",
                                            "one=" + kAdapters + "/rank-8", "two=" + kAdapters + "/rank-256"};
  std::vector<std::string> with_file = modules;
  with_file.push_back(dir.file("in=put.jsonl"));
  const auto of_pipe = parse_lines(run_adapted(modules, lines).out), of_file = parse_lines(run_adapted(with_file, "").out);
  REQUIRE(of_file.size() == 6);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(of_pipe.at(i)["token_ids"] == records[i]["token_ids"]);
    CHECK(of_file[i]["token_ids"] == records[i]["token_ids"]);
  }
  CHECK(run_adapted(with({"--adapter", "one=elsewhere"}), lines).exit_code == 2);
  CHECK(run_adapted({"--adapter", "no-folder"}, lines).exit_code == 2);
  CHECK(run_adapted({"--adapter-dir", dir.file("missing")}, lines).exit_code == 2);
}

TEST_CASE("FAULTS 36: missing, truncated, wrong and hostile adapters cost their rows, in a run and in a dry run") {
  const TemporaryDirectory dir;
  const fs::path root = dir.file("adapters");
  for (const char* name : {"good", "truncated", "missing", "folder", "pipe", "endless", "loha", "other", "nan"})
    copy_adapter("rank-8", root / name);
  fs::resize_file(root / "truncated/adapter_model.safetensors", 1000);
  for (const char* name : {"missing", "folder", "pipe", "endless"})
    fs::remove(root / name / "adapter_model.safetensors");
  fs::create_directory(root / "folder/adapter_model.safetensors");
  REQUIRE(::mkfifo((root / "pipe/adapter_model.safetensors").c_str(), 0600) == 0);
  fs::create_symlink("/dev/zero", root / "endless/adapter_model.safetensors");
  write_file((root / "loha/adapter_config.json").string(), R"({"peft_type": "LOHA", "r": 8})");
  fs::copy_file(source_dir() + "/data/fixtures/adapters/gpt2/rank-16/adapter_model.safetensors",
                root / "other/adapter_model.safetensors", fs::copy_options::overwrite_existing);
  std::fstream values(root / "nan/adapter_model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  values.seekp(-2, std::ios::end);
  values.write("\xc0\x7f", 2);
  values.close();
  copy_adapter("rank-8", dir.file("outside"));
  const std::vector<std::pair<std::string, std::string>> rows = {{"good", ""},
                                                                 {"truncated", "invalid_adapter"},
                                                                 {"missing", "invalid_adapter"},
                                                                 {"folder", "invalid_adapter"},
                                                                 {"pipe", "invalid_adapter"},
                                                                 {"endless", "invalid_adapter"},
                                                                 {"loha", "invalid_adapter"},
                                                                 {"other", "invalid_adapter"},
                                                                 {"nan", "invalid_adapter"},
                                                                 {"unknown", "unknown_adapter"},
                                                                 {"../outside", "unknown_adapter"},
                                                                 {"../adapters/good", "unknown_adapter"},
                                                                 {dir.file("outside"), "unknown_adapter"},
                                                                 {"good/", "unknown_adapter"},
                                                                 {std::string("good\0x", 6), "unknown_adapter"},
                                                                 {"good", ""}};
  std::string lines;
  for (const auto& [name, code] : rows) lines += plain_line(name).dump() + "\n";
  const ProcessResult result = run_adapted({"--adapter-dir", root.string()}, lines);
  CHECK(result.exit_code == 3);
  const auto records = parse_lines(stable_output(result.out));
  REQUIRE(records.size() == rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(rows[i].first);
    CHECK(code_of(records[i]) == rows[i].second);
  }
  const ProcessResult dry = run_adapted({"--adapter-dir", root.string(), "--dry-run"}, lines);
  CHECK(dry.exit_code == 3);
  CHECK(dry.err.find("2 lines ok, 14 bad") != std::string::npos);
  CHECK(dry.err.find("peft_type LOHA") != std::string::npos);
}

TEST_CASE("merge sums the totals of each adapter over the shards") {
  const TemporaryDirectory dir;
  std::string lines;
  for (int i = 0; i < 9; ++i) lines += plain_line(i % 3 == 0 ? "rank-1" : "rank-8").dump() + "\n";
  write_file(dir.file("in.jsonl"), lines);
  for (const char* const shard : {"0", "1"})
    REQUIRE(run_adapted({dir.file("in.jsonl"), "-o", dir.file(std::string("out") + shard), "--shard",
                         std::string(shard) + "/2", "--adapter-dir", kAdapters})
                .exit_code == 0);
  const ProcessResult merged = run_process(
      {kProgram, "merge", dir.file("all"), dir.file("out0"), dir.file("out1"), "--metrics", dir.file("metrics")});
  REQUIRE_MESSAGE(merged.exit_code == 0, merged.err);
  const json totals = parse_lines(read_file(dir.file("metrics"))).at(0)["adapters"];
  CHECK(totals["rank-1"]["completed"] == 3);
  CHECK(totals["rank-8"]["completed"] == 6);
  CHECK(totals["rank-8"]["output_tokens"] == 18);
}

TEST_CASE("an output goes on with the adapters that it was begun with: others are refused, one more is none of these") {
  const TemporaryDirectory dir;
  const fs::path root = dir.file("adapters");
  copy_adapter("rank-8", root / "one");
  copy_adapter("rank-1", root / "two");
  write_file(dir.file("in.jsonl"), plain_line("one").dump() + "\n" + plain_line("two").dump() + "\n");
  const auto run = [&] {
    return run_adapted({dir.file("in.jsonl"), "-o", dir.file("out.jsonl"), "--adapter-dir", root.string()}).exit_code;
  };
  CHECK(run() == 0);
  CHECK(read_file(dir.file("out.jsonl.manifest.json")).find("adapter/two/adapter_model.safetensors") !=
        std::string::npos);
  copy_adapter("rank-8", root / "three");
  std::ofstream(dir.file("in.jsonl"), std::ios::app) << plain_line("three").dump() << "\n";
  CHECK(run() == 0);
  CHECK(parse_lines(read_file(dir.file("out.jsonl"))).size() == 3);
  fs::remove_all(root / "two");
  copy_adapter("rank-256", root / "two");
  std::ofstream(dir.file("in.jsonl"), std::ios::app) << plain_line("two").dump() << "\n";
  CHECK(run() == 7);
  fs::remove_all(root / "two");
  CHECK(run() == 7);
}

TEST_CASE("FAULTS 36: ten thousand adapters, of which a job names some") {
  const TemporaryDirectory dir;
  const fs::path root = dir.file("adapters");
  fs::create_directories(root);
  for (int i = 0; i < 10000; ++i)
    fs::create_directory_symlink(kAdapters + (i % 2 == 0 ? "/rank-1" : "/rank-8"), root / ("a" + std::to_string(i)));
  std::string lines;
  for (int i = 0; i < 10000; i += 99) lines += plain_line("a" + std::to_string(i)).dump() + "\n";
  const ProcessResult result = run_adapted({"--adapter-dir", root.string()}, lines);
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const auto records = parse_lines(stable_output(result.out));
  REQUIRE(records.size() == 102);
  for (size_t i = 0; i < records.size(); ++i) CHECK(records[i]["token_ids"] == records[i % 2]["token_ids"]);
}

// Rows of adapters a0, a1, …, each with a prompt of its own.
std::string rows_of(const std::vector<int>& adapters) {
  std::string lines;
  for (size_t i = 0; i < adapters.size(); ++i) {
    json line = plain_line("a" + std::to_string(adapters[i]));
    line["prompt_token_ids"].push_back(i % 7);
    lines += line.dump() + "\n";
  }
  return lines;
}

// The output of such rows, and how often an adapter was read.
std::pair<std::string, int64_t> run_rows(const std::string& lines, std::vector<std::string> arguments) {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), lines);
  arguments.insert(arguments.end(), {dir.file("in.jsonl"), "--metrics", dir.file("metrics.jsonl")});
  const ProcessResult result = run_adapted(arguments);
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const json metrics = parse_lines(read_file(dir.file("metrics.jsonl"))).at(0);
  return {stable_output(result.out), metrics["adapter_reads"]};
}

TEST_CASE("a thousand adapters with room for eight: each is read once, and the bytes are those of any room and order") {
  const TemporaryDirectory dir;
  const std::vector<std::string> names = {"patterns", "rank-1", "rank-16-stabilised", "rank-8"};
  for (int i = 0; i < 1000; ++i)
    fs::create_directory_symlink(kAdapters + "/" + names[i % 4], dir.file("a" + std::to_string(i)));
  // Stored in two bytes a value, computed with in four.
  const auto room = std::to_string(8 * 2 * fs::file_size(kAdapters + "/rank-16-stabilised/adapter_model.safetensors"));
  const std::vector<std::string> flags = {"--adapter-dir", dir.path()};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  std::vector<int> in_turn, shuffled, few;
  for (int i = 0; i < 2000; ++i) in_turn.push_back(i / 2);
  for (int i = 0; i < 2000; ++i) shuffled.push_back(i * 389 % 1000);
  for (int i = 0; i < 240; ++i) few.push_back(i * 17 % 60);
  CHECK(run_rows(rows_of(in_turn), with({"--adapter-memory", room, "--schedule", "file"})).second == 1000);
  const auto [bytes, num_reads] = run_rows(rows_of(shuffled), with({"--adapter-memory", room}));
  CHECK(num_reads == 1000);
  CHECK(run_rows(rows_of(shuffled), with({})) == std::pair(bytes, int64_t{1000}));
  const auto expected = run_rows(rows_of(few), with({}));
  CHECK(expected.second == 60);
  for (const std::string& small_room : {room, std::string("1")})
    for (const std::string batching : {"continuous", "static"})
      CHECK(run_rows(rows_of(few), with({"--adapter-memory", small_room, "--batching", batching})) == expected);
}

TEST_CASE("rows in the file's order that need more adapters than there is room for are all answered") {
  std::vector<json> expected;
  const std::string lines = golden_lines(&expected);
  for (const char* batching : {"continuous", "static"}) {
    const ProcessResult result = run_adapted({"--adapter-dir", kAdapters, "--adapter-memory", "1", "--schedule", "file",
                                              "--batching", batching}, lines);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    const auto records = parse_lines(result.out);
    REQUIRE(records.size() == expected.size());
    for (const json& record : records) CHECK(record["token_ids"] == expected[record["index"].get<size_t>()]);
  }
}

TEST_CASE("drafts, shared prompts, preemption and swapped blocks change no byte of rows with adapters") {
  std::string lines;
  std::vector<int> opening;
  for (int i = 0; i < 24; ++i) opening.push_back(i % 5 + 3);
  for (int i = 0; i < 40; ++i) {
    json line = {{"prompt_token_ids", opening}, {"max_tokens", 12 + i % 9}, {"ignore_eos", true}, {"return_token_ids", true}};
    line["prompt_token_ids"].push_back(i / 6);
    if (i % 6 < 5) line["adapter"] = kNames[i % 6];
    if (i % 4 == 3) line.update({{"temperature", 1.0}, {"seed", i}, {"n", 2}});
    lines += line.dump() + "\n";
  }
  const std::vector<std::string> small_pool = {"--block-size", "8", "--num-gpu-blocks-override", "14", "--max-num-seqs", "12"};
  std::string first;
  for (std::vector<std::string> schedule : std::vector<std::vector<std::string>>{
           {"--speculative", "none", "--no-enable-prefix-caching", "--schedule", "file"},
           {"--speculative", "lookup", "--block-size", "16"},
           {"--speculative", "layers:1", "--block-size", "8", "--adapter-memory", "1"},
           {"--preemption", "recompute", "--speculative", "none"},
           {"--preemption", "swap", "--speculative", "lookup"}}) {
    if (schedule[0] == "--preemption") schedule.insert(schedule.end(), small_pool.begin(), small_pool.end());
    schedule.insert(schedule.end(), {"--adapter-dir", kAdapters});
    const ProcessResult result = run_adapted(schedule, lines);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    const std::string bytes = stable_output(result.out);
    if (first.empty()) first = bytes;
    CAPTURE(schedule[1]);
    CHECK(bytes == first);
  }
}

TEST_CASE("a job with adapters that is killed at file calls, again and again, ends with the same bytes") {
  if (!can_count_file_calls()) return skip("no tracing here");
  const TemporaryDirectory dir(/*in_memory=*/true);
  std::vector<json> ignored;
  write_file(dir.file("in.jsonl"), golden_lines(&ignored));
  const auto run_into = [&](const std::string& output, const StopPlan& plan) {
    std::vector<std::string> argv = adapted_program({"--adapter-dir", kAdapters, "--adapter-memory", "1", "--threads", "1",
                                                     "-o", output, dir.file("in.jsonl")});
    return run_and_stop(argv, "/dev/null", dir.file("err"), plan);
  };
  check_killed_at_file_calls(dir, run_into);
}

}  // namespace llmb::test
