// --tensor-parallel-size, --pipeline-parallel-size, --prefill-context-parallel-size and --decode-context-parallel-size on
// GPUs, of the whole program, with the host SIMT layer in place of GPUs: the answers of one GPU, the same bytes whatever
// the schedule and the timing, and whatever happens to a rank, nothing is lost. LLMB_NUM_KILLS: how many kills and stops
// in all.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/disturber.h"
#include "tests/e2e/rank_lines.h"
#include "tests/e2e/run.h"
#include "tests/e2e/started_run.h"

namespace llmb::test {

namespace {

const std::string kGpuProgram = binary_dir() + "/tests/gpu_program";
const std::vector<std::string> kTwoGpus = {"--tensor-parallel-size", "2"};

// Greedy and sampled rows of ids for a small model, with choices, edits and log probabilities.
std::string id_rows(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::vector<int> prompt;
    for (int t = 0; t < 5 + i % 3; ++t) prompt.push_back((7 * (i / 4) + 5 * t + i) % 60);
    nlohmann::json line = {{"prompt_token_ids", prompt}, {"max_tokens", 2 + i % 4}, {"ignore_eos", true}};
    line["return_token_ids"] = true;
    if (i % 3 == 0) line["temperature"] = 0;
    if (i % 4 == 1) line["top_p"] = 0.9, line["temperature"] = 1.2;
    if (i % 5 == 1) line["top_k"] = 20, line["repetition_penalty"] = 1.1;
    if (i % 5 == 2) line["n"] = 2;
    if (i % 5 == 3) line["logprobs"] = 2;
    if (i % 6 == 4) line["logit_bias"] = {{"7", 4.0}, {"50", -100.0}};
    lines += line.dump() + "\n";
  }
  return lines;
}

const std::string kSmall = source_dir() + "/data/fixtures/models/llama-gqa";
const std::string kThreeLayers = source_dir() + "/data/fixtures/models/qwen3";

std::vector<std::string> command(const std::vector<std::string>& more, int num_gpus = 2, int delay_seed = 0,
                                 int num_seqs = 4, const std::string& model = kSmall,
                                 const std::string& kv_bytes = "2000000") {
  return with({"env", "LLMB_SIMT_DEVICES=" + std::to_string(num_gpus), "LLMB_DELAY_SEED=" + std::to_string(delay_seed),
               kGpuProgram, "-m", model, "--tokenizer", kModel, "--progress", "none", "--device", "cuda",
               "--max-model-len", "64", "--max-num-seqs", std::to_string(num_seqs), "--max-num-batched-tokens", "32",
               "--threads", "1",
               "--kv-cache-memory-bytes", kv_bytes, "--dtype", "float32", "--deterministic"},
              more);
}

}  // namespace

TEST_CASE("two GPUs: the tokens of one, and one set of bytes for all timings and schedules") {
  const std::string lines = id_rows(12);
  const ProcessResult alone = run_process(command({}, 1), lines);
  REQUIRE_MESSAGE(alone.exit_code == 0, alone.err);
  const ProcessResult plain = run_process(command(kTwoGpus), lines);
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const auto tokens = [](const std::string& out) {
    std::string all;
    for (const auto& record : parse_lines(stable_output(out)))
      all += record.value("token_ids", nlohmann::json()).dump();
    return all;
  };
  CHECK(tokens(plain.out) == tokens(alone.out));
  for (const int run : {1, 2}) {
    const auto schedule = run == 1 ? kTwoGpus : with(kTwoGpus, {"--no-enable-prefix-caching", "--speculative", "none"});
    const ProcessResult other = run_process(command(schedule, 2, run, 1 + 2 * run), lines);
    CHECK_MESSAGE(other.exit_code == 0, other.err);
    CHECK(stable_output(other.out) == stable_output(plain.out));
  }
}

TEST_CASE("forms, choices, drafts by a model and swapped blocks, of text: one set of bytes, and the texts of one GPU") {
  const std::string lines = mixed_lines(9);
  const auto run = [&](std::vector<std::string> more, int num_gpus, int seed, const std::string& kv_bytes) {
    if (num_gpus > 1) more = with(kTwoGpus, more);
    const ProcessResult result = run_process(command(more, num_gpus, seed, 3 + seed, kModel, kv_bytes), lines);
    CHECK_MESSAGE(result.exit_code == 3, result.err);  // a line is no JSON
    return stable_output(result.out);
  };
  const std::string ample = "2000000", nine_blocks = "150000", draft = "draft:" + source_dir() + "/data/draft-model";
  const std::string plain = run({"--speculative", "none"}, 2, 0, ample);
  CHECK(run({"--speculative", draft}, 2, 1, ample) == plain);
  CHECK(run({"--speculative", "none", "--preemption", "swap"}, 2, 3, nine_blocks) == plain);
  const auto texts = [](const std::string& out) {
    std::string all;
    for (const auto& record : parse_lines(out)) {
      if (record.contains("text")) all += record["text"].dump();
      for (const auto& output : record.value("outputs", nlohmann::json::array())) all += output["text"].dump();
    }
    return all;
  };
  CHECK(texts(run({"--speculative", "none"}, 1, 1, ample)) == texts(plain));
}

