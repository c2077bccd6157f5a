// A job that is killed, interrupted or damaged loses nothing, does nothing twice and refuses to mix: FAULTS rows 1, 2,
// 3, 7, 9, 10 and 12, through the built program on the ledger device.
#include <doctest/doctest.h>

#include <filesystem>
#include <random>

#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;

TEST_CASE(
    "FAULTS 1: killed at random moments and run again: the same bytes as an uninterrupted run, metrics too, from "
    "several files") {
  const TemporaryDirectory dir;
  write_file(dir.file("a.jsonl"), make_input(0, 700, 300, 50));
  write_file(dir.file("b.jsonl"), make_input(700, 1500, 300, 50));
  const std::string inputs = dir.file("a.jsonl") + " " + dir.file("b.jsonl");
  REQUIRE(run_shell(ledger_command(inputs + " -o " + dir.file("ref.jsonl"))).exit_code == 3);
  const auto expected = sorted_records(dir.file("ref.jsonl"));
  REQUIRE(expected.size() == 1500);
  const unsigned seed = 4;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  int num_killed = 0;
  for (int round = 0; round < 3; ++round) {
    const std::string out = dir.file("out" + std::to_string(round) + ".jsonl");
    int code = 137;
    for (int tries = 0; code == 137 && tries < 12; ++tries) {
      const double seconds = std::uniform_real_distribution<double>(0.02, 0.35)(random);
      code = run_shell("timeout -s KILL " + std::to_string(seconds) + " " + ledger_command(inputs + " -o " + out))
                 .exit_code;
      num_killed += code == 137;
      CHECK((!fs::exists(out) || code == 3 || code == 137 || code == 0));
    }
    if (code == 137) code = run_shell(ledger_command(inputs + " -o " + out)).exit_code;
    CHECK((code == 3 || code == 0));  // 0: the last kill came after the work
    CHECK(sorted_records(out) == expected);
    CHECK(!fs::exists(out + ".partial"));
  }
  CHECK(num_killed > 0);
}

TEST_CASE("FAULTS 3: only a torn tail is repaired, and the message says how much") {
  Job job;
  write_file(job.in, make_input(0, 20, 5));
  REQUIRE(job.run().exit_code == 0);
  const std::string whole = read_file(job.out);
  const auto expected = sorted_records(job.out);
  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;  // where the last record begins
  for (const size_t cut : {last, last + 1, last + 20, whole.size() - 1}) {
    CAPTURE(cut);
    job.cut_to(cut);
    const ProcessResult result = job.run();
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK(contains(result.err, "torn record of " + std::to_string(cut - last) + " bytes") == (cut > last));
    CHECK(report(result)["skipped"] == 19);
    CHECK(sorted_records(job.out) == expected);
  }
  job.cut_to(last);
  write_file(job.partial, read_file(job.partial) + std::string(5000, '\0'));
  CHECK(job.run().exit_code == 0);
  CHECK(sorted_records(job.out) == expected);
}

TEST_CASE("FAULTS 2: a crash between any two steps of completing or restarting is continued") {
  Job job;
  write_file(job.in, make_input(0, 10, 5));
  REQUIRE(job.run().exit_code == 0);
  const std::string whole = read_file(job.out);
  job.set_state("running");  // renamed, the manifest not yet written
  CHECK(job.run().exit_code == 0);
  CHECK(read_file(job.out) == whole);
  CHECK(contains(read_file(job.manifest), "complete"));
  job.cut_to(whole.size());  // everything written, not yet renamed
  CHECK(job.run().exit_code == 0);
  CHECK(read_file(job.out) == whole);
  job.set_state("starting");  // --restart, before anything was removed
  CHECK(job.run().exit_code == 0);
  CHECK(sorted_records(job.out).size() == 10);
  job.cut_to(0);  // nothing written yet
  CHECK(job.run().exit_code == 0);
  CHECK(sorted_records(job.out).size() == 10);
}

TEST_CASE("FAULTS 12: damage that is no torn tail is refused and nothing is deleted") {
  Job job;
  write_file(job.in, make_input(0, 20, 5));
  REQUIRE(job.run().exit_code == 0);
  const std::string whole = read_file(job.out), manifest = read_file(job.manifest);
  const size_t second = whole.find('\n') + 1;

  job.cut_to(whole.size() / 2);
  std::string damaged = whole;
  damaged[second] = 'x';
  write_file(job.partial, damaged);
  job.check_refused(job.partial + ":2: not a result record");
  write_file(job.partial, whole + whole.substr(0, second));
  job.check_refused("a second record for input line index");

  fs::remove(job.partial);
  write_file(job.out, whole);
  write_file(job.manifest, manifest);
  write_file(job.out, whole.substr(0, whole.size() - 3));
  job.check_refused("not a result record");
  write_file(job.out, whole);
  fs::remove(job.manifest);
  job.check_refused("does not say where it comes from");
  CHECK(!fs::exists(job.manifest));
  write_file(job.manifest, manifest.substr(0, manifest.size() / 2));
  job.check_refused("damaged");
  auto newer = nlohmann::json::parse(manifest);
  newer["format"] = 99;
  write_file(job.manifest, newer.dump());
  job.check_refused("newer version");
  write_file(job.manifest, manifest);
  fs::rename(job.out, job.dir.file("moved.jsonl"));
  job.check_refused("gone");
}

