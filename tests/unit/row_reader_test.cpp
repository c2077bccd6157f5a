// Rows that are read a second time, by their place.
#include "job/row_reader.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "io/line_reader.h"
#include "tests/support/process.h"

namespace llmb::test {

namespace {

struct Input {
  explicit Input(const std::string& bytes, const std::string& name = "in.jsonl") : path(dir.file(name)) {
    write_file(path, bytes);
    LineReader reader({path});
    while (true) {
      auto line = reader.next();
      REQUIRE(line.ok());
      if (!line->has_value()) break;
      lines.push_back((*line)->line);
    }
    auto context = std::make_shared<ModelContext>();
    context->vocab_size = context->max_model_len = 100'000;
    rows.emplace(std::make_unique<RequestParser>(GenerationParams(), RequestLimits()), context, 7, std::nullopt);
  }
  Result<std::shared_ptr<Request>> read(size_t i) { return rows->read(lines[i]); }

  TemporaryDirectory dir;
  const std::string path;
  std::vector<LineRef> lines;
  std::optional<RowReader> rows;
};

std::string row(int tokens, int first) {
  std::string text = R"({"prompt_token_ids":[)" + std::to_string(first);
  for (int i = 1; i < tokens; ++i) text += ",5";
  return text + "]}";
}

}  // namespace

TEST_CASE("any line is read again, in any order, whatever its ending, beside byte order marks and blank lines") {
  Input input("\xEF\xBB\xBF" + row(1, 10) + "\n\n" + row(2, 11) + "\r\n  \n" + row(3, 12) + "\n" + row(4, 13));
  REQUIRE(input.lines.size() == 4);
  CHECK(input.rows->can_read(input.path));
  for (const size_t i : {3, 0, 2, 1, 1}) {
    CAPTURE(i);
    const auto request = input.read(i);
    REQUIRE_MESSAGE(request.ok(), request.status().message());
    CHECK((*request)->prompt_tokens.size() == i + 1);
    CHECK((*request)->prompt_tokens[0] == static_cast<TokenId>(10 + i));
    CHECK((*request)->line.index == input.lines[i].index);
    CHECK((*request)->line.line_number == input.lines[i].line_number);
    CHECK((*request)->line.source == input.path);
  }
}

TEST_CASE("lines around the size of a chunk are read whole") {
  for (const size_t size : {65535, 65536, 65537, 131072, 200000}) {
    std::string line = row(1, 3);
    line.insert(line.size() - 1, R"(,"note":")" + std::string(size - line.size() - 10, 'x') + "\"");
    REQUIRE(line.size() == size);
    Input input(row(1, 2) + "\n" + line + "\n" + row(1, 4));
    REQUIRE(input.lines.size() == 3);
    for (size_t i = 0; i < 3; ++i) CHECK((*input.read(i))->prompt_tokens[0] == static_cast<TokenId>(2 + i));
  }
}

TEST_CASE("a line that has changed, moved or gone is an error that names it") {
  const std::string first = row(1, 10) + "\n";
  for (const std::string& now : {first + row(1, 12) + "\n", first + " " + row(1, 11) + "\n", first, std::string()}) {
    Input input(first + row(1, 11) + "\n");
    write_file(input.path, now);
    const auto request = input.read(1);
    REQUIRE_FALSE(request.ok());
    CHECK(request.status().code() == StatusCode::kDataLoss);
    CHECK(request.status().message().find(input.path + ":2: the line has changed") == 0);
  }
  Input input(first);
  REQUIRE(run_shell("rm " + input.path).exit_code == 0);
  CHECK_FALSE(input.read(0).ok());
}

TEST_CASE("only regular files that are not compressed, with a row in each line, are read again") {
  CHECK_FALSE(Input("a,b\n1,2\n", "in.csv").rows->can_read("-"));
  Input csv("a,b\n1,2\n", "in.csv");
  CHECK_FALSE(csv.rows->can_read(csv.path));
  CHECK_FALSE(csv.rows->can_read(csv.dir.path()));
  CHECK_FALSE(csv.rows->can_read(csv.dir.file("none")));
  REQUIRE(run_shell("cd " + csv.dir.path() + "; echo x > t; gzip -k t; mkfifo p; : > empty.txt").exit_code == 0);
  CHECK_FALSE(csv.rows->can_read(csv.dir.file("t.gz")));
  CHECK_FALSE(csv.rows->can_read(csv.dir.file("p")));
  CHECK(csv.rows->can_read(csv.dir.file("t")));
  CHECK(csv.rows->can_read(csv.dir.file("empty.txt")));
}

}  // namespace llmb::test