TEST_CASE("two workers of two GPUs each: the bytes of two GPUs") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), id_rows(24));
  const auto arguments = [&](const std::string& out, const std::vector<std::string>& more) {
    return with(command(with(kTwoGpus, more), 4), {dir.file("in.jsonl"), "-o", dir.file(out)});
  };
  const ProcessResult plain = run_process(arguments("plain.jsonl", {}));
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const ProcessResult workers = run_process(arguments("workers.jsonl", {"--workers", "2"}));
  CHECK_MESSAGE(workers.exit_code == 0, workers.err);
  CHECK(stable_output(read_file(dir.file("workers.jsonl"))) == stable_output(read_file(dir.file("plain.jsonl"))));
}

TEST_CASE("a rank on a GPU that is killed or stopped: exit code 9, its name, and the same bytes after more runs") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), id_rows(40));
  const ProcessResult plain =
      run_process(command(with(kTwoGpus, {dir.file("in.jsonl"), "-o", dir.file("plain.jsonl")})));
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const std::vector<std::string> arguments =
      command(with(kTwoGpus, {dir.file("in.jsonl"), "-o", dir.file("out.jsonl"), "--watchdog-timeout", "10"}));
  for (const std::string signal : {"KILL", "STOP"}) {
    CAPTURE(signal);
    std::string script;
    for (const std::string& argument : arguments) script += "'" + argument + "' ";
    const ProcessResult result = run_process(
        {"/bin/bash", "-c",
         script + "</dev/null & pid=$!; until [ $(wc -l < " + dir.file("out.jsonl.partial") +
             " 2>/dev/null || echo 0) -ge " + (signal == "KILL" ? "3" : "12") +
             " ] || ! kill -0 $pid; do sleep 0.02; done; for rank in $(pgrep -P $pid); do kill -" + signal +
             " $rank; done; wait $pid; echo $?"});
    CHECK_MESSAGE(result.out == "9\n", result.err);
    CHECK_MESSAGE(result.err.find("rank 1 ") != std::string::npos, result.err);
  }
  const ProcessResult last = run_process(arguments);
  CHECK_MESSAGE(last.exit_code == 0, last.err);
  CHECK(stable_output(read_file(dir.file("out.jsonl"))) == stable_output(read_file(dir.file("plain.jsonl"))));
}

TEST_CASE("stages of layers on three GPUs, one killed or stopped, then on two: exit code 9, its name, the bytes of one GPU") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), id_rows(40));
  const auto arguments = [&](const std::string& out, int num_stages, int seed = 0) {
    const std::vector<std::string> more = {dir.file("in.jsonl"), "-o", dir.file(out), "--pipeline-parallel-size",
                                           std::to_string(num_stages), "--watchdog-timeout", "10"};
    return command(more, num_stages, seed, 4, kThreeLayers);
  };
  const ProcessResult alone = run_process(arguments("plain.jsonl", 1));
  REQUIRE_MESSAGE(alone.exit_code == 0, alone.err);
  struct Fault {
    int num_stages, rank, signal;
    ptrdiff_t after;  // so many records
  };
  for (const Fault& fault : {Fault{3, 1, SIGKILL, 3}, Fault{3, 2, SIGSTOP, 8}, Fault{3, 1, SIGSTOP, 13},
                             Fault{2, 1, SIGKILL, 18}}) {
    CAPTURE(fault.rank);
    CAPTURE(fault.signal);
    const auto run = StartedRun::of(arguments("out.jsonl", fault.num_stages, fault.rank));
    const auto num_records = [&] {
      const std::string records = read_file(dir.file("out.jsonl.partial"));
      return std::count(records.begin(), records.end(), '\n');
    };
    while (!run->has_ended() && num_records() < fault.after) ::usleep(5000);
    const std::vector<pid_t> ranks = run->ranks();  // in the order of their numbers, as they were started in it
    REQUIRE(ranks.size() == static_cast<size_t>(fault.num_stages) - 1);
    ::kill(ranks[static_cast<size_t>(fault.rank) - 1], fault.signal);
    const ProcessResult result = run->wait();
    CHECK_MESSAGE(result.exit_code == 9, result.err);
    CHECK_MESSAGE(result.err.find("rank " + std::to_string(fault.rank) + " in step ") != std::string::npos, result.err);
    CHECK(num_records() >= fault.after);  // what is finished is kept
  }
  const ProcessResult last = run_process(arguments("out.jsonl", 2, 2));
  CHECK_MESSAGE(last.exit_code == 0, last.err);
  CHECK(stable_output(read_file(dir.file("out.jsonl"))) == stable_output(read_file(dir.file("plain.jsonl"))));
}

