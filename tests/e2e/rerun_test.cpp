// The same command again: nothing to do, inputs that grew or were edited, errors run again, the hourly job. FAULTS rows
// 11 and 22, through the built program on the ledger device.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <set>

#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run.h"
#include "tests/support/file_changes.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace fs = std::filesystem;

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
  let_rest(job.in);
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
  fs::last_write_time(job.in, hour_ago);  // as if nothing had happened
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
  // stdin may grow, too.
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

TEST_CASE("examples/cron.sh answers what is new, is silent where nothing is, and fails only where a person must look") {
  Job job;
  const auto cron = [&] {
    return run_shell("LLM_BATCH=" + kProgram + " " + source_dir() + "/examples/cron.sh " + kModel + " " + job.in + " " +
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

TEST_CASE(
    "an input that is cut off in its compressed data: 5, what was read is answered, and the whole file continues it") {
  Job job;
  const std::string text = make_input(0, 2000, 3), whole = job.dir.file("whole.jsonl.gz"),
                    in = job.dir.file("in.jsonl.gz");
  write_file(job.in, text);
  REQUIRE(run_shell("gzip -c " + job.in + " > " + whole).exit_code == 0);
  const std::string compressed = read_file(whole);
  write_file(in, compressed.substr(0, compressed.size() / 2));
  for (const char* time : {"first", "second"}) {
    CAPTURE(time);
    const ProcessResult cut = run_ledger({in, "-o", job.out});
    CHECK(cut.exit_code == 5);
    CHECK(contains(cut.err, "is the file cut off?"));
    CHECK(report(cut)["resumable"] == true);
    CHECK(report(cut)["done"].get<int>() > 0);
  }
  write_file(in, compressed);
  CHECK(run_ledger({in, "-o", job.out}).exit_code == 0);
  const auto answered = sorted_records(job.out);
  CHECK(answered.size() == 2000);
  CHECK(job.run({"--restart"}).exit_code == 0);
  CHECK(sorted_records(job.out) == answered);
}

}  // namespace llmb::test
