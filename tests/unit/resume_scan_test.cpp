// Outputs of earlier runs: whole records, a torn tail at every byte, damage elsewhere. FAULTS rows 3 and 12.
#include "io/resume_scan.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <filesystem>

#include "io/result_writer.h"
#include "tests/support/faulty_file_ops.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb {

namespace fs = std::filesystem;
using test::FaultyFileOps;
using test::FileCall;
using test::read_file;
using test::TempDir;
using test::write_file;

namespace {

std::string record(int64_t index, ApiForm form, bool is_error, bool metrics = true) {
  Completion c;
  c.line = {index, "in.jsonl", index + 1, 0, 0x1234567890abcdefu + static_cast<uint64_t>(index)};
  c.form = form;
  c.id_json = "\"a\\n\\\"index\\\":99\"";
  c.choices.emplace_back();
  c.choices[0].text = "line\none \"hash\":\"00\" \xE2\x82\xAC";
  if (is_error) c.error = RequestError{"invalid_value", "no {\"index\":7}", "prompt"};
  return ResultFormatter({.metrics = metrics}).format(c);
}

std::string some_records(int count) {
  std::string text;
  const ApiForm forms[] = {ApiForm::kNative, ApiForm::kOpenAiChat, ApiForm::kOpenAiCompletion};
  for (int i = 0; i < count; ++i) text += record(i, forms[i % 3], i % 4 == 3, i % 2 == 0);
  return text;
}

struct Scanned {
  Result<ScanResult> result;
  std::vector<int64_t> indices;
  std::string bytes;
  int num_errors = 0;
};

Scanned scan(const std::string& path, FileOps& ops = real_file_ops()) {
  Scanned scanned{internal_error(""), {}, "", 0};
  scanned.result = scan_records(
      path,
      [&](const RecordSummary& summary, std::string_view bytes) {
        CHECK(summary.content_hash == 0x1234567890abcdefu + static_cast<uint64_t>(summary.index));
        scanned.indices.push_back(summary.index);
        scanned.bytes += bytes;
        if (summary.error_code) CHECK(*summary.error_code == "invalid_value");
        scanned.num_errors += summary.error_code.has_value();
        return Status();
      },
      ops);
  return scanned;
}

}  // namespace

TEST_CASE("an error record of an older build, which told the error twice, is one still") {
  RecordParser parser;
  std::string twice =
      R"({"id":"batch_req_1","custom_id":"c","response":{"status_code":400,"body":{"error":{"code":"x"}}},"error":)"
      R"({"code":"y"},"index":1,"hash":"0123456789abcdef"})";
  const size_t twice_size = twice.size();
  twice.append(RecordParser::kPadding, ' ');
  const auto summary = parser.parse(std::string_view(twice).substr(0, twice_size));
  REQUIRE(summary);
  CHECK(summary->error_code.has_value());
  std::string no_code =
      R"({"response":{"status_code":400,"body":{}},"error":null,"index":1,"hash":"0123456789abcdef"})";
  const size_t size = no_code.size();
  no_code.append(RecordParser::kPadding, ' ');
  CHECK_FALSE(parser.parse(std::string_view(no_code).substr(0, size)));
}

TEST_CASE("every form of record is read back: index, hash, error code") {
  TempDir dir;
  const std::string text = some_records(24);
  write_file(dir / "a", text);
  const Scanned scanned = scan(dir / "a");
  REQUIRE(scanned.result.ok());
  CHECK(scanned.indices.size() == 24);
  for (int i = 0; i < 24; ++i) CHECK(scanned.indices[i] == i);
  CHECK(scanned.num_errors == 6);
  CHECK(scanned.bytes == text);
  CHECK(scanned.result->whole_bytes == static_cast<int64_t>(text.size()));
  CHECK(scanned.result->torn_bytes == 0);
  write_file(dir / "empty", "");
  CHECK(scan(dir / "empty").result->whole_bytes == 0);
  CHECK(scan(dir / "missing").result.status().code() == StatusCode::kIoError);
}

