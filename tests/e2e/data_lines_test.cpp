// Files that were not made for llm-batch: CSV, TSV, text, and JSON lines with fields of their own, through the built
// program.
#include <doctest/doctest.h>

#include "tests/e2e/run.h"

namespace llmb::test {

using nlohmann::json;

namespace {

const std::string kQuestions =
    R"({"question":"What is 70 + 80?","answer":"150","messages":7,"temperature":"hot"})"
    "\n"
    R"({"question":"Say \"hi\".","answer":"hi","level":2})"
    "\n";

class Job {
 public:
  ProcessResult run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--device", "ledger", "--max-tokens", "4", "--order", "input", "-o", out()});
    return run_llm_batch(arguments);
  }
  std::string file(const std::string& name, const std::string& content) const {
    write_file(dir_.file(name), content);
    return dir_.file(name);
  }
  std::string out() const { return dir_.file("out.jsonl"); }
  std::vector<json> records() const { return parse_lines(read_file(out())); }

 private:
  TemporaryDirectory dir_;
};

// The number of prompt tokens that a prompt of the bundled model has: tells which prompt a line became.
int prompt_tokens(const std::string& line) {
  const ProcessResult result = run_llm_batch({"--device", "ledger", "--max-tokens", "1"}, line + "\n");
  REQUIRE(result.exit_code == 0);
  return parse_lines(result.out)[0]["usage"]["prompt_tokens"];
}

int of_prompt(const std::string& prompt) { return prompt_tokens(json({{"prompt", prompt}}).dump()); }

}  // namespace

TEST_CASE("a template or a field makes the prompts of any JSON lines") {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--template", "{{ question }}"},
                                                std::vector<std::string>{"--prompt-field", "question"}}) {
    const Job job;
    std::vector<std::string> arguments = {job.file("gsm8k.jsonl", kQuestions)};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProcessResult result = job.run(arguments);
    CHECK(result.exit_code == 0);
    const auto records = job.records();
    REQUIRE(records.size() == 2);
    CHECK(records[0]["usage"]["prompt_tokens"] == of_prompt("What is 70 + 80?"));
    CHECK(records[1]["usage"]["prompt_tokens"] == of_prompt("Say \"hi\"."));
    CHECK(!records[0].contains("input"));
  }
  const Job job;
  const std::string path = job.file("template.jinja", "Question: {{ question }}\nAnswer:\n");
  CHECK(job.run({job.file("in.jsonl", kQuestions), "--template", path}).exit_code == 0);
  CHECK(job.records()[0]["usage"]["prompt_tokens"] == of_prompt("Question: What is 70 + 80?\nAnswer:"));
}

TEST_CASE("a system message makes conversations") {
  const Job job;
  CHECK(job.run({job.file("in.jsonl", kQuestions), "--prompt-field", "question", "--system", "Be brief."}).exit_code == 0);
  const json messages = {{"messages",
                          {{{"role", "system"}, {"content", "Be brief."}},
                           {{"role", "user"}, {"content", "What is 70 + 80?"}}}}};
  CHECK(job.records()[0]["usage"]["prompt_tokens"] == prompt_tokens(messages.dump()));
}