TEST_CASE("FAULTS 12: a file that is not ours is never replaced without --restart") {
  Job job;
  write_file(job.in, make_input(0, 3, 2));
  write_file(job.out, "my thesis\n");
  job.check_refused("exists");
  CHECK(read_file(job.out) == "my thesis\n");
  CHECK(job.run({"--restart"}).exit_code == 0);
  CHECK(sorted_records(job.out).size() == 3);
  Job empty;
  write_file(empty.in, make_input(0, 3, 2));
  write_file(empty.out, "");  // as mktemp leaves it: nothing to lose
  CHECK(empty.run().exit_code == 0);
}

TEST_CASE("FAULTS 10: each changed setting or model file is refused by name") {
  Job job;
  const std::string model = job.dir.file("model");
  fs::copy(kModel, model);
  write_file(job.in, make_input(0, 5, 3));
  REQUIRE(job.run({"-m", model}).exit_code != 0);  // given twice: a usage error
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> argv = {kProgram,   "-m",     model,  "--progress", "none",
                                     "--device", "ledger", job.in, "-o",         job.out};
    argv.insert(argv.end(), more.begin(), more.end());
    return run_process(argv);
  };
  REQUIRE(run({}).exit_code == 0);
  const std::string output = read_file(job.out), manifest = read_file(job.manifest);
  const auto check = [&](const std::string& message, std::vector<std::string> more) {
    const ProcessResult result = run(std::move(more));
    INFO(result.err);
    CHECK(result.exit_code == 7);
    CHECK(contains(result.err, message));
    CHECK(read_file(job.out) == output);
    CHECK(read_file(job.manifest) == manifest);
  };
  check("temperature was 0 and is 0.5", {"--temperature", "0.5"});
  check("seed was 0 and is 7", {"--seed", "7"});
  check("max_tokens was unset and is 9", {"--max-tokens", "9"});
  check("stop was [] and is [\"x\"]", {"--stop", "x"});
  check("max_model_len was 2048 and is 1000", {"--max-model-len", "1000"});
  check("logit_bias was [] and is [[5,1.5]]", {"--logit-bias", "{\"5\":1.5}"});
  write_file(job.dir.file("t.jinja"), "{{ messages[0].content }}");
  check("file chat-template was not there", {"--chat-template", job.dir.file("t.jinja")});
  for (const char* name : {"model.safetensors", "tokenizer.json", "config.json", "generation_config.json"}) {
    const std::string path = model + "/" + name;
    const std::string content = read_file(path);
    std::string changed = content;
    if (std::string(name) == "model.safetensors") changed.back() ^= 1;
    else changed += " ";
    write_file(path, changed);
    check(std::string(name) == "tokenizer.json" ? "file tokenizer/tokenizer.json" : "file model/" + std::string(name),
          {});
    write_file(path, content);
  }
  // Settings of the schedule are free to change, and so is a file's time.
  fs::last_write_time(model + "/config.json", fs::file_time_type::clock::now());
  CHECK(run({"--max-num-seqs", "2", "--batching", "static", "--threads", "1", "--order", "input"}).exit_code == 0);
  CHECK(run({"--seed", "7", "--restart"}).exit_code == 0);
  CHECK(run({"--seed", "7"}).exit_code == 0);
}

TEST_CASE("FAULTS 9: of many runs that start together one works, the others exit with 8 and name it") {
  Job job;
  write_file(job.in, make_input(0, 1500, 200));
  const std::string command = ledger_command(job.in + " -o " + job.out);
  const ProcessResult all = run_shell("for i in 1 2 3 4 5 6 7 8; do (" + command + "; echo code $?) & done; wait");
  int num_ok = 0, num_busy = 0;
  std::stringstream lines(all.out);
  for (std::string line; std::getline(lines, line);) {
    num_ok += line == "code 0";
    num_busy += line == "code 8";
  }
  CHECK_MESSAGE(num_ok >= 1, all.err);
  CHECK(num_ok + num_busy == 8);
  if (num_busy > 0) CHECK(contains(all.err, "is writing this output"));
  CHECK(sorted_records(job.out).size() == 1500);
}

TEST_CASE("FAULTS 7: what is done at a signal is kept, the message says what is left, the next run finishes") {
  Job job;
  write_file(job.in, make_input(0, 4000, 400));
  const std::string start = ledger_command(job.in + " -o " + job.out + " --grace 5") + " & pid=$!; while [ ! -s " +
                            job.partial + " ]; do sleep 0.02; done; ";
  const ProcessResult stopped = run_shell(start + "kill -TERM $pid; wait $pid; echo code $?");
  INFO(stopped.err);
  CHECK(contains(stopped.out, "code 143"));
  const auto json = report(stopped);
  CHECK(json["done"].get<int>() + json["left"].get<int>() == 4000);
  CHECK(static_cast<int>(sorted_records(job.partial).size()) == json["done"].get<int>());
  CHECK(contains(stopped.err, " left, run again to continue"));
  CHECK(json["resumable"] == true);
  CHECK(job.run().exit_code == 0);
  CHECK(sorted_records(job.out).size() == 4000);
}

TEST_CASE("SIGUSR1 prints a status line and the run goes on") {
  Job job;
  write_file(job.in, make_input(0, 3000, 400));
  const ProcessResult result =
      run_shell(ledger_command(job.in + " -o " + job.out) + " & pid=$!; while [ ! -s " + job.partial +
                " ]; do sleep 0.02; done; kill -USR1 $pid; wait $pid; echo code $?");
  CHECK(contains(result.out, "code 0"));
  CHECK(contains(result.err, " done, 0 failed"));
}

}  // namespace llmb::test
