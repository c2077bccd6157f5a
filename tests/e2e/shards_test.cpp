// One input answered by several runs and merged: the bytes of one run, whatever their number, and whoever was killed.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "cli/shard_environment.h"
#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

// One run's output, in the order of the input, and outputs of shards beside it.
struct Shards {
  TemporaryDirectory dir;
  std::string in = dir.file("in.jsonl"), one = dir.file("one.jsonl");
  std::vector<std::string> settings = {"--no-metrics"};

  explicit Shards(int num_lines, bool in_memory = true) : dir(in_memory) {
    write_file(in, make_input(0, num_lines / 2, 6) + "\n \n" + make_input(num_lines / 2, num_lines, 6));
    REQUIRE(run({"-o", one, "--order", "input"}).exit_code == 0);
  }
  ProcessResult run(std::vector<std::string> more) const {
    more.insert(more.begin(), in);
    more.insert(more.end(), settings.begin(), settings.end());
    return run_ledger(std::move(more));
  }
  std::string output(int index, int count, const std::string& name = "s") const {
    return dir.file(name + std::to_string(index) + "of" + std::to_string(count) + ".jsonl");
  }
  std::string make(int index, int count, std::vector<std::string> more = {}, const std::string& name = "s") const {
    const std::string out = output(index, count, name);
    more.insert(more.end(), {"--shard", std::to_string(index) + "/" + std::to_string(count), "-o", out});
    const ProcessResult result = run(std::move(more));
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    return out;
  }
  std::vector<std::string> make_all(int count) const {
    std::vector<std::string> outputs;
    for (int i = 0; i < count; ++i) outputs.push_back(make(i, count));
    return outputs;
  }
  // As a killed run leaves it.
  void cut(const std::string& out, int num_records) const {
    std::string records = read_file(out);
    size_t end = 0;
    for (int i = 0; i < num_records; ++i) end = records.find('\n', end) + 1;
    fs::remove(out);
    write_file(out + ".partial", records.substr(0, end + 20));  // torn
    auto json = nlohmann::ordered_json::parse(read_file(out + ".manifest.json"));
    json["state"] = "running";
    json.erase("input");
    json.erase("complete");
    write_file(out + ".manifest.json", json.dump());
  }
  ProcessResult merge(const std::string& out, std::vector<std::string> shards, const std::string& order = "input") const {
    shards.insert(shards.begin(), {kProgram, "merge", "--order", order, out});
    return run_process(shards);
  }
  void check_refused(const std::vector<std::string>& shards, const std::string& message) const {
    const ProcessResult result = merge(dir.file("refused.jsonl"), shards);
    CHECK(result.exit_code == 7);
    CHECK_MESSAGE(contains(result.err, message), result.err);
    CHECK(!fs::exists(dir.file("refused.jsonl")));
    CHECK(!fs::exists(dir.file("refused.jsonl.manifest.json")));
  }
};

std::string sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  std::string sorted;
  for (const std::string& line : lines) sorted += line + "\n";
  return sorted;
}

}  // namespace

TEST_CASE("n shards merged are one run, byte for byte, for n of 1, 2, 7 and 64") {
  const Shards shards(150);
  for (const int n : {1, 2, 7, 64}) {
    const auto outputs = shards.make_all(n);
    const std::string merged = shards.dir.file("merged" + std::to_string(n) + ".jsonl");
    const ProcessResult result = shards.merge(merged, outputs);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK(read_file(merged) == read_file(shards.one));
    CHECK(report(result)["done"] == 150);
    // The output of a job like any other: complete, and it may grow.
    CHECK(shards.run({"-o", merged, "--order", "input"}).exit_code == 0);
    CHECK(contains(shards.merge(merged, outputs).err, "nothing to do"));
  }
  const std::string merged = shards.dir.file("completion.jsonl");
  CHECK(shards.merge(merged, {shards.output(1, 2), shards.output(0, 2)}, "completion").exit_code == 0);
  CHECK(read_file(merged) == read_file(shards.output(1, 2)) + read_file(shards.output(0, 2)));
  CHECK(sorted_lines(read_file(merged)) == sorted_lines(read_file(shards.one)));
}

