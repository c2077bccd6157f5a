// A job that is killed, interrupted, repeated or grown loses nothing, does nothing twice and refuses to mix: FAULTS
// rows 1, 2, 3, 7, 9, 10, 11, 12, 13 and 22, through the built program on the ledger device.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <set>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

// With metrics: on this device they depend on the request alone.
const std::vector<std::string> kLedger = {"--device", "ledger"};

ProcessResult run_ledger(std::vector<std::string> arguments, const std::string& input = "") {
  arguments.insert(arguments.begin(), kLedger.begin(), kLedger.end());
  return run_llm_batch(std::move(arguments), input);
}

// As a shell command, for tests that send signals.
std::string ledger_command(const std::string& arguments) {
  return kProgram + " -m " + kModel + " --progress none --device ledger " + arguments;
}

// Native and OpenAI lines, one error in `every_bad` (0: none).
std::string make_input(int begin, int end, int max_tokens, int every_bad = 0) {
  std::string text;
  for (int i = begin; i < end; ++i) {
    const std::string number = std::to_string(i), tokens = std::to_string(max_tokens);
    if (every_bad > 0 && i % every_bad == every_bad - 1) text += R"({"id":)" + number + R"(,"prompt":5})";
    else if (i % 3 == 2)
      text += R"({"custom_id":")" + number +
              R"(","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"Story )" + number +
              R"(","max_tokens":)" + tokens + "}}";
    else
      text +=
          R"({"id":)" + number + R"(,"prompt":"Tale )" + number + R"(","ignore_eos":true,"max_tokens":)" + tokens + "}";
    text += "\n";
  }
  return text;
}

// The lines of a file, sorted by their record's index.
std::vector<std::string> sorted_records(const std::string& path) {
  std::vector<std::pair<int64_t, std::string>> records;
  std::stringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) records.emplace_back(nlohmann::json::parse(line)["index"], line);
  std::sort(records.begin(), records.end());
  std::vector<std::string> sorted;
  for (auto& [index, line] : records) sorted.push_back(std::move(line));
  return sorted;
}

// The report: the last line on stderr.
nlohmann::json report(const ProcessResult& result) {
  const std::string text = result.err.substr(0, result.err.find_last_not_of('\n') + 1);
  return nlohmann::json::parse(text.substr(text.rfind('\n') + 1), nullptr, false);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Job {
  TemporaryDirectory dir;
  std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl"), partial = out + ".partial",
              manifest = out + ".manifest.json";

  ProcessResult run(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {in, "-o", out});
    return run_ledger(std::move(more));
  }

  // Every refusal leaves every byte as it was.
  void check_refused(const std::string& message, std::vector<std::string> more = {}) const {
    const std::string before[] = {read_file(out), read_file(partial), read_file(manifest)};
    const ProcessResult result = run(std::move(more));
    INFO(result.err);
    CHECK(result.exit_code == 7);
    CHECK(contains(result.err, message));
    CHECK(report(result)["exit_code"] == 7);
    CHECK(report(result)["resumable"] == false);
    CHECK(read_file(out) == before[0]);
    CHECK(read_file(partial) == before[1]);
    CHECK(read_file(manifest) == before[2]);
  }

  // What a killed run leaves: the first records, and a manifest that says running.
  void cut_to(size_t num_bytes) const {
    const std::string records = read_file(fs::exists(out) ? out : partial);
    fs::remove(out);
    write_file(partial, records.substr(0, num_bytes));
    set_state("running");
  }

  void set_state(const std::string& state) const {
    auto json = nlohmann::ordered_json::parse(read_file(manifest));
    json["state"] = state;
    write_file(manifest, json.dump());
  }
};

}  // namespace

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
  // What only changes the schedule is free to change, and so is a file's time.
  fs::last_write_time(model + "/config.json", fs::file_time_type::clock::now());
  CHECK(run({"--max-num-seqs", "2", "--batching", "static", "--threads", "1", "--order", "input"}).exit_code == 0);
  CHECK(run({"--seed", "7", "--restart"}).exit_code == 0);
  CHECK(run({"--seed", "7"}).exit_code == 0);
}

