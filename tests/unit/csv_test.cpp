// Rows of CSV files: split as Python's csv module splits them, refused where it would guess.
#include "io/csv.h"

#include <doctest/doctest.h>

#include <random>

#include "io/input_format.h"

namespace llmb {

namespace {

using Fields = std::vector<std::string>;

Fields fields(const std::string& row, char separator = ',') {
  const auto split = split_csv_row(row, separator);
  if (!split.ok()) return {"error: " + split.status().message()};
  return *split;
}

std::string quoted(const std::string& field) {
  std::string out = "\"";
  for (const char c : field) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

TEST_CASE("fields, empty ones, quotes, separators and line breaks in quotes") {
  CHECK(fields("a,b,c") == Fields{"a", "b", "c"});
  CHECK(fields("") == Fields{""});
  CHECK(fields(",") == Fields{"", ""});
  CHECK(fields("a,,") == Fields{"a", "", ""});
  CHECK(fields("\"a,b\",c") == Fields{"a,b", "c"});
  CHECK(fields("\"say \"\"hi\"\"\"") == Fields{"say \"hi\""});
  CHECK(fields("\"two\nlines\",x") == Fields{"two\nlines", "x"});
  CHECK(fields("5\" pipe,x") == Fields{"5\" pipe", "x"});
  CHECK(fields("\"\",\"\"") == Fields{"", ""});
  CHECK(fields("a\tb,c", '\t') == Fields{"a", "b,c"});
  CHECK(fields(" a , b ") == Fields{" a ", " b "});
}

TEST_CASE("a quote that never closes and text behind one are errors that say where") {
  CHECK(fields("a,\"b") == Fields{"error: the quote that opens at byte 2 of the row never closes"});
  CHECK(fields("\"a\"b,c") == Fields{"error: text follows the closing quote at byte 2 of the row"});
}

TEST_CASE("any fields written with quotes are read back, and a row is known to go on exactly within quotes") {
  std::mt19937 rng(7);
  const std::string alphabet = "ab\",\n\t \xC3\xA9";
  for (int trial = 0; trial < 3000; ++trial) {
    Fields wanted(1 + rng() % 4);
    std::string row;
    for (size_t i = 0; i < wanted.size(); ++i) {
      for (size_t n = rng() % 6; n > 0; --n) wanted[i] += alphabet[rng() % alphabet.size()];
      const bool is_plain = wanted[i].find_first_of("\",\n") == std::string::npos && rng() % 2 == 0;
      row += (i > 0 ? "," : "") + (is_plain ? wanted[i] : quoted(wanted[i]));
    }
    CHECK(fields(row) == wanted);
    CsvQuotes quotes(',');
    for (size_t pos = 0; pos < row.size();) {
      const size_t size = std::min<size_t>(1 + rng() % 3, row.size() - pos);
      quotes.read(std::string_view(row).substr(pos, size));
      pos += size;
      // A prefix goes on in quotes exactly where it is no whole row for want of a closing quote.
      const auto prefix = split_csv_row(std::string_view(row).substr(0, pos), ',');
      CHECK(quotes.is_open() == (!prefix.ok() && prefix.status().message().find("never closes") != std::string::npos));
    }
    CHECK(!quotes.is_open());
  }
}

TEST_CASE("a row becomes an object of texts; headers are checked") {
  const auto columns = parse_csv_header("id,\"the question\",n", ',');
  REQUIRE(columns.ok());
  CHECK(*csv_row_to_json("7,\"a \"\"b\"\"\",3", ',', **columns) == R"({"id":"7","the question":"a \"b\"","n":"3"})");
  CHECK(*csv_row_to_json("7", ',', **columns) == R"({"id":"7"})");
  CHECK(csv_row_to_json("1,2,3,4", ',', **columns).status().message() == "the row has 4 fields, the header 3");
  CHECK(!csv_row_to_json("\"1", ',', **columns).ok());
  CHECK(parse_csv_header("a,,b", ',').status().message() == "a column has no name");
  CHECK(parse_csv_header("a,b,a", ',').status().message() == "two columns are named a");
}

TEST_CASE("formats by name of file and of flag") {
  for (const auto& [path, format] : std::vector<std::pair<std::string, InputFormat>>{
           {"a.jsonl", InputFormat::kJsonLines}, {"a", InputFormat::kJsonLines},       {"-", InputFormat::kJsonLines},
           {"a.csv", InputFormat::kCsv},         {"dir.csv/a.CSV.gz", InputFormat::kCsv}, {"a.tsv.zst", InputFormat::kTsv},
           {"a.txt", InputFormat::kText},        {"a.csv.jsonl", InputFormat::kJsonLines}, {"", InputFormat::kJsonLines}})
    CHECK(input_format_of(path) == format);
  CHECK(parse_input_format("tsv") == InputFormat::kTsv);
  CHECK(!parse_input_format("auto"));
  CHECK(!parse_input_format("CSV"));
}

}  // namespace llmb