TEST_CASE("kept fields stand in the record, before the hash") {
  const Job job;
  CHECK(job.run({job.file("in.jsonl", kQuestions), "--prompt-field", "question", "--keep", "answer,level"}).exit_code == 0);
  const auto records = job.records();
  CHECK(records[0]["input"] == json({{"answer", "150"}}));
  CHECK(records[1]["input"] == json({{"answer", "hi"}, {"level", 2}}));
  const std::string text = read_file(job.out());
  CHECK(text.find(R"("input":{"answer":"150"},"hash":")") != std::string::npos);
  const Job all;
  CHECK(all.run({all.file("in.jsonl", kQuestions), "--prompt-field", "question", "--keep", "all"}).exit_code == 0);
  CHECK(all.records()[1]["input"] == parse_lines(kQuestions)[1]);
}

TEST_CASE("the summary names kept fields that no line has; the run is complete") {
  const Job job;
  const std::string in = job.file("in.jsonl", kQuestions);
  const auto run = [&](const std::string& names, const std::string& out) {
    return run_process({kProgram, "-m", kModel, "--device", "ledger", "--max-tokens", "1", "--order", "input",
                        "--prompt-field", "question", "--keep", names, in, "-o", out});
  };
  const ProcessResult result = run("answr,level,other", job.out());
  CHECK(result.exit_code == 0);
  CHECK(result.err.find("\nwarning           --keep: no line has a field answr\n"
                        "warning           --keep: no line has a field other\n") != std::string::npos);
  CHECK(result.err.find("a field level") == std::string::npos);
  CHECK(job.records()[0]["input"] == json::object());
  const Job known;
  const ProcessResult all_kept = run("answer,level", known.out());
  CHECK(all_kept.err.find("requests          2 ok") != std::string::npos);
  CHECK(all_kept.err.find("warning") == std::string::npos);
}

TEST_CASE("CSV, TSV and text by name and by flag; a quoted line break belongs to its row") {
  const Job csv;
  CHECK(csv.run({csv.file("in.csv", "id,text\r\n1,\"two\nlines, \"\"x\"\"\"\r\n2,plain\r\n"), "--template", "{{ text }}"})
            .exit_code == 0);
  auto records = csv.records();
  REQUIRE(records.size() == 2);
  CHECK(records[0]["index"] == 1);
  CHECK(records[1]["index"] == 3);
  CHECK(records[0]["id"] == "1");
  CHECK(records[0]["usage"]["prompt_tokens"] == of_prompt("two\nlines, \"x\""));
  const Job tsv;
  CHECK(tsv.run({tsv.file("in.tsv", "prompt\tn\nOnce upon\t1\n")}).exit_code == 0);
  CHECK(tsv.records()[0]["usage"]["prompt_tokens"] == of_prompt("Once upon"));
  const Job text;
  CHECK(text.run({text.file("in.txt", "Once upon\n\n{\"prompt\": 1\n")}).exit_code == 0);
  CHECK(text.records()[1]["usage"]["prompt_tokens"] == of_prompt("{\"prompt\": 1"));
  const Job piped;
  const ProcessResult result =
      run_llm_batch({"--device", "ledger", "--max-tokens", "1", "--input-format", "csv", "-"}, "prompt\nhi\n");
  CHECK(result.exit_code == 0);
  CHECK(parse_lines(result.out)[0]["index"] == 1);
}

TEST_CASE("a job over rows continues; another template, field or header is refused") {
  const Job job;
  const std::string in = job.file("in.csv", "id,q\n1,\"a\nb\"\n");
  CHECK(job.run({in, "--template", "{{ q }}"}).exit_code == 0);
  const std::string first = read_file(job.out());
  write_file(in, "id,q\n1,\"a\nb\"\n2,c\n");
  CHECK(job.run({in, "--template", "{{ q }}"}).exit_code == 0);
  CHECK(job.records().size() == 2);
  CHECK(read_file(job.out()).substr(0, 10) == first.substr(0, 10));
  const ProcessResult other = job.run({in, "--template", "{{ q }}!"});
  CHECK(other.exit_code == 7);
  CHECK(other.err.find("template") != std::string::npos);
  CHECK(job.run({in, "--prompt-field", "q"}).exit_code == 7);
  CHECK(job.run({in, "--template", "{{ q }}", "--keep", "q"}).exit_code == 7);
  write_file(in, "q,id\n1,\"a\nb\"\n2,c\n");
  CHECK(job.run({in, "--template", "{{ q }}"}).exit_code == 7);
}

TEST_CASE("rows and fields that do not fit cost a record that says why") {
  const Job job;
  const ProcessResult result = job.run({job.file("in.csv", "a,b\n1,2,3\n1,\"x\"y\n4\n5,\"open\n"), "--template", "{{ b }}"});
  CHECK(result.exit_code == 3);
  const auto records = job.records();
  REQUIRE(records.size() == 4);
  CHECK(records[0]["error"]["message"] == "the row has 3 fields, the header 2");
  CHECK(records[1]["error"]["code"] == "invalid_row");
  CHECK(records[2]["error"]["message"] == "'b' is undefined; it has a");
  CHECK(records[3]["error"]["message"].get<std::string>().find("never closes") != std::string::npos);
}

TEST_CASE("a newcomer's file gets a summary that says why its lines failed, and what to try") {
  const Job job;
  const ProcessResult result = run_process(
      {kProgram, "-m", kModel, "--device", "ledger", "-o", job.out(), job.file("gsm8k.jsonl", "{\"question\":\"a\"}\n{\"question\":\"b\"}\n")});
  CHECK(result.exit_code == 3);
  CHECK(result.err.find("2 × missing_field: ") != std::string::npos);
  CHECK(result.err.find("it has question") != std::string::npos);
  CHECK(result.err.find("--prompt-field") != std::string::npos);
}

TEST_CASE("flags that cannot be meant end with 2") {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--template", "{{ x"}, std::vector<std::string>{"--template", "/nowhere/template"},
        std::vector<std::string>{"--template", "{{ x }}", "--prompt-field", "x"},
        std::vector<std::string>{"--system", "Be brief."}, std::vector<std::string>{"--keep", "a,,b"},
        std::vector<std::string>{"--input-format", "xml"}}) {
    const ProcessResult result = run_llm_batch(flags, "{}\n");
    CAPTURE(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find(flags[0]) != std::string::npos);
  }
}

}  // namespace llmb::test