TEST_CASE("FAULTS 11: nothing to do, then an input that grew: only new lines run") {
  Job job;
  write_file(job.in, make_input(0, 30, 5));
  REQUIRE(job.run().exit_code == 0);
  const std::string first = read_file(job.out);
  const ProcessResult again = job.run();
  CHECK(again.exit_code == 0);
  CHECK(report(again)["skipped"] == 30);
  CHECK(report(again)["left"] == 0);
  CHECK(read_file(job.out) == first);
  write_file(job.in, make_input(0, 45, 5));
  const ProcessResult grown = job.run();
  CHECK(grown.exit_code == 0);
  CHECK(report(grown)["skipped"] == 30);
  CHECK(report(grown)["done"] == 45);
  CHECK(read_file(job.out).starts_with(first));
  CHECK(job.run({"--restart"}).exit_code == 0);
  CHECK(sorted_records(job.out).size() == 45);
}

TEST_CASE("untouched files are not even read, touched ones are") {
  Job job;
  const std::string text = make_input(0, 30, 5, 10);
  write_file(job.in, text);
  const auto hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(job.in, hour_ago);
  REQUIRE(job.run().exit_code == 3);
  auto manifest = nlohmann::ordered_json::parse(read_file(job.manifest));
  CHECK(manifest["complete"]["num_records"] == 30);
  CHECK(manifest["complete"]["num_failed"] == 3);
  manifest["complete"]["num_records"] = 1000;  // as a mark: it is believed while nothing was touched
  write_file(job.manifest, manifest.dump());
  const ProcessResult untouched = job.run();
  CHECK(untouched.exit_code == 0);
  CHECK(report(untouched)["done"] == 1000);
  CHECK(report(untouched)["failed"] == 3);
  fs::last_write_time(job.in, hour_ago + std::chrono::seconds(1));
  CHECK(report(job.run())["done"] == 30);
  CHECK(nlohmann::json::parse(read_file(job.manifest))["complete"]["num_records"] == 30);
  std::string edited = text;
  edited[edited.find("Tale 0") + 5] = '7';  // of the same size
  write_file(job.in, edited);
  job.check_refused(job.in + ":1: ");
  write_file(job.in, text);
  fs::last_write_time(job.in, hour_ago);
  CHECK(job.run().exit_code == 0);
  fs::last_write_time(job.out, hour_ago);
  write_file(job.out, read_file(job.out) + "{}\n");
  job.check_refused("not a result record");
}

TEST_CASE("FAULTS 11: an edited, inserted, blanked or missing line is refused, naming it") {
  Job job;
  const std::string before = make_input(0, 10, 5), middle = make_input(10, 11, 5), after = make_input(11, 20, 5);
  write_file(job.in, before + middle + after);
  REQUIRE(job.run().exit_code == 0);
  write_file(job.in, before + make_input(10, 11, 6) + after);
  job.check_refused(job.in + ":11: ");
  write_file(job.in, before + make_input(99, 100, 5) + middle + after);
  job.check_refused(job.in + ":11: ");
  write_file(job.in, before + "\n" + after);
  job.check_refused("index 10) is blank now");
  write_file(job.in, before);
  job.check_refused("the input ends here");
  write_file(job.in, "");
  job.check_refused("the input is empty");
  write_file(job.in, before + middle + after);
  CHECK(job.run().exit_code == 0);
}