TEST_CASE("shards that are killed again and again, and one that reads a pipe, merge to the bytes of one run") {
  const Shards shards(150);
  std::vector<std::string> outputs;
  int num_killed = 0;
  for (int i = 0; i < 4; ++i) {
    outputs.push_back(shards.output(i, 4));
    const std::string shard = std::to_string(i) + "/4";
    if (i < 3)
      num_killed += run_killed({"--device", "ledger", shards.in, "--no-metrics", "--shard", shard, "-o", outputs.back()},
                               60 + 9 * i);
    else CHECK(run_ledger({"--no-metrics", "--shard", shard, "-o", outputs.back()}, read_file(shards.in)).exit_code == 0);
  }
  CHECK(num_killed > 0);
  const std::string merged = shards.dir.file("merged.jsonl");
  CHECK(shards.merge(merged, outputs).exit_code == 0);
  CHECK(read_file(merged) == read_file(shards.one));
}

TEST_CASE("what some shards left, any other number of shards finishes") {
  const Shards shards(150);
  const auto outputs = shards.make_all(5);
  shards.cut(outputs[1], 11);
  shards.cut(outputs[3], 0);
  for (const std::string& name : {outputs[4], outputs[4] + ".manifest.json"}) fs::remove(name);
  const std::vector<std::string> left(outputs.begin(), outputs.begin() + 4);
  std::vector<std::string> all = left;
  for (int i = 0; i < 3; ++i) {
    std::vector<std::string> done = {"--done"};
    done.insert(done.end(), left.begin(), left.end());
    all.push_back(shards.make(i, 3, done, "rest"));
  }
  const std::string merged = shards.dir.file("merged.jsonl");
  const ProcessResult result = shards.merge(merged, all);
  CHECK_MESSAGE(result.exit_code == 0, result.err);
  CHECK(read_file(merged) == read_file(shards.one));
  // Run again they find what they did.
  std::vector<std::string> again = {"--shard", "1/3", "-o", shards.output(1, 3, "rest"), "--done", outputs[0]};
  CHECK(report(shards.run(again))["exit_code"] == 0);
  // An input that was edited since.
  write_file(shards.in, "{\"prompt\":\"another\"}\n" + read_file(shards.in));
  const ProcessResult edited = shards.run({"-o", shards.dir.file("x.jsonl"), "--done", outputs[0]});
  CHECK(edited.exit_code == 7);
  CHECK_MESSAGE(contains(edited.err, "answers another line at this place"), edited.err);
}

TEST_CASE("shards by prefix keep rows with a common beginning together, and merge to the bytes of one run") {
  Shards shards(0);
  std::string lines;
  for (int i = 0; i < 120; ++i)
    lines += R"({"prompt":"Once upon a time in the village of )" + std::to_string(i * 7 % 10) +
             std::string(200, static_cast<char>('a' + i * 7 % 10)) + " number " + std::to_string(i) + R"(","max_tokens":5})" + "\n";
  lines.insert(lines.find('\n') + 1, "{\"prompt\":5}\n\n");
  write_file(shards.in, lines);
  fs::remove(shards.one + ".manifest.json");
  fs::remove(shards.one);
  REQUIRE(shards.run({"-o", shards.one, "--order", "input"}).exit_code == 3);
  std::vector<std::string> outputs;
  int num_villages = 0;
  for (int i = 0; i < 3; ++i) {
    outputs.push_back(shards.output(i, 3));
    const ProcessResult result =
        shards.run({"--shard", std::to_string(i) + "/3", "--shard-by", "prefix", "-o", outputs.back()});
    CHECK((result.exit_code == 0 || result.exit_code == 3));
    std::set<int64_t> villages;
    for (const auto& record : parse_lines(read_file(outputs.back())))
      if (const int64_t line = record["index"]; line != 1) villages.insert((line == 0 ? 0 : line - 2) * 7 % 10);
    num_villages += static_cast<int>(villages.size());
  }
  CHECK(num_villages <= 12);  // each seam divides one group at most
  const std::string merged = shards.dir.file("merged.jsonl");
  CHECK(shards.merge(merged, outputs).exit_code == 3);
  CHECK(read_file(merged) == read_file(shards.one));
  // A forecast of each shard: their rows are all rows.
  int num_rows = 0;
  for (int i = 0; i < 3; ++i) {
    const ProcessResult dry = shards.run({"--dry-run", "--shard", std::to_string(i) + "/3", "--shard-by", "prefix"});
    num_rows += std::stoi(dry.err.substr(dry.err.find("dry run: ") + 9));
  }
  CHECK(num_rows == 120);
  const ProcessResult pipe =
      run_ledger({"--shard", "0/3", "--shard-by", "prefix", "-o", shards.dir.file("p.jsonl")}, lines);
  CHECK(pipe.exit_code == 2);
  CHECK_MESSAGE(contains(pipe.err, "--shard-by prefix reads the input twice"), pipe.err);
}

