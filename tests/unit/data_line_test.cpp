// Lines of data: prompts made of a field or by a template, kept fields, and the formats besides JSON lines.
#include "io/data_line.h"

#include "base/content_hash.h"
#include "io/result_writer.h"
#include "tests/support/process.h"
#include "tests/unit/parsed_line.h"

namespace llmb {

using namespace test;

namespace {

Parsed parse_data(const std::string& bytes, const DataMapping& mapping, InputFormat format = InputFormat::kJsonLines,
                  const CsvColumns& columns = {}) {
  RequestParser parser({}, {}, mapping);
  InputLine line;
  line.bytes = bytes;
  line.format = format;
  line.columns = std::make_shared<const CsvColumns>(columns);
  return parser.parse(line);
}

InputRequest good(const std::string& bytes, const DataMapping& mapping, InputFormat format = InputFormat::kJsonLines,
                  const CsvColumns& columns = {}) {
  Parsed parsed = parse_data(bytes, mapping, format, columns);
  if (const auto* failure = std::get_if<ParseFailure>(&parsed)) FAIL(failure->error.message);
  return std::get<InputRequest>(parsed);
}

RequestError bad(const std::string& bytes, const DataMapping& mapping, InputFormat format = InputFormat::kJsonLines,
                 const CsvColumns& columns = {}) {
  Parsed parsed = parse_data(bytes, mapping, format, columns);
  REQUIRE(std::holds_alternative<ParseFailure>(parsed));
  return std::get<ParseFailure>(parsed).error;
}

std::string prompt_of(const InputRequest& request) { return std::get<std::string>(request.prompt); }

DataMapping from_field(const std::string& name) {
  DataMapping mapping;
  mapping.prompt_field = name;
  return mapping;
}

struct Row {
  int64_t index, line_number;
  std::string bytes;
  bool has_newline;

  bool operator==(const Row&) const = default;
};

std::vector<Row> rows(const std::string& content, const std::string& name, CsvColumns* columns = nullptr) {
  const TemporaryDirectory dir;
  write_file(dir.file(name), content);
  LineReader reader(std::vector<std::string>{dir.file(name)});
  std::vector<Row> rows;
  while (true) {
    auto line = reader.next();
    REQUIRE(line.ok());
    if (!line->has_value()) return rows;
    rows.push_back({(*line)->line.index, (*line)->line.line_number, (*line)->bytes, (*line)->has_newline});
    const bool has_header = (*line)->columns != nullptr;
    const std::string header = has_header ? content.substr(0, content.find_first_of("\r\n")) + "\n" : "";
    CHECK((*line)->line.content_hash == content_hash(header + (*line)->bytes));
    if (columns != nullptr) *columns = *(*line)->columns;
  }
}

}  // namespace

TEST_CASE("a field becomes the prompt; other fields mean nothing, but for an id") {
  const DataMapping mapping = from_field("question");
  const InputRequest request =
      good(R"({"id":"a","question":"Why?","answer":"4","temperature":"hot","max_token":1,"messages":3})", mapping);
  CHECK(prompt_of(request) == "Why?");
  CHECK(request.id_json == "\"a\"");
  CHECK(request.params.sampling.temperature == GenerationParams().sampling.temperature);
  CHECK(prompt_of(good(R"({"question":12,"custom_id":7})", mapping)) == "12");
  CHECK(good(R"({"question":"x","custom_id":7})", mapping).id_json == "7");
  CHECK(good(R"({"question":"x","id":[1]})", mapping).id_json == "");
  CHECK(prompt_of(good(R"({"question":"123456789012345678901234567890"})", mapping)).size() == 30);
  const RequestError missing = bad(R"({"Question":"x","answer":"y"})", mapping);
  CHECK(missing.code == "missing_field");
  CHECK(missing.message == "the line has no field question; it has Question, answer");
  CHECK(missing.param == "question");
  CHECK(bad(R"({"question":["x"]})", mapping).code == "invalid_value");
  CHECK(bad("[1]", mapping).code == "invalid_request");
  CHECK(bad("{", mapping).code == "invalid_json");
}

TEST_CASE("a template's prompt, its errors, and a conversation with a system message") {
  DataMapping mapping;
  mapping.render = [](std::string_view fields) -> Result<std::string> {
    if (fields.find("bad") != fields.npos) return invalid_argument("'x' is undefined");
    return "made of " + std::string(fields);
  };
  CHECK(prompt_of(good(R"({"a": 1.50})", mapping)) == R"(made of {"a": 1.50})");
  const RequestError error = bad(R"({"bad":1})", mapping);
  CHECK(error.code == "template_error");
  CHECK(error.message == "'x' is undefined; it has bad");
  mapping.system = "Be \"brief\".";
  CHECK(messages_of(good("{}", mapping)) ==
        R"([{"role":"system","content":"Be \"brief\"."},{"role":"user","content":"made of {}"}])");
  mapping.system = "";
  CHECK(messages_of(good("{}", mapping)) == R"([{"role":"user","content":"made of {}"}])");
}