TEST_CASE("FAULTS 11: stdin is resumed by the hashes of its lines") {
  Job job;
  const std::string input = make_input(0, 20, 5);
  const auto run = [&](const std::string& text) { return run_ledger({"-o", job.out}, text); };
  REQUIRE(run(input).exit_code == 0);
  const auto expected = sorted_records(job.out);
  job.cut_to(read_file(job.out).size() / 2);
  const ProcessResult resumed = run(input);
  CHECK_MESSAGE(resumed.exit_code == 0, resumed.err);
  CHECK(report(resumed)["skipped"].get<int>() > 5);
  CHECK(sorted_records(job.out) == expected);
  CHECK(report(run(input))["skipped"] == 20);
  const ProcessResult grown = run(input + make_input(20, 25, 5));
  CHECK(report(grown)["done"] == 25);
  CHECK(report(grown)["skipped"] == 20);
  CHECK(run(make_input(0, 20, 6)).exit_code == 7);
  CHECK(run(input).exit_code == 7);  // it ends too early
  CHECK(sorted_records(job.out).size() == 25);
}

TEST_CASE("FAULTS 11: a last line that is half written is an error record until it is whole, then it is answered") {
  Job job;
  const std::string whole = make_input(0, 10, 5), last = make_input(10, 11, 5), next = make_input(11, 13, 5);
  const std::string errors = job.dir.file("errors.jsonl");
  for (const size_t cut : {size_t{1}, last.size() / 2, last.size() - 2}) {
    CAPTURE(cut);
    write_file(job.in, whole + last.substr(0, cut));
    const ProcessResult first = job.run({"--restart"});
    CHECK(first.exit_code == 3);
    const auto records = sorted_records(job.out);
    REQUIRE(records.size() == 11);
    CHECK(nlohmann::json::parse(records[10])["error"]["code"] == "incomplete_line");
    CHECK(job.run().exit_code == 0);  // nothing new: it stays
    CHECK(sorted_records(job.out) == records);
    write_file(job.in, whole + last + next);
    const ProcessResult grown = job.run({"--error-file", errors});
    CHECK_MESSAGE(grown.exit_code == 0, grown.err);
    CHECK(report(grown)["skipped"] == 10);
    CHECK(report(grown)["done"] == 13);
    CHECK(read_file(errors) == "");
    const auto answered = sorted_records(job.out);
    CHECK(answered.size() == 13);
    for (const std::string& record : answered) CHECK(!contains(record, "incomplete_line"));
  }
  // A whole line needs no newline and is not answered twice when it gets one.
  write_file(job.in, whole + last.substr(0, last.size() - 1));
  CHECK(job.run({"--restart"}).exit_code == 0);
  write_file(job.in, whole + last);
  CHECK(report(job.run())["skipped"] == 11);
  // Of stdin too.
  const auto run = [&](const std::string& text) { return run_ledger({"-o", job.dir.file("piped.jsonl")}, text); };
  CHECK(run(whole + last.substr(0, 9)).exit_code == 3);
  CHECK(run(whole + last + next).exit_code == 0);
  CHECK(sorted_records(job.dir.file("piped.jsonl")).size() == 13);
  // Any other line stays what it was answered as.
  write_file(job.in, whole + "{\"prompt\":5}");
  CHECK(job.run({"--restart"}).exit_code == 3);
  write_file(job.in, whole + last);
  job.check_refused(job.in + ":11: ");
}

