// Outputs begun by another version of answers, or in another arithmetic than this processor's fastest: continued in the
// same, or refused by name before anything is loaded.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "kernels/cpu/arithmetic.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

const std::string kLine = "{\"prompt\": \"12 + 30 =\", \"max_tokens\": 8, \"logprobs\": 2}\n";

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Job {
  TemporaryDirectory dir;
  std::string in = dir.file("in"), out = dir.file("out"), partial = out + ".partial", manifest = out + ".manifest.json";

  ProcessResult run(int num_lines, std::vector<std::string> more = {}) const {
    std::string lines;
    for (int i = 0; i < num_lines; ++i) lines += kLine;
    write_file(in, lines);
    more.insert(more.end(), {in, "-o", out, "--metrics", "none"});
    return run_llm_batch(more);
  }
  using Settings = nlohmann::ordered_json;
  void edit(const std::function<void(Settings&)>& change) const {
    auto json = nlohmann::ordered_json::parse(read_file(manifest));
    change(json["fingerprint"]["settings"]);
    write_file(manifest, json.dump());
  }
  // As a run that was cut off before its end leaves it.
  void make_unfinished() const {
    fs::rename(out, partial);
    auto json = nlohmann::ordered_json::parse(read_file(manifest));
    json["state"] = "running";
    json.erase("complete");
    write_file(manifest, json.dump());
  }
  void check_refused(int num_lines, const std::vector<std::string>& words, std::vector<std::string> more = {}) const {
    const std::string file = fs::exists(out) ? out : partial;
    const std::string before = read_file(file), said = read_file(manifest);
    const ProcessResult result = run(num_lines, std::move(more));
    INFO(result.err);
    CHECK(result.exit_code == 7);
    for (const std::string& word : words) CHECK_MESSAGE(contains(result.err, word), word);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 2);
    CHECK(contains(result.err, "\"resumable\":false"));
    CHECK(read_file(file) == before);
    CHECK(read_file(manifest) == said);
  }
};

std::string arithmetic_of(const Job& job) {
  return nlohmann::json::parse(read_file(job.manifest))["fingerprint"]["settings"]["arithmetic"];
}

}  // namespace

TEST_CASE("an output of another version of answers is complete, or refused by name; it does not grow") {
  const std::function<void(Job::Settings&)> versions[] = {
      [](Job::Settings& s) { s["answers_version"] = "0"; },
      [](Job::Settings& s) { s["answers_version"] = "1000"; },
      [](Job::Settings& s) {  // of a build that wrote neither
        s.erase("answers_version");
        s.erase("arithmetic");
      },
  };
  for (const auto& version : versions) {
    Job job;
    REQUIRE(job.run(2).exit_code == 0);
    job.edit(version);
    CHECK(job.run(2).exit_code == 0);
    CHECK(job.run(2, {"--error-file", job.dir.file("errors")}).exit_code == 0);  // that reads all records
    job.check_refused(3, {"gives different answers (answers_version was ", job.out});
    job.check_refused(2, {"temperature was 0 and is 0.5"}, {"--temperature", "0.5"});
    job.make_unfinished();
    job.check_refused(2, {"gives different answers (answers_version was "});
    job.check_refused(3, {"gives different answers (answers_version was "});
    CHECK(job.run(3, {"--restart"}).exit_code == 0);
    CHECK(job.run(4).exit_code == 0);
  }
}

TEST_CASE("a run goes on in the arithmetic that its output was begun in, where the processor can") {
  const std::string fastest = arithmetic_name(cpu::fastest_arithmetic(true));
  for (const Arithmetic arithmetic : kAllArithmetic) {
    const std::string name = arithmetic_name(arithmetic);
    CAPTURE(name);
    Job job, whole;
    if (!cpu::can_compute(arithmetic)) {
      CHECK(job.run(1, {"--arithmetic", name}).exit_code == 4);
      continue;
    }
    REQUIRE(whole.run(2, {"--arithmetic", name}).exit_code == 0);
    REQUIRE(job.run(1, {"--arithmetic", name}).exit_code == 0);
    CHECK(arithmetic_of(job) == "\"" + name + "\"");
    const ProcessResult grown = job.run(2);  // says nothing of arithmetic
    CHECK_MESSAGE(grown.exit_code == 0, grown.err);
    CHECK(arithmetic_of(job) == "\"" + name + "\"");
    CHECK(stable_output(read_file(job.out)) == stable_output(read_file(whole.out)));
    if (name != fastest) job.check_refused(3, {"arithmetic was", "and is"}, {"--arithmetic", fastest});
  }
}