// Stages, and ranks of each that share out rows, and may divide keys and values.
struct Parts {
  int num_stages = 1, context_size = 1;
  bool divides_kv = false;
  int num_gpus() const { return num_stages * context_size; }
};

std::vector<std::string> flags_of(const Parts& parts) {
  return {"--pipeline-parallel-size", std::to_string(parts.num_stages),
          parts.divides_kv ? "--decode-context-parallel-size" : "--prefill-context-parallel-size",
          std::to_string(parts.context_size)};
}

TEST_CASE("a job over stages or context ranks that is killed goes on with others, or with one GPU: the same bytes") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), id_rows(40));
  const auto arguments = [&](const std::string& out, const Parts& parts, int seed) {
    return command(with({dir.file("in.jsonl"), "-o", dir.file(out)}, flags_of(parts)), parts.num_gpus(), seed, 4,
                   kThreeLayers);
  };
  const ProcessResult alone = run_process(arguments("plain.jsonl", {}, 0));
  REQUIRE_MESSAGE(alone.exit_code == 0, alone.err);
  const std::string expected = stable_output(read_file(dir.file("plain.jsonl")));
  const Parts one, two{2}, three{3}, rows{1, 2}, more_rows{1, 3}, both{2, 2}, divided{1, 2, true};
  for (const auto& runs : std::vector<std::vector<Parts>>{
           {three, one}, {three, two, one}, {one, three}, {rows, divided, one}, {one, rows}, {more_rows, both}}) {
    CAPTURE(runs.size());
    CAPTURE(runs[0].num_gpus());
    const std::string out = dir.file("out.jsonl");
    for (const char* name : {"", ".manifest.json"}) std::filesystem::remove(out + name);
    ptrdiff_t num_kept = 0;
    const auto num_records = [&] {
      const std::string records = read_file(out + ".partial");
      return std::count(records.begin(), records.end(), '\n');
    };
    for (size_t i = 0; i + 1 < runs.size(); ++i) {
      const auto run = StartedRun::of(arguments("out.jsonl", runs[i], static_cast<int>(i) + 1));
      while (!run->has_ended() && num_records() < num_kept + 7) ::usleep(2000);
      ::kill(run->pid(), SIGKILL);
      const ProcessResult killed = run->wait();
      REQUIRE_MESSAGE(killed.exit_code == 137, killed.err);
      num_kept = num_records();
      CHECK(num_kept < 40);
    }
    const ProcessResult last = run_process(arguments("out.jsonl", runs.back(), 3));
    CHECK_MESSAGE(last.exit_code == 0, last.err);
    CHECK(stable_output(read_file(out)) == expected);
    CHECK_FALSE(std::filesystem::exists(out + ".partial"));
  }
}

TEST_CASE("workers over two stages each: a rank that dies or stops costs no row, nor do both workers'") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), id_rows(40));
  const ProcessResult plain = run_process(
      command({dir.file("in.jsonl"), "-o", dir.file("plain.jsonl")}, 1, 0, 4, kThreeLayers));
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const auto disturbed = [&](const std::string& out, int signal, size_t num_ranks) {
    const std::vector<std::string> more = {dir.file("in.jsonl"), "-o", dir.file(out), "--pipeline-parallel-size", "2",
                                           "--watchdog-timeout", "5", "--request-rate", "20", "--workers", "2"};
    const auto run = StartedRun::of(command(more, 4, 2, 2, kThreeLayers));
    const auto num_records = [&] {
      const std::string records = read_file(dir.file(out + ".partial"));
      return std::count(records.begin(), records.end(), '\n');
    };
    while (!run->has_ended() && (num_records() < 4 || run->ranks().size() < 2)) ::usleep(5000);
    const std::vector<pid_t> ranks = run->ranks();
    REQUIRE(ranks.size() == 2);
    for (size_t i = 0; i < num_ranks; ++i) ::kill(ranks[i], signal);
    return run->wait();
  };
  for (const int signal : {SIGKILL, SIGSTOP}) {
    CAPTURE(signal);
    const std::string out = "one-" + std::to_string(signal) + ".jsonl";
    const ProcessResult result = disturbed(out, signal, 1);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK_MESSAGE(result.err.find("rank 1 ") != std::string::npos, result.err);
    CHECK(stable_output(read_file(dir.file(out))) == stable_output(read_file(dir.file("plain.jsonl"))));
  }
  const ProcessResult both = disturbed("both.jsonl", SIGKILL, 2);
  CHECK_MESSAGE(both.exit_code == 0, both.err);
  CHECK_MESSAGE(both.err.find("it is started again") != std::string::npos, both.err);
  CHECK(stable_output(read_file(dir.file("both.jsonl"))) == stable_output(read_file(dir.file("plain.jsonl"))));
}