TEST_CASE("--order input gives the input's order also over interruptions, retries and runs without it") {
  Job job;
  write_file(job.in, make_input(0, 300, 5, 10));
  const auto in_order = [&] {
    int64_t last = -1;
    for (const auto& record : parse_lines(read_file(job.out))) {
      if (record["index"].get<int64_t>() <= last) return false;
      last = record["index"];
    }
    return last == 299;
  };
  REQUIRE(job.run({"--order", "input"}).exit_code == 3);
  CHECK(in_order());
  CHECK(job.run({"--order", "input", "--retry-errors"}).exit_code == 3);
  CHECK(in_order());
  std::string lines = read_file(job.out), some;
  for (int i = 0; i < 200; ++i) {  // the first 200 records, back to front
    const size_t end = lines.find('\n') + 1;
    some = lines.substr(0, end) + some;
    lines.erase(0, end);
  }
  const auto expected = sorted_records(job.out);
  job.cut_to(0);
  write_file(job.partial, some);
  CHECK(job.run({"--order", "input"}).exit_code == 3);
  CHECK(in_order());
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

TEST_CASE("--retry-errors runs error records again, all or by code, also where their lines were repaired") {
  Job job;
  const std::string good = make_input(0, 4, 5),
                    bad = R"({"id":4,"prompt":5})"
                          "\n",
                    long_line = R"({"id":5,"prompt":"x","max_tokens":0})"
                                "\n";
  write_file(job.in, good + bad + long_line);
  CHECK(job.run().exit_code == 3);
  CHECK(job.run().exit_code == 0);
  std::set<std::string> codes;
  for (const std::string& record : sorted_records(job.out)) {
    const auto json = nlohmann::json::parse(record);
    if (json.contains("error") && !json["error"].is_null()) codes.insert(json["error"]["code"]);
  }
  REQUIRE(!codes.empty());
  CHECK(report(job.run({"--retry-errors=no_such_code"}))["skipped"] == 6);
  const ProcessResult retried = job.run({"--retry-errors"});
  CHECK(retried.exit_code == 3);
  CHECK(report(retried)["skipped"] == 4);
  CHECK(report(retried)["failed"] == 2);
  write_file(job.in, good + make_input(40, 41, 5) + make_input(50, 51, 5));
  job.check_refused(job.in + ":5: ");
  CHECK(job.run({"--retry-errors"}).exit_code == 0);
  CHECK(sorted_records(job.out).size() == 6);
  CHECK(run_ledger({"--retry-errors", job.in}).exit_code == 2);  // no output file
}

TEST_CASE(
    "FAULTS 22: --max-errors ends with 11, keeps what is done and counts earlier runs; --error-file has a copy of the "
    "errors") {
  Job job;
  write_file(job.in, make_input(0, 400, 5, 4));
  const std::string errors = job.dir.file("errors.jsonl");
  const ProcessResult stopped = job.run({"--max-errors", "10", "--error-file", errors});
  INFO(stopped.err);
  CHECK(stopped.exit_code == 11);
  CHECK(report(stopped)["resumable"] == true);
  CHECK(report(stopped)["failed"].get<int>() > 10);
  CHECK(report(stopped)["left"].get<int>() == 400 - report(stopped)["done"].get<int>());
  CHECK(static_cast<int>(sorted_records(job.partial).size()) == report(stopped)["done"].get<int>());
  CHECK(job.run({"--max-errors", "10"}).exit_code == 11);
  const ProcessResult rest = job.run({"--max-errors", "100", "--error-file", errors});
  CHECK_MESSAGE(rest.exit_code == 3, rest.err);
  CHECK(report(rest)["failed"] == 100);
  const auto copies = sorted_records(errors);
  CHECK(copies.size() == 100);
  for (const std::string& record : copies) CHECK(nlohmann::json::parse(record).contains("error"));
  CHECK(sorted_records(job.out).size() == 400);
  CHECK(job.run({"--error-file", job.in}).exit_code == 2);
  CHECK(!read_file(job.in).empty());
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

TEST_CASE("examples/cron.sh answers what is new, is silent where nothing is, and fails only where a person must look") {
  Job job;
  const auto cron = [&] {
    return run_shell("LLM_BATCH=" + kProgram + " " LLMB_SOURCE_DIR "/examples/cron.sh " + kModel + " " + job.in + " " +
                     job.out + " --device ledger");
  };
  write_file(job.in, make_input(0, 10, 5));
  CHECK(contains(cron().out, "10 new answers"));
  const ProcessResult idle = cron();
  CHECK(idle.exit_code == 0);
  CHECK(idle.out == "");
  CHECK(idle.err == "");
  write_file(job.in, make_input(0, 12, 5));
  CHECK(contains(cron().out, "2 new answers"));
  write_file(job.in, make_input(0, 12, 6));
  const ProcessResult refused = cron();
  CHECK(refused.exit_code == 7);
  CHECK(contains(refused.err, job.in + ":1: "));
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