TEST_CASE("rows of CSV and lines of text") {
  const CsvColumns columns = {"id", "prompt", "n"};
  const InputRequest row = good("7,\"a, \"\"b\"\"\nc\",5", {}, InputFormat::kCsv, columns);
  CHECK(prompt_of(row) == "a, \"b\"\nc");
  CHECK(row.id_json == "\"7\"");
  CHECK(prompt_of(good("7\tx y\t5", from_field("n"), InputFormat::kTsv, columns)) == "5");
  CHECK(bad("7", {}, InputFormat::kCsv, columns).message == "the line has no field prompt; it has id");
  CHECK(bad("1,2,3,4", {}, InputFormat::kCsv, columns).code == "invalid_row");
  CHECK(bad("1,\xff", {}, InputFormat::kCsv, columns).message == "the line is not valid UTF-8");
  CHECK(prompt_of(good(R"({"prompt": "not JSON here"})", {}, InputFormat::kText)) == R"({"prompt": "not JSON here"})");
  DataMapping mapping;
  mapping.render = [](std::string_view fields) -> Result<std::string> { return std::string(fields); };
  CHECK(prompt_of(good("a \"b\"", mapping, InputFormat::kText)) == R"({"text":"a \"b\""})");
}

TEST_CASE("kept fields stand in records of answers and of errors, before the hash") {
  DataMapping mapping;
  mapping.kept_fields = {"label", "missing", "n"};
  const std::string line = R"({"prompt":"p","n":1.0,"label":{"a":[1,"é"]},"big":12345678901234567890123})";
  CHECK(good(line, mapping).input_json == R"({"label":{"a":[1,"é"]},"n":1.0})");
  mapping.keeps_all = true;
  CHECK(good(line, mapping).input_json ==
        R"({"prompt":"p","n":1.0,"label":{"a":[1,"é"]},"big":12345678901234567890123})");
  CHECK(good(line, {}).input_json == "");
  Parsed parsed = parse_data(R"({"label":1,"temperature":-1,"prompt":"p"})", mapping);
  const Completion answer = to_completion(std::get<ParseFailure>(std::move(parsed)));
  const std::string record = ResultFormatter({.metrics = false}).format(answer);
  CHECK(contains(record, R"("input":{"label":1,"temperature":-1,"prompt":"p"},"hash":)"));
  // An OpenAI line is answered in OpenAI's form.
  CHECK(std::get<InputRequest>(parse_data(completion(""), mapping)).input_json == "");
}

TEST_CASE("a parser knows which kept fields no line had, once it has seen a line with fields") {
  DataMapping mapping;
  mapping.kept_fields = {"a", "b"};
  RequestParser parser({}, {}, mapping);
  using Names = std::vector<std::string>;
  const auto after = [&](const std::string& bytes) {
    InputLine line;
    line.bytes = bytes;
    parser.parse(line);
    return parser.fields_never_kept();
  };
  CHECK(after("{") == Names{});
  CHECK(after(completion("")) == Names{});  // its record has OpenAI's form
  CHECK(after(R"({"prompt":"p","A":1})") == Names{"a", "b"});
  CHECK(after(R"({"prompt":"p","b":null,"temperature":-1})") == Names{"a"});
  CHECK(after(R"({"prompt":"p"})") == Names{"a"});
  CHECK(after(R"({"prompt":"p","a":1})") == Names{});
}

TEST_CASE("a CSV row may hold line breaks; its index is that of its first line, the header's is not returned") {
  CsvColumns columns;
  CHECK(rows("id,text\r\n1,a\r\n\r\n2,\"b\r\nc\n\",\r\n3,d", "x.csv", &columns) ==
        std::vector<Row>{{1, 2, "1,a", true}, {3, 4, "2,\"b\r\nc\n\",", true}, {6, 7, "3,d", false}});
  CHECK(columns == CsvColumns{"id", "text"});
  CHECK(rows("a\tb\n\"x\ty\n\"\t2\n", "x.tsv") == std::vector<Row>{{1, 2, "\"x\ty\n\"\t2", true}});
  CHECK(rows("text\n5\" pipe\n\"open\n1\n2\n", "x.csv") ==
        std::vector<Row>{{1, 2, "5\" pipe", true}, {2, 3, "\"open\n1\n2\n", false}});
  CHECK(rows("", "x.csv").empty());
  CHECK(rows("text\n", "x.csv").empty());
  CHECK(rows("a\n\"b\n\"\n", "x.txt") == std::vector<Row>{{0, 1, "a", true}, {1, 2, "\"b", true}, {2, 3, "\"", true}});
}

TEST_CASE("each input has a format and a header of its own; a header that names no columns ends the job") {
  const TemporaryDirectory dir;
  write_file(dir.file("a.csv"), "x\n1\n");
  write_file(dir.file("b.csv"), "y\n2\n");
  write_file(dir.file("c.jsonl"), "{}\n");
  LineReader reader({dir.file("a.csv"), dir.file("b.csv"), dir.file("c.jsonl")});
  for (const char* column : {"x", "y"}) {
    const auto line = reader.next();
    CHECK(*(**line).columns == CsvColumns{column});
  }
  CHECK((**reader.next()).format == InputFormat::kJsonLines);
  write_file(dir.file("d.csv"), "\n\nx,,y\n1\n");
  const auto refused = LineReader(std::vector<std::string>{dir.file("d.csv")}).next();
  REQUIRE(!refused.ok());
  CHECK(contains(refused.status().message(), "d.csv:3: the first row must name the columns: a column has no name"));
  LineReader forced(std::vector<std::string>{dir.file("c.jsonl")}, kDefaultMaxLineBytes, real_file_ops(), InputFormat::kText);
  CHECK((**forced.next()).format == InputFormat::kText);
}

}  // namespace llmb
