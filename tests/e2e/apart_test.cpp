// --prefill-workers and --decode-workers: prompts computed by one process and answers by another have the bytes of one,
// whichever of them dies, and when.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run.h"
#include "tests/e2e/started_run.h"
#include "tests/support/source_dir.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::vector<std::string> apart(int num_prefill, int num_decode) {
  return {"--prefill-workers", std::to_string(num_prefill), "--decode-workers", std::to_string(num_decode)};
}

// Greedy and sampled lines of every kind, errors among them, prompts of no block and of many.
std::string mixed_lines() {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    std::string prompt = i % 5 == 0 ? "Once" : "In group " + std::to_string(i / 8) + " of the list";
    for (int word = 0; word < i % 7 * 9; ++word) prompt += " and number " + std::to_string(word * i % 97);
    json line = {{"id", i}, {"max_tokens", 3 + i % 9}, {"prompt", prompt}};
    if (i % 3 == 0) line["temperature"] = 0;
    if (i % 7 == 1) line["n"] = 3;
    if (i % 7 == 2) line["logprobs"] = 2;
    if (i % 7 == 3) line["choice"] = {"yes", "no"};
    if (i % 7 == 4) line["frequency_penalty"] = 0.7;
    if (i % 11 == 4) line["best_of"] = 3;
    if (i % 11 == 5) line["use_beam_search"] = true, line["n"] = 2;
    if (i % 11 == 6) line["prompt_logprobs"] = 1;
    if (i % 13 == 7) line["prompt"] = 5;
    lines += line.dump() + "\n";
  }
  return lines;
}

// Greedy and sampled rows of ids for a small model, some of which end with their first token.
std::string id_rows(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::vector<int> prompt;
    for (int t = 0; t < 9 + i * 11 % 40; ++t) prompt.push_back((7 * (i / 4) + 5 * t + i) % 60);
    json line = {{"prompt_token_ids", prompt}, {"max_tokens", i % 6 == 5 ? 1 : 3 + i % 6}, {"ignore_eos", true},
                 {"logprobs", 2}};
    if (i % 3 == 0) line["temperature"] = 0;
    if (i % 5 == 2) line["n"] = 2;
    lines += line.dump() + "\n";
  }
  return lines;
}

std::vector<std::string> small_model(const std::string& name) {
  return {"-m", source_dir() + "/data/fixtures/models/" + name, "--tokenizer", kModel, "--progress", "none"};
}

// make_input() with prompts of several blocks.
std::string long_rows(int count, int max_tokens, int every_bad = 0) {
  std::string text = make_input(0, count, max_tokens, every_bad);
  for (const std::string name : {"Tale ", "Story "})
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 120))
      text.insert(at, "A long and winding introduction, the same for all of them, stands in front of this: ");
  return text;
}

}  // namespace

TEST_CASE("the bundled model: prompts apart from answers give the bytes of one process, and blocks were moved") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), mixed_lines());
  const std::vector<std::string> arguments = {dir.file("in.jsonl"), "--max-num-seqs", "5", "--block-size", "8"};
  const ProcessResult plain = run_llm_batch(arguments);
  REQUIRE_MESSAGE(plain.exit_code == 3, plain.err);
  const std::string expected = stable_output(plain.out);
  for (const auto& workers : {apart(1, 1), apart(2, 1), apart(1, 2)}) {
    const ProcessResult result = run_llm_batch(with(arguments, workers));
    CHECK_MESSAGE(result.exit_code == 3, result.err);
    CHECK(stable_output(result.out) == expected);
  }
  const std::string metrics = dir.file("metrics.jsonl");
  const ProcessResult small = run_llm_batch(with(
      arguments, with(apart(1, 1), {"--swap-space", "0.001", "--max-num-batched-tokens", "20", "--metrics", metrics,
                                    "-o", dir.file("out.jsonl")})));
  CHECK_MESSAGE(small.exit_code == 3, small.err);
  CHECK(stable_output(read_file(dir.file("out.jsonl"))) == expected);
  const json line = parse_lines(read_file(metrics)).at(0);
  CHECK(line["kv_blocks_swapped_in"] > 0);
  CHECK(line["unanswered"] == 0);
  CHECK(line["settings"]["device"].get<std::string>().starts_with("1 prefill and 1 decode workers"));
}