TEST_CASE("records of every task are read back") {
  const auto text_of = [](Task task, TextPairs pairs, bool is_list, bool has_options) {
    Completion c;
    c.line = {0, "in.jsonl", 1, 0, 0x1234567890abcdefu};
    c.task = task;
    c.embed.is_list = is_list;
    c.classify.pairs = pairs;
    c.choices.emplace_back().embedding = {0.5f};
    if (has_options) c.choices[0].score = OptionScore{-1, true};
    return ResultFormatter({.labels = {"LABEL_0"}}).format(c);
  };
  const std::string records[] = {text_of(Task::kEmbed, TextPairs::kNone, false, false),
                                 text_of(Task::kEmbed, TextPairs::kNone, true, false),
                                 text_of(Task::kClassify, TextPairs::kNone, false, false),
                                 text_of(Task::kClassify, TextPairs::kNone, true, false),
                                 text_of(Task::kClassify, TextPairs::kScore, false, false),
                                 text_of(Task::kClassify, TextPairs::kScore, true, false),
                                 text_of(Task::kClassify, TextPairs::kRerank, true, false),
                                 text_of(Task::kScore, TextPairs::kNone, false, false),
                                 text_of(Task::kScore, TextPairs::kNone, false, true)};
  TempDir dir;
  for (const std::string& text : records) {
    CAPTURE(text);
    write_file(dir / "a", text + text);
    const Scanned scanned = scan(dir / "a");
    REQUIRE(scanned.result.ok());
    CHECK(scanned.indices.size() == 2);
    CHECK(scanned.num_errors == 0);
  }
}

TEST_CASE("FAULTS 3: cut at every byte of the last three records: the whole ones stay, the rest is the torn tail") {
  TempDir dir;
  const std::string text = some_records(6);
  size_t begin = text.size();
  for (int i = 0; i < 3; ++i) begin = text.rfind('\n', begin - 2) + 1;
  for (size_t cut = begin; cut <= text.size(); ++cut) {
    write_file(dir / "a", text.substr(0, cut));
    const Scanned scanned = scan(dir / "a");
    REQUIRE(scanned.result.ok());
    const size_t whole = cut == 0 ? 0 : text.rfind('\n', cut - 1) + 1;
    CHECK(scanned.result->whole_bytes == static_cast<int64_t>(whole));
    CHECK(scanned.result->torn_bytes == static_cast<int64_t>(cut - whole));
    CHECK(scanned.bytes == text.substr(0, whole));
  }
}

TEST_CASE("FAULTS 3: a tail of NULs, with or without a newline, is torn; so is a last line that is no record") {
  TempDir dir;
  const std::string text = some_records(3);
  for (const std::string& tail : {std::string(1, '\0'), std::string(4096, '\0'), std::string(1 << 20, '\0'),
                                  std::string(10, '\0') + "\n", std::string("\n"), std::string("{}\n"),
                                  std::string("{\"index\":1,\"te\0\0\0\n", 17), text.substr(0, 20) + "\n"}) {
    write_file(dir / "a", text + tail);
    const Scanned scanned = scan(dir / "a");
    REQUIRE(scanned.result.ok());
    CHECK(scanned.bytes == text);
    CHECK(scanned.result->torn_bytes == static_cast<int64_t>(tail.size()));
  }
}

TEST_CASE("FAULTS 12: anything else that is not a record is damage, named by its line") {
  TempDir dir;
  const std::string text = some_records(4);
  const std::string good = record(9, ApiForm::kNative, false);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = good;
    REQUIRE(changed.find(from) != std::string::npos);
    return changed.replace(changed.find(from), from.size(), to);
  };
  const std::string bad[] = {"\n",
                             "{}\n",
                             "x" + good,
                             good.substr(0, good.size() - 2) + "\n",
                             std::string(100, '\0') + "\n",
                             replaced("\"index\":9", "\"index\":-9"),
                             replaced("\"index\":9", "\"index\":\"9\""),
                             replaced("\"index\":9", "\"index\":9.5"),
                             replaced("\"index\":9", "\"index\":99999999999999999999"),
                             replaced("\"hash\":\"1", "\"hash\":\"x"),
                             replaced("\"hash\":\"1", "\"hash\":\""),
                             replaced("\"hash\":", "\"hush\":"),
                             replaced("\"text\":", "\"test\":"),
                             replaced("\"text\":", "\"error\":5,\"text\":"),
                             replaced("\xE2\x82\xAC", "\xE2\x82")};
  for (const std::string& line : bad) {
    CAPTURE(line);
    write_file(dir / "a", text + line + good);
    const Scanned scanned = scan(dir / "a");
    REQUIRE_FALSE(scanned.result.ok());
    CHECK(scanned.result.status().code() == StatusCode::kDataLoss);
    CHECK(scanned.result.status().message().find("a:5: not a result record") != std::string::npos);
  }
}