TEST_CASE("merge refuses what is missing, unfinished, double, mixed or of another input, and names it") {
  Shards shards(40);
  const auto outputs = shards.make_all(4);
  shards.check_refused({outputs[0], outputs[3]}, "missing: shard 1/4, 2/4");
  shards.check_refused({outputs[0], shards.dir.file("none.jsonl")}, "none.jsonl: is no output of llm-batch");
  shards.check_refused({outputs[0], outputs[1], outputs[2], outputs[3], shards.make(0, 2)},
                       "both have a record of the row with index");
  Shards other(42);
  shards.check_refused({outputs[0], outputs[1], outputs[2], other.make(3, 4)}, "answer different inputs");
  other.settings = {"--no-metrics", "--seed", "5"};
  shards.check_refused({outputs[0], outputs[1], outputs[2], other.make(2, 4)}, "not of one job: seed was 0 and is 5");
  shards.cut(outputs[2], 3);
  shards.check_refused(outputs, "not finished: " + outputs[2]);
  const std::string cut = read_file(outputs[3]);
  write_file(outputs[3], cut.substr(0, cut.size() - 5));
  shards.check_refused(outputs, "the last line of a complete output is no record");
}

TEST_CASE("an output keeps its shard, and a name that is taken is not overwritten") {
  const Shards shards(40);
  const auto outputs = shards.make_all(2);
  const ProcessResult moved = shards.run({"--shard", "1/2", "-o", outputs[0]});
  CHECK(moved.exit_code == 7);
  CHECK(contains(moved.err, "shard was 0/2 and is 1/2"));
  write_file(shards.dir.file("taken.jsonl"), "mine\n");
  CHECK(shards.merge(shards.dir.file("taken.jsonl"), outputs).exit_code == 7);
  CHECK(read_file(shards.dir.file("taken.jsonl")) == "mine\n");
  CHECK(shards.merge(outputs[0], outputs).exit_code == 2);
  CHECK(run_process({kProgram, "merge", shards.dir.file("alone.jsonl")}).exit_code == 2);
}