TEST_CASE("workers of several ranks each: the bytes of one such worker, also where a rank is killed") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl"), metrics = dir.file("metrics.jsonl");
  write_file(in, mixed_lines());
  const std::vector<std::string> ranks = {"--tensor-parallel-size", "2"};
  const auto command = with({kProgram, "-m", kModel, "--progress", "none", in, "--max-num-seqs", "5", "--block-size",
                             "8", "--threads", "1"}, ranks);
  const ProcessResult plain = run_process(command);
  REQUIRE_MESSAGE(plain.exit_code == 3, plain.err);
  const std::string expected = stable_output(plain.out);
  const ProcessResult result = run_process(with(with(command, apart(1, 1)), {"--metrics", metrics}));
  CHECK_MESSAGE(result.exit_code == 3, result.err);
  CHECK(stable_output(result.out) == expected);
  CHECK(parse_lines(read_file(metrics)).back()["kv_blocks_swapped_in"] > 0);
  const auto run = StartedRun::of(with(with(command, apart(1, 1)), {"-o", out, "--request-rate", "40"}));
  REQUIRE(run->wait_for_workers(2));
  // This row has whole blocks in its prompt: once it is written, ranks of both workers have run steps.
  const auto is_answered = [&] {
    return fs::exists(out + ".partial") && contains(read_file(out + ".partial"), "\"id\":1,");
  };
  for (int i = 0; i < 4000 && !run->has_ended() && !is_answered(); ++i) ::usleep(5000);
  for (const pid_t rank : run->ranks()) ::kill(rank, SIGKILL);
  const ProcessResult killed = run->wait();
  CHECK_MESSAGE(killed.exit_code == 3, killed.err);
  CHECK(stable_output(read_file(out)) == expected);
}

TEST_CASE("two GPUs of the host layer: the bytes of one, and blocks were moved") {
  const TemporaryDirectory dir;
  const std::string lines = id_rows(9);
  const auto run = [&](const std::string& model, int num_gpus, const std::vector<std::string>& more) {
    const std::vector<std::string> program = {"env", "LLMB_SIMT_DEVICES=" + std::to_string(num_gpus),
                                              binary_dir() + "/tests/gpu_program"};
    return run_process(
        with(with(program, small_model(model)),
             with({"--device", "cuda", "--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--threads", "1",
                   "--kv-cache-memory-bytes", "2000000", "--deterministic", "--order", "input"},
                  more)),
        lines);
  };
  for (const std::string model : {"llama-gqa", "gpt_oss", "qwen3_5-text", "nemotron_h", "lfm2"}) {
    CAPTURE(model);
    const ProcessResult alone = run(model, 1, {});
    REQUIRE_MESSAGE(alone.exit_code == 0, alone.err);
    const ProcessResult two = run(model, 2, with(apart(1, 1), {"--metrics", dir.file(model)}));
    CHECK_MESSAGE(two.exit_code == 0, two.err);
    CHECK(stable_output(two.out) == stable_output(alone.out));
    CHECK(json::parse(read_file(dir.file(model)))["kv_blocks_swapped_in"] > 0);
  }
}

TEST_CASE("models with recurrent states: the bytes of one process, preempted, with drafts, killed and resumed") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), metrics = dir.file("metrics.jsonl");
  write_file(in, id_rows(24));
  for (const std::string model : {"qwen3_5-text", "nemotron_h", "lfm2"}) {
    CAPTURE(model);
    const auto command = with(with({kProgram}, small_model(model)), {in, "--max-num-seqs", "5", "--block-size", "8"});
    const ProcessResult plain = run_process(with(command, {"--speculative", "none"}));
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    const std::string expected = stable_output(plain.out);
    const ProcessResult one = run_process(with(with(command, apart(1, 1)), {"--metrics", metrics}));
    CHECK_MESSAGE(one.exit_code == 0, one.err);
    CHECK(stable_output(one.out) == expected);
    CHECK(parse_lines(read_file(metrics)).back()["kv_blocks_swapped_in"] > 0);
    const ProcessResult small = run_process(
        with(with(command, apart(1, 2)), {"--speculative", "lookup", "--max-num-batched-tokens", "20",
                                          "--max-model-len", "64", "--kv-cache-memory-bytes", "60000"}));
    CHECK_MESSAGE(small.exit_code == 0, small.err);
    CHECK(stable_output(small.out) == expected);
    const std::string out = dir.file(model + ".jsonl");
    const auto job = with(command, {"-o", out});
    {
      const auto run = StartedRun::of(with(with(job, apart(1, 1)), {"--request-rate", "30"}));
      REQUIRE(run->wait_for_workers(2));
      for (int i = 0; i < 2000 && !(fs::exists(out + ".partial") && fs::file_size(out + ".partial") > 0); ++i)
        ::usleep(2000);
      ::kill(run->workers().back(), SIGKILL);
      ::usleep(100000);
      ::kill(run->pid(), SIGKILL);
      run->wait();
    }
    const ProcessResult again = run_process(with(job, apart(2, 1)));
    CHECK_MESSAGE(again.exit_code == 0, again.err);
    CHECK(stable_output(read_file(out)) == expected);
  }
}

TEST_CASE("the ledger device: every batching mode, with records' times too") {
  const Job job;
  for (const int num_rows : {0, 1, 90}) {
    write_file(job.in, long_rows(num_rows, 6, 7));
    const ProcessResult plain = run_ledger({job.in});
    for (const std::string batching : {"none", "static", "dynamic", "continuous"}) {
      CAPTURE(num_rows);
      CAPTURE(batching);
      const ProcessResult result = run_ledger(
          with({job.in, "--block-size", "8", "--batching", batching, "--max-num-seqs", "8"}, apart(1, 2)));
      CHECK_MESSAGE(result.exit_code == plain.exit_code, result.err);
      CHECK(stable_output(result.out) == stable_output(plain.out));
    }
  }
}