TEST_CASE("records longer than the read buffer, short reads and interrupts") {
  TempDir dir;
  Completion c;
  c.choices.emplace_back();
  c.line = {0, "in", 1, 0, 0x1234567890abcdefu};
  for (const size_t size : {size_t{1}, size_t{262143}, size_t{262144}, size_t{262145}, size_t{3000000}}) {
    c.choices[0].text = std::string(size, 'x');
    const std::string text = ResultFormatter().format(c);
    write_file(dir / "a", text);
    CHECK(scan(dir / "a").bytes == text);
  }
  FaultyFileOps ops;
  ops.max_io_bytes = 7;
  ops.num_interrupts = 2;
  write_file(dir / "b", some_records(5));
  CHECK(scan(dir / "b", ops).indices.size() == 5);
  FaultyFileOps broken;
  broken.faults = {{FileCall::kRead, 1, EIO}};
  CHECK(scan(dir / "b", broken).result.status().code() == StatusCode::kIoError);
}

TEST_CASE("a line that is no record is found by its number wherever it stands in a file of many pieces") {
  TempDir dir;
  std::vector<std::string> records;
  for (int i = 0; i < 60; ++i) {
    Completion c;
    c.line = {i, "in", i + 1, 0, 0x1234567890abcdefu + static_cast<uint64_t>(i)};
    if (i % 7 == 3) c.error = RequestError{"invalid_value", "no", "prompt"};
    c.choices.emplace_back();
    // Some records share a piece with others, some are longer than it.
    c.choices[0].text = std::string(i == 20 || i == 21 ? size_t{2500000} : static_cast<size_t>(i) * 2000, 'x');
    records.push_back(ResultFormatter().format(c));
  }
  std::string text;
  for (const std::string& record : records) text += record;
  write_file(dir / "a", text);
  const Scanned all = scan(dir / "a");
  REQUIRE(all.result.ok());
  CHECK(all.bytes == text);
  CHECK(all.num_errors == 9);
  for (size_t bad = 0; bad < records.size(); bad += bad < 15 || bad > 25 ? 5 : 1) {
    std::string before, after;
    for (size_t i = 0; i < records.size(); ++i) (i < bad ? before : after) += records[i];
    write_file(dir / "a", before + "no record\n" + after);
    const Scanned scanned = scan(dir / "a");
    CHECK(scanned.result.status().code() == StatusCode::kDataLoss);
    CHECK(scanned.result.status().message().find("a:" + std::to_string(bad + 1) + ": ") != std::string::npos);
    CHECK(scanned.bytes == before);
    write_file(dir / "a", before + "no record\n");
    const Scanned torn = scan(dir / "a");
    REQUIRE(torn.result.ok());
    CHECK(torn.result->torn_bytes == 10);
    CHECK(torn.bytes == before);
  }
}

TEST_CASE("an error of the caller ends the scan at its record, whatever is read already") {
  TempDir dir;
  write_file(dir / "a", some_records(30000));
  int num_seen = 0;
  const auto stop_at = [&](Status status) {
    num_seen = 0;
    return scan_records(dir / "a",
                        [&](const RecordSummary&, std::string_view) { return ++num_seen == 9000 ? status : Status(); })
        .status();
  };
  CHECK(stop_at(cancelled("enough")).code() == StatusCode::kCancelled);
  CHECK(num_seen == 9000);
  const Status damaged = stop_at(data_loss("twice"));
  CHECK(damaged.message().find("a:9000: twice") != std::string::npos);
  CHECK(num_seen == 9000);
}

TEST_CASE("rewriting keeps what is asked for and is atomic under every failing call") {
  TempDir dir;
  const std::string text = some_records(8);
  const auto keep = [](const RecordSummary& summary) { return !summary.error_code; };
  write_file(dir / "a", text + "torn");
  CHECK(rewrite_records(dir / "a", dir / "a.tmp", keep).ok());
  const std::string kept = read_file(dir / "a");
  CHECK(scan(dir / "a").indices == std::vector<int64_t>{0, 1, 2, 4, 5, 6});
  CHECK(!fs::exists(dir / "a.tmp"));
  for (const FileCall call : {FileCall::kOpen, FileCall::kRead, FileCall::kWrite, FileCall::kFsync, FileCall::kRename})
    for (int64_t at = 1; at <= 3; ++at) {
      CAPTURE(static_cast<int>(call));
      CAPTURE(at);
      write_file(dir / "a", text);
      FaultyFileOps ops;
      ops.faults = {{call, at, EIO}};
      const Status status = rewrite_records(dir / "a", dir / "a.tmp", keep, ops);
      const std::string now = read_file(dir / "a");
      CHECK((now == text || now == kept));
      if (status.ok()) CHECK(now == kept);
      if (ops.count(call) >= at) CHECK(status.code() == StatusCode::kIoError);
      CHECK(!fs::exists(dir / "a.tmp"));
    }
}

}  // namespace llmb