TEST_CASE("random kills and stops of ranks on GPUs: nothing is lost, twice or changed, over any parts") {
  const char* const asked = std::getenv("LLMB_NUM_KILLS");
  const int num_wanted = asked != nullptr ? std::atoi(asked) : 8;
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");
  write_file(in, id_rows(60));
  std::string expected[2];  // of one and of two ranks to a stage, whose sums are rounded otherwise
  const auto flags = [](const Parts& parts, int tensor_size) {
    return with(flags_of(parts), {"--tensor-parallel-size", std::to_string(tensor_size)});
  };
  for (const int size : {1, 2}) {
    const ProcessResult plain = run_process(command(with({in}, flags({}, size)), size, 0, 4, kThreeLayers));
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    expected[size - 1] = stable_output(plain.out);
  }
  TestRng rng(asked != nullptr ? 7 : 1);
  Disturber disturber(rng, num_wanted);
  int num_jobs = 0, num_faults = 0;
  for (; !disturber.has_done_all(); ++num_jobs) {
    for (const char* name : {"", ".partial", ".manifest.json"}) std::filesystem::remove(out + name);
    const int tensor_size = rng.between(1, 2);
    for (int exit_code = -1; exit_code != 0;) {
      const Parts parts = rng.chance(0.3) ? Parts{1, rng.between(2, 3), asked != nullptr && rng.chance(0.5)} : Parts{rng.between(1, 3)};
      const int num_gpus = parts.num_gpus() * tensor_size, num_seqs = rng.between(1, 9);
      const auto more = with({in, "-o", out, "--watchdog-timeout", "4", "--request-rate", "40"},
                             flags(parts, tensor_size));
      const int seed = rng.between(0, 1000);
      const auto run = StartedRun::of(command(more, num_gpus, seed, num_seqs, kThreeLayers));
      disturber.disturb(*run, num_gpus > 1);
      const ProcessResult result = run->wait();
      exit_code = result.exit_code;
      REQUIRE_MESSAGE((exit_code == 0 || exit_code == 9 || exit_code == 137), result.err);
      if (exit_code != 9) continue;
      ++num_faults;
      CHECK_MESSAGE(result.err.find("rank ") != std::string::npos, result.err);
    }
    CHECK(stable_output(read_file(out)) == expected[tensor_size - 1]);
    CHECK_FALSE(std::filesystem::exists(out + ".partial"));
  }
  if (asked == nullptr) return;
  for (const auto& [name, count] : disturber.counts()) MESSAGE(name << ": " << count);
  MESSAGE(num_jobs << " jobs, " << num_faults << " runs that ended with exit code 9: nothing lost, twice or changed");
}

TEST_CASE("too few GPUs, and what several GPUs do not take yet, are refused by name before anything is loaded") {
  const auto refusal = [](const std::vector<std::string>& more, int code, int num_gpus = 2) {
    const ProcessResult result = run_process(command(more, num_gpus), id_rows(1));
    CHECK_MESSAGE(result.exit_code == code, result.err);
    return result.err;
  };
  CHECK(refusal(kTwoGpus, 9, 1).find("2 ranks need a GPU each, and this machine has 1") != std::string::npos);
  CHECK(refusal({"--pipeline-parallel-size", "2"}, 9, 1).find("2 ranks need a GPU each, and this machine has 1") !=
        std::string::npos);
  const std::string deep = refusal({"--pipeline-parallel-size", "3"}, 4, 3);
  CHECK(deep.find("--pipeline-parallel-size 3: num_hidden_layers 2 cannot be divided among 3 ranks\n") !=
        std::string::npos);
  CHECK(refusal({"--prefill-context-parallel-size", "2"}, 9, 1).find("2 ranks need a GPU each, and this machine has 1") !=
        std::string::npos);
  CHECK(refusal({"--decode-context-parallel-size", "2"}, 9, 1).find("2 ranks need a GPU each, and this machine has 1") !=
        std::string::npos);
  CHECK(refusal(with(kTwoGpus, {"--workers", "2"}), 9, 3).find("4 ranks need a GPU each") != std::string::npos);
}

}  // namespace llmb::test