TEST_CASE("killed workers of both kinds and killed jobs cost nothing but time") {
  const Job job;
  const char* const asked = std::getenv("LLMB_NUM_KILLS");
  const int num_wanted = asked != nullptr ? std::atoi(asked) : 10;
  write_file(job.in, long_rows(asked != nullptr ? 3000 : 300, 12, 50));
  const std::string reference = job.dir.file("reference.jsonl");
  REQUIRE(run_ledger({job.in, "-o", reference}).exit_code == 3);
  TestRng rng(asked != nullptr ? 7 : 1);
  for (int num_kills = 0; num_kills < num_wanted;) {
    for (const std::string& path : {job.out, job.partial, job.manifest}) fs::remove(path);
    for (int exit_code = -1; exit_code != 3 && exit_code != 0;) {
      const std::vector<std::string> flags = {"--request-rate", "400", "--block-size", "8", "--max-num-seqs",
                                              std::to_string(rng.between(1, 9))};
      StartedRun run(with(with({job.in, "-o", job.out}, flags), apart(rng.between(1, 2), rng.between(1, 2))));
      const auto begin = std::chrono::steady_clock::now();
      while (!run.has_ended()) {
        ::usleep(static_cast<useconds_t>(1000 * rng.between(1, 250)));
        const std::vector<pid_t> workers = run.workers();
        const bool kills_job =
            rng.chance(0.1) && std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(200);
        if ((workers.empty() && !kills_job) || run.has_ended() || num_kills >= num_wanted) continue;
        const auto index = static_cast<size_t>(rng.between(0, std::max(0, static_cast<int>(workers.size()) - 1)));
        num_kills += ::kill(kills_job ? run.pid() : workers[index], SIGKILL) == 0;
      }
      const ProcessResult result = run.wait();
      exit_code = result.exit_code;
      REQUIRE_MESSAGE((exit_code == 3 || exit_code == 0 || exit_code == 9 || exit_code == 137), result.err);
      if (exit_code == 9) CHECK_MESSAGE(contains(result.err, "no worker is left"), result.err);
    }
    CHECK(stable_output(read_file(job.out)) == stable_output(read_file(reference)));
    CHECK_FALSE(fs::exists(job.partial));
  }
}

TEST_CASE("a worker that dies is named with its kind; a signal lets what runs end, and the job is continued") {
  const Job job;
  write_file(job.in, long_rows(300, 8));
  const ProcessResult plain = run_ledger({job.in});
  const std::vector<std::string> slowly = {"--request-rate", "150", "--max-num-seqs", "4", "--block-size", "8"};
  {
    StartedRun run(with(with({job.in, "-o", job.out}, slowly), apart(1, 1)));
    REQUIRE(run.wait_for_workers(2));
    for (int i = 0; i < 2000 && !(fs::exists(job.partial) && fs::file_size(job.partial) > 0); ++i) ::usleep(5000);
    for (const pid_t worker : run.workers()) ::kill(worker, SIGKILL);
    const ProcessResult result = run.wait();
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK_MESSAGE(contains(result.err, "prefill worker 0 on "), result.err);
    CHECK_MESSAGE(contains(result.err, "decode worker 1 on "), result.err);
    CHECK(stable_output(read_file(job.out)) == stable_output(plain.out));
  }
  const std::string second = job.dir.file("second.jsonl");
  StartedRun run(with(with({job.in, "-o", second}, slowly), apart(1, 1)));
  REQUIRE(run.wait_for_workers(2));
  for (int i = 0; i < 2000 && !(fs::exists(second + ".partial") && fs::file_size(second + ".partial") > 0); ++i)
    ::usleep(5000);
  ::kill(run.pid(), SIGTERM);
  const ProcessResult result = run.wait();
  CHECK_MESSAGE(result.exit_code == 128 + SIGTERM, result.err);
  const json ending = report(result);
  CHECK(ending["left"] > 0);
  const ProcessResult again = run_ledger(with({job.in, "-o", second}, {"--workers", "2"}));
  CHECK_MESSAGE(again.exit_code == 0, again.err);
  CHECK(stable_output(read_file(second)) == stable_output(plain.out));
}

TEST_CASE("what cannot be apart is refused by name") {
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& words) {
    const ProcessResult result = run_llm_batch(arguments, "{\"prompt\":\"a\"}\n");
    CHECK_MESSAGE(result.exit_code == 2, result.err);
    CHECK_MESSAGE(contains(result.err, words), result.err);
  };
  refused(with(apart(1, 1), {"--workers", "2"}), "--workers");
  refused(with(apart(1, 1), {"--no-enable-prefix-caching"}), "prefix cache");
  refused(with(apart(1, 1), {"--preemption", "recompute"}), "--swap-space");
}

}  // namespace llmb::test