TEST_CASE("an arithmetic that the processor cannot compute is refused by name; a complete output stays as it is") {
  // One that exists and that is not here.
  const auto* missing = std::find_if(std::begin(kAllArithmetic), std::end(kAllArithmetic),
                                     [](Arithmetic a) { return !cpu::can_compute(a); });
  if (missing == std::end(kAllArithmetic)) return;
  const std::string name = arithmetic_name(*missing);
  Job job;
  REQUIRE(job.run(2).exit_code == 0);
  job.edit([&](Job::Settings& s) {
    s["arithmetic"] = "\"" + name + "\"";
    if (is_bf16_arithmetic(*missing)) s["dtype"] = "\"bfloat16\"";
  });
  CHECK(job.run(2).exit_code == 0);
  job.check_refused(3, {"begun in a different arithmetic", name, "cannot compute it (it can: "});
  job.make_unfinished();
  job.check_refused(2, {"begun in a different arithmetic", name});
  job.check_refused(3, {"begun in a different arithmetic", name});
  job.edit([](Job::Settings& s) { s["arithmetic"] = "\"of the future\""; });
  job.check_refused(3, {"arithmetic was \"of the future\" and is"});
}

TEST_CASE("a shard computes as the outputs of --done do, or refuses before it loads; merge refuses a mixture") {
  const Job job;
  const auto shard = [&](int index, std::vector<std::string> more) {
    std::string lines;
    for (int i = 0; i < 4; ++i) lines += kLine;
    write_file(job.in, lines);
    const std::vector<std::string> own = {job.in, "--shard", std::to_string(index) + "/2", "--metrics", "none", "-o",
                                          job.out + std::to_string(index)};
    more.insert(more.begin(), own.begin(), own.end());
    return run_llm_batch(more);
  };
  const auto arithmetic = [&](int index) {
    return nlohmann::json::parse(read_file(job.out + std::to_string(index) + ".manifest.json"))["fingerprint"]["settings"]
        ["arithmetic"].get<std::string>();
  };
  REQUIRE(shard(0, {"--arithmetic", "unfused"}).exit_code == 0);
  const std::vector<std::string> done = {"--done", job.out + "0"};
  CHECK(shard(1, done).exit_code == 0);
  CHECK(arithmetic(1) == "\"unfused\"");
  CHECK(run_process({kProgram, "merge", job.out, job.out + "0", job.out + "1"}).exit_code == 0);
  const auto* missing = std::find_if(std::begin(kAllArithmetic), std::end(kAllArithmetic),
                                     [](Arithmetic a) { return !cpu::can_compute(a); });
  if (cpu::can_compute(Arithmetic::kFma)) {
    REQUIRE(shard(1, {"--arithmetic", "fma", "--restart"}).exit_code == 0);
    const ProcessResult mixed = run_process({kProgram, "merge", job.out + "m", job.out + "0", job.out + "1"});
    CHECK(mixed.exit_code == 7);
    CHECK_MESSAGE(contains(mixed.err, "arithmetic was \"unfused\" and is \"fma\""), mixed.err);
  }
  if (missing == std::end(kAllArithmetic)) return;
  auto json = nlohmann::ordered_json::parse(read_file(job.out + "0.manifest.json"));
  json["fingerprint"]["settings"]["arithmetic"] = "\"" + std::string(arithmetic_name(*missing)) + "\"";
  write_file(job.out + "0.manifest.json", json.dump());
  std::vector<std::string> again = done;
  again.push_back("--restart");
  const ProcessResult refused = shard(1, again);
  CHECK(refused.exit_code == 7);
  CHECK_MESSAGE(contains(refused.err, "begun in a different arithmetic"), refused.err);
  CHECK_MESSAGE(contains(refused.err, "cannot compute it"), refused.err);
}

TEST_CASE("an arithmetic for bfloat16 does not fit other numbers: a usage error") {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--dtype", "float32"}, {"--quantization", "int8"}}) {
    std::vector<std::string> arguments = {"--arithmetic", "bf16-dot"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult result = run_llm_batch(arguments, kLine);
    CHECK(result.exit_code == 2);
    CHECK_MESSAGE(contains(result.err, "multiplies bfloat16 by bfloat16"), result.err);
  }
}

}  // namespace llmb::test