TEST_CASE("metrics are summed, and records say when the first shard began") {
  Shards shards(40, /*in_memory=*/false);  // no metrics are written beside files in /dev
  shards.settings = {};
  const auto outputs = shards.make_all(2);
  auto manifest = nlohmann::ordered_json::parse(read_file(outputs[1] + ".manifest.json"));
  const int64_t first = manifest["created"].get<int64_t>(), earlier = first - 1000;
  manifest["created"] = earlier;
  write_file(outputs[1] + ".manifest.json", manifest.dump());
  std::string records = read_file(outputs[1]);
  const auto replace_all = [](std::string text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
    return text;
  };
  const std::string created = "\"created\":";
  write_file(outputs[1], replace_all(records, created + std::to_string(first), created + std::to_string(earlier)));
  const std::string merged = shards.dir.file("merged.jsonl");
  REQUIRE(shards.merge(merged, outputs).exit_code == 0);
  CHECK(sorted_records(merged).size() == 40);
  int num_openai = 0;
  for (const auto& record : parse_lines(read_file(merged))) {
    if (!record.contains("response")) continue;
    ++num_openai;
    CHECK(record["response"]["body"]["created"] == earlier);
  }
  CHECK(num_openai == 13);
  CHECK(nlohmann::json::parse(read_file(merged + ".manifest.json"))["created"] == earlier);
  const auto metrics = nlohmann::json::parse(read_file(shards.dir.file("merged.metrics.jsonl")));
  CHECK(metrics["completed"] == 40);
  CHECK(metrics["num_records"] == 40);
  CHECK(metrics["num_runs"] == 2);
  CHECK(metrics["shard_duration"] >= metrics["duration"]);
}

namespace {

Result<Shard> shard_of(const std::map<std::string, std::string>& variables) {
  return shard_of_environment([&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

void check_no_shard(const std::map<std::string, std::string>& variables, const std::vector<std::string>& names) {
  const auto shard = shard_of(variables);
  REQUIRE(!shard.ok());
  for (const std::string& name : names)
    CHECK_MESSAGE(shard.status().message().find(name) != std::string::npos, shard.status().message());
}

}  // namespace

TEST_CASE("--shard auto reads the variables of each scheduler in the manual's table") {
  const std::string manual = read_file(source_dir() + "/tools/package/manual.md");
  for (const ShardSource& source : shard_sources()) {
    std::map<std::string, std::string> variables = {{source.index, "2"}, {source.count, "5"}, {"SLURM_STEP_ID", "0"}};
    const auto shard = shard_of(variables);
    CHECK_MESSAGE((shard.ok() && *shard == Shard{2, 5}), source.name);
    check_no_shard({{source.index, "2"}, {"SLURM_STEP_ID", "0"}}, {source.index, source.count});
    check_no_shard({{source.index, "5"}, {source.count, "5"}, {"SLURM_STEP_ID", "0"}}, {source.index, source.count});
    check_no_shard({{source.index, "x"}, {source.count, "5"}, {"SLURM_STEP_ID", "0"}}, {source.index});
    const std::string row = std::string("| ") + source.name + " | `" + source.index + "` | `" + source.count + "`";
    CHECK_MESSAGE(manual.find(row) != std::string::npos, row);
  }
  check_no_shard({}, {"SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"});
}

TEST_CASE("--shard auto: arrays that begin elsewhere, sources that agree, are silent, or contradict each other") {
  const std::map<std::string, std::string> array = {{"SLURM_ARRAY_TASK_ID", "12"},
                                                    {"SLURM_ARRAY_TASK_COUNT", "8"},
                                                    {"SLURM_ARRAY_TASK_MIN", "10"},
                                                    {"SLURM_ARRAY_TASK_MAX", "17"}};
  const auto with = [](std::map<std::string, std::string> base, const std::map<std::string, std::string>& more) {
    for (const auto& [name, value] : more) base[name] = value;
    return base;
  };
  CHECK(*shard_of(array) == Shard{2, 8});
  // The only task of a step.
  CHECK(*shard_of(with(array, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}})) == Shard{2, 8});
  check_no_shard(with(array, {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}}),
                {"SLURM_ARRAY_TASK_ID", "SLURM_PROCID", "2/8", "1/4"});
  check_no_shard(with(array, {{"SLURM_ARRAY_TASK_MAX", "30"}}), {"SLURM_ARRAY_TASK_MAX", "gaps"});
  // mpirun in a batch script, whose own variables every rank inherits.
  CHECK(*shard_of({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"SLURM_PROCID", "0"},
                   {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}}) == Shard{3, 4});
  check_no_shard({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}, {"none of these variables"});
  CHECK(*shard_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}) == Shard{0, 1});
}

}  // namespace llmb::test
