// .npy files of vectors and their indexes: what is written is what numpy's format says, and what is damaged is refused.
#include "job/row_files.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <vector>

#include "io/result_writer.h"
#include "tests/support/process.h"

namespace llmb::test {

using nlohmann::json;

namespace {

// By numpy's description of the format (numpy.lib.format, version 1.0), not by the code under test.
struct NpyFile {
  std::string header;
  int64_t num_rows = -1, width = -1;
  std::vector<float> values;
};

NpyFile read_npy(const std::string& path) {
  const std::string bytes = read_file(path);
  NpyFile file;
  REQUIRE(bytes.size() >= 10);
  CHECK(bytes.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  const size_t length = static_cast<uint8_t>(bytes[8]) + 256u * static_cast<uint8_t>(bytes[9]);
  CHECK((10 + length) % 64 == 0);
  REQUIRE(bytes.size() >= 10 + length);
  file.header = bytes.substr(10, length);
  CHECK(file.header.back() == '\n');
  std::smatch found;
  const std::regex shape(R"(\{'descr': '<f4', 'fortran_order': False, 'shape': \((\d+), (\d+)\), \} *\n)");
  REQUIRE(std::regex_match(file.header, found, shape));
  file.num_rows = std::stoll(found[1]);
  file.width = std::stoll(found[2]);
  file.values.resize((bytes.size() - 10 - length) / 4);
  if (!file.values.empty()) std::memcpy(file.values.data(), bytes.data() + 10 + length, 4 * file.values.size());
  CHECK(bytes.size() == 10 + length + 4 * file.num_rows * file.width);
  return file;
}

std::string record_of(int64_t index, const std::vector<std::vector<float>>& vectors, const std::string& id = "null") {
  Completion completion;
  completion.line.index = index;
  completion.id_json = id;
  completion.task = Task::kEmbed;
  if (vectors.empty()) completion.error = RequestError{"invalid_value", "for the test", std::nullopt};
  for (const auto& vector : vectors) completion.choices.emplace_back().embedding = vector;
  return ResultFormatter({.metrics = false, .rows = true}).format(completion);
}

struct Files {
  TemporaryDirectory dir{/*in_memory=*/true};
  std::string rows = dir.file("v.npy"), index = dir.file("v.npy.index.jsonl"), temporary = dir.file("tmp");

  // Records become files. How many there are.
  int64_t pack(const std::vector<std::string>& records, int64_t if_none = 7) const {
    std::string text;
    for (const std::string& record : records) text += record;
    write_file(rows, text);
    const auto packed =
        pack_rows(rows, index, temporary, static_cast<int64_t>(records.size()), if_none, real_file_ops());
    REQUIRE_MESSAGE(packed.ok(), packed.status().message());
    CHECK(!std::filesystem::exists(temporary));
    return static_cast<int64_t>(records.size());
  }
  Status scan() const {
    const auto ignore = [](const RecordSummary&, std::string_view) { return Status(); };
    return scan_row_index(rows, index, ignore, real_file_ops()).status();
  }
};

const std::vector<std::string> kRecords = {
    record_of(3, {{1, 2.5, -3}, {4, 5, 6}}, R"("a ] , \"row\":9")"), record_of(0, {}), record_of(1, {{1e-38f, -0.0f, 3e38f}}, "17")};

}  // namespace

TEST_CASE("rows are the values, bit by bit; the index names the rows of each line, and error records stay") {
  const Files files;
  files.pack(kRecords);
  const NpyFile npy = read_npy(files.rows);
  CHECK(npy.num_rows == 3);
  CHECK(npy.width == 3);
  const std::vector<float> expected = {1, 2.5, -3, 4, 5, 6, 1e-38f, -0.0f, 3e38f};
  CHECK(std::memcmp(npy.values.data(), expected.data(), 36) == 0);
  std::vector<json> records;
  std::stringstream lines(read_file(files.index));
  for (std::string line; std::getline(lines, line);) records.push_back(json::parse(line));
  REQUIRE(records.size() == 3);
  CHECK(records[0]["index"] == 3);
  CHECK(records[0]["row"] == 0);
  CHECK(records[0]["num_rows"] == 2);
  CHECK(records[0]["id"] == "a ] , \"row\":9");
  CHECK(records[0].contains("hash"));
  CHECK(records[1]["error"]["code"] == "invalid_value");
  CHECK(!records[1].contains("row"));
  CHECK(records[2]["row"] == 2);
  CHECK(records[2]["num_rows"] == 1);
}

TEST_CASE("files become the records again that they were made of") {
  const Files files;
  files.pack(kRecords);
  REQUIRE(files.scan().ok());
  REQUIRE(unpack_rows(files.rows, files.index, files.temporary, real_file_ops()).ok());
  CHECK(read_file(files.rows) == kRecords[0] + kRecords[1] + kRecords[2]);
  CHECK(!std::filesystem::exists(files.index));
}

TEST_CASE("without a vector the shape says how long one would be") {
  const Files files;
  files.pack({});
  CHECK(read_npy(files.rows).num_rows == 0);
  CHECK(read_npy(files.rows).width == 7);
  CHECK(read_file(files.index).empty());
  files.pack({kRecords[1]});
  CHECK(read_npy(files.rows).width == 7);
  CHECK(files.scan().ok());
}

TEST_CASE("headers of every length of shape are 128 bytes, and read as they were written") {
  for (const int64_t rows : {int64_t{0}, int64_t{9}, int64_t{10}, int64_t{1} << 31, (int64_t{1} << 40) - 1})
    for (const int64_t width : {int64_t{1}, int64_t{1024}, (int64_t{1} << 40) - 1}) {
      const std::string header = npy_header({rows, width});
      CHECK(header.size() == kNpyHeaderBytes);
      const auto shape = parse_npy_header(header);
      REQUIRE(shape);
      CHECK(shape->num_rows == rows);
      CHECK(shape->width == width);
      for (const size_t at : {0, 6, 8, 20, 70, 127}) {
        std::string other = header;
        other[at] ^= 1;
        if (const auto changed = parse_npy_header(other)) CHECK(npy_header(*changed) == other);
      }
    }
  CHECK(!parse_npy_header(npy_header({1, 1}).substr(1)));
}

TEST_CASE("vectors of two lengths, and records of other runs, are refused") {
  const Files files;
  const auto refusal = [&](const std::string& records, int64_t count) {
    write_file(files.rows, records);
    const auto packed = pack_rows(files.rows, files.index, files.temporary, count, 7, real_file_ops());
    CHECK(!packed.ok());
    CHECK(packed.status().code() == StatusCode::kDataLoss);
    CHECK(read_file(files.rows) == records);
    CHECK(!std::filesystem::exists(files.index));
    return packed.status().message();
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  contains(refusal(kRecords[0] + record_of(4, {{1, 2}}), 2), "have 2 values, and those before it 3");
  contains(refusal(record_of(4, {{1, 2}, {1}}), 1), "cannot be read");
  contains(refusal(R"({"index":0,"id":null,"embedding":[1],"hash":"0000000000000000"})" "\n", 1), "no record of a run");
  contains(refusal(kRecords[0], 2), "1 records, not 2");
  contains(refusal(kRecords[0] + kRecords[1].substr(0, 20), 1), "was changed");
}

TEST_CASE("an index that does not fit its rows, and rows that are cut short, are refused by name") {
  const Files files;
  const auto refuses = [&](const std::string& message) {
    const Status status = files.scan();
    CHECK(status.code() == StatusCode::kDataLoss);
    CHECK_MESSAGE(status.message().find(message) != std::string::npos, status.message());
  };
  files.pack(kRecords);
  const std::string rows = read_file(files.rows), index = read_file(files.index);
  write_file(files.rows, rows.substr(0, rows.size() - 1));
  refuses("163 bytes, not the 164 of its 3 rows");
  write_file(files.rows, "\x93NUMPY");
  refuses("not a .npy file");
  write_file(files.rows, rows);
  const size_t second = index.find('\n') + 1, third = index.find('\n', second) + 1;
  write_file(files.index, index.substr(second));
  refuses("its row is 2, and the next one of");
  write_file(files.index, index.substr(0, third));
  refuses("it names 2 rows");
  write_file(files.index, index.substr(0, index.size() - 5));
  refuses("its last line is no record");
  write_file(files.index, kRecords[0] + index.substr(second));
  refuses("not a record of an index");
  write_file(files.index, index);
  CHECK(files.scan().ok());
}

}  // namespace llmb::test
