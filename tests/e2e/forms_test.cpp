// Answers in the form that was asked for, through the program: every one is of it, and no byte depends on the schedule.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <regex>
#include <set>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

using Json = nlohmann::json;
using Accepts = std::function<bool(const std::string&)>;

const Json kOrderSchema = Json::parse(R"({"type": "object", "additionalProperties": false,
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "minimum": 0, "maximum": 999},
                   "size": {"enum": ["small", "large", null]}},
    "required": ["name", "count", "size"]})");

bool is_order(const std::string& text) {
  const Json order = Json::parse(text, nullptr, false);
  return order.is_object() && order.size() == 3 && order.contains("name") && order["name"].is_string() &&
         order["name"].get<std::string>().size() <= 48 && order.contains("count") &&
         order["count"].is_number_integer() && order["count"] >= 0 && order["count"] <= 999 && order.contains("size") &&
         (order["size"] == "small" || order["size"] == "large" || order["size"].is_null());
}

bool matches(const std::string& text, const std::string& pattern) { return std::regex_match(text, std::regex(pattern)); }

bool is_balanced(const std::string& text) {
  int depth = 0;
  for (const char c : text) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (depth < 0 || (c != '(' && c != ')')) return false;
  }
  return depth == 0 && !text.empty();
}

struct Form {
  const char* field;
  Json value;
  Accepts accepts;
};

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"guided_regex", "(Once|Then) [a-z]{3,9}( [a-z]{2,8}){0,4}\\.",
       [](const std::string& t) { return matches(t, "(Once|Then) [a-z]{3,9}( [a-z]{2,8}){0,4}\\."); }},
      {"guided_choice", {"yes", "yes, of course", "no"},
       [](const std::string& t) { return t == "yes" || t == "yes, of course" || t == "no"; }},
      {"guided_json", kOrderSchema, is_order},
      {"response_format", {{"type", "json_object"}}, [](const std::string& t) { return Json::parse(t, nullptr, false).is_object(); }},
      {"guided_grammar", "root ::= pair{1,4}\npair ::= \"(\" pair? \")\"", is_balanced},
      {"structured_outputs", {{"regex", "[0-9]{4}-[0-9]{2}-[0-9]{2}"}},
       [](const std::string& t) { return matches(t, "[0-9]{4}-[0-9]{2}-[0-9]{2}"); }},
  };
  return all;
}

// Lines that ask for every form, and some that ask for none.
std::vector<Json> lines() {
  std::vector<Json> all;
  const auto examples = parse_lines(read_file(source_dir() + "/data/eval/examples.jsonl"));
  for (size_t i = 0; i < 36; ++i) {
    Json line = examples[i % examples.size()];
    line["id"] = i;
    line["seed"] = i;
    line["max_tokens"] = 60 + (i * 7) % 40;
    if (i % 2 == 1) line["temperature"] = 1.2;
    if (i % 5 == 1) line["n"] = 3;
    if (i % 4 == 0) line["logprobs"] = 2;
    if (i % 7 == 3) line["frequency_penalty"] = 0.5;
    if (i % 7 < forms().size()) line[forms()[i % 7].field] = forms()[i % 7].value;
    all.push_back(line);
  }
  return all;
}

std::string text_of(const std::vector<Json>& all) {
  std::string text;
  for (const Json& line : all) text += line.dump() + "\n";
  return text;
}

// Every finished answer of the record is of the form; returns how many were finished.
int check_answers(const Json& record, const Accepts& accepts) {
  int num_finished = 0;
  const Json outputs = record.contains("outputs") ? record["outputs"] : Json::array({record});
  for (const Json& output : outputs) {
    REQUIRE_MESSAGE(output.contains("text"), record.dump());
    const auto text = output["text"].get<std::string>();
    if (output["finish_reason"] == "length") continue;
    CHECK_MESSAGE(accepts(text), text);
    ++num_finished;
  }
  return num_finished;
}

Json openai_line(const std::string& question, Json body) {
  body.update({{"model", "m"}, {"messages", {{{"role", "user"}, {"content", question}}}}});
  return {{"custom_id", "a"}, {"method", "POST"}, {"url", "/v1/chat/completions"}, {"body", body}};
}

}  // namespace

TEST_CASE("every answer that is not cut has the form that its line asks for") {
  const ProcessResult result = run_llm_batch({}, text_of(lines()));
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  std::map<std::string, int> num_finished;
  for (const Json& record : parse_lines(result.out)) {
    const size_t kind = record["id"].get<size_t>() % 7;
    if (kind < forms().size()) num_finished[forms()[kind].field] += check_answers(record, forms()[kind].accepts);
  }
  for (const Form& form : forms()) CHECK_MESSAGE(num_finished[form.field] > 0, form.field);
  CHECK(num_finished["guided_json"] >= 5);
  CHECK(num_finished["guided_regex"] >= 5);
}

TEST_CASE("answers in forms have the same bytes whatever the schedule, speculation and sharing") {
  const std::string input = text_of(lines());
  const ProcessResult reference = run_llm_batch({"--batching", "none", "--threads", "1"}, input);
  REQUIRE_MESSAGE(reference.exit_code == 0, reference.err);
  const std::vector<std::vector<std::string>> schedules = {
      {},
      {"--max-num-seqs", "3"},
      {"--max-num-seqs", "128", "--max-num-batched-tokens", "4096"},
      {"--max-num-batched-tokens", "7", "--block-size", "8"},
      {"--batching", "static", "--max-num-seqs", "5"},
      {"--batching", "dynamic", "--max-num-seqs", "5", "--batch-window-ms", "1"},
      {"--speculative", "lookup"},
      {"--no-enable-prefix-caching", "--schedule", "file"},
  };
  for (const auto& schedule : schedules) {
    CAPTURE(schedule[schedule.empty() ? 0 : 1 % schedule.size()]);
    const ProcessResult result = run_llm_batch(schedule, input);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK(stable_output(result.out) == stable_output(reference.out));
  }
}

TEST_CASE("a preempted answer goes on in its form where it was") {
  std::string input;
  for (int i = 0; i < 16; ++i) {
    Json line = {{"id", i}, {"prompt", "Once upon a time"}, {"max_tokens", 100}, {"temperature", 1.0}, {"seed", i}};
    line["guided_regex"] = "[a-zA-Z ,.]{300,400}";
    input += line.dump() + "\n";
  }
  const ProcessResult plain = run_llm_batch({"--max-model-len", "256"}, input);
  const ProcessResult small = run_llm_batch({"--max-model-len", "256", "--num-gpu-blocks-override", "24"}, input);
  int num_preemptions = 0;
  for (const Json& record : parse_lines(small.out)) num_preemptions += record["metrics"]["num_preemptions"].get<int>();
  CHECK(num_preemptions > 0);
  CHECK(stable_output(small.out) == stable_output(plain.out));
}

TEST_CASE("a job with forms that is killed and resumed gives the records of one that was not") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), text_of(lines()));
  const std::vector<std::string> more = {dir.file("in.jsonl"), "--max-num-seqs", "4", "--choice", "a,b", "-o"};
  const auto run_to = [&](const std::string& output, const std::vector<std::string>& arguments) {
    std::vector<std::string> all = arguments;
    all.push_back(dir.file(output));
    return all;
  };
  REQUIRE(run_llm_batch(run_to("whole.jsonl", more)).exit_code == 0);
  CHECK(run_killed(run_to("resumed.jsonl", more), 12) > 0);
  CHECK(stable_output(read_file(dir.file("resumed.jsonl"))) == stable_output(read_file(dir.file("whole.jsonl"))));
  std::vector<std::string> other = more;
  other[4] = "a,c";
  CHECK(run_llm_batch(run_to("resumed.jsonl", other)).exit_code == 7);  // another form is another job
}

TEST_CASE("choice i in a form is the same for every n above it; an answer that max_tokens cuts says length") {
  Json line = {{"id", 1}, {"prompt", "Once upon a time"}, {"seed", 5}, {"temperature", 1.0}, {"max_tokens", 40}};
  line["guided_regex"] = "[a-z]{2,6}( [a-z]{2,6}){3}";
  line["n"] = 6;
  const Json most = answer(line.dump());
  line["n"] = 2;
  const Json two = answer(line.dump());
  REQUIRE(most["outputs"].size() == 6);
  for (int i = 0; i < 2; ++i) CHECK(two["outputs"][i]["text"] == most["outputs"][i]["text"]);
  line.erase("n");
  const Json one = answer(line.dump());
  CHECK(one["text"] == most["outputs"][0]["text"]);
  CHECK(one["finish_reason"] == "stop");
  const int length = one["usage"]["completion_tokens"];
  for (const int max_tokens : {1, length - 1, length}) {
    line["max_tokens"] = max_tokens;
    const Json cut = answer(line.dump());
    CHECK(cut["finish_reason"] == (max_tokens < length ? "length" : "stop"));
    CHECK(one["text"].get<std::string>().starts_with(cut["text"].get<std::string>()));
  }
}

TEST_CASE("flags give all lines a form, but those that ask for one themselves, or for text") {
  const TemporaryDirectory dir;
  write_file(dir.file("schema.json"), kOrderSchema.dump());
  write_file(dir.file("grammar.gbnf"), "root ::= \"x\" root? | \"y\"");
  const std::string plain = R"({"prompt": "Once upon a time", "max_tokens": 90, "temperature": 0})";
  const auto text = [&](const std::string& line, std::vector<std::string> arguments) {
    const Json record = answer(line, std::move(arguments));
    return record.contains("text") ? record["text"].get<std::string>() : record.dump();
  };
  CHECK(is_order(text(plain, {"--json-schema", dir.file("schema.json")})));
  CHECK(matches(text(plain, {"--regex", "[0-9]{3}"}), "[0-9]{3}"));
  CHECK(matches(text(plain, {"--choice", "to be,not to be"}), "(not )?to be"));
  CHECK(matches(text(plain, {"--choice", "ab", "--choice", "cd"}), "ab|cd"));
  CHECK(matches(text(plain, {"--grammar", dir.file("grammar.gbnf")}).substr(0, 90), "x*y?"));
  Json line = Json::parse(plain);
  line["guided_choice"] = {"left", "right"};
  CHECK(matches(text(line.dump(), {"--regex", "[0-9]{3}"}), "left|right"));
  line.erase("guided_choice");
  const std::string unbound = text(plain, {});
  line["response_format"] = {{"type", "text"}};
  CHECK(text(line.dump(), {"--regex", "[0-9]{3}"}) == unbound);
}

TEST_CASE("OpenAI chat lines: json_schema, its strict rules, json_object") {
  const Json strict = {{"type", "json_schema"}, {"json_schema", {{"name", "order"}, {"strict", true}, {"schema", kOrderSchema}}}};
  const std::string question = "Extract the name and age as JSON: My friend Jack is a 27 year old pilot in Cairo.";
  const auto content = [&](const Json& format) {
    const Json record = answer(openai_line(question, {{"response_format", format}, {"max_tokens", 80}, {"temperature", 0}}).dump());
    REQUIRE_MESSAGE(record["response"]["status_code"] == 200, record.dump());
    CHECK(record["response"]["body"]["choices"][0]["finish_reason"] == "stop");
    return record["response"]["body"]["choices"][0]["message"]["content"].get<std::string>();
  };
  CHECK(is_order(content(strict)));
  CHECK(content({{"type", "json_object"}}) == R"({"name": "Jack", "age": 27})");
  Json open = strict;
  open["json_schema"]["schema"].erase("additionalProperties");
  const Json refused = answer(openai_line(question, {{"response_format", open}}).dump());
  CHECK(refused["response"]["status_code"] == 400);
  CHECK(refused["response"]["body"]["error"]["message"] ==
        "response_format.json_schema.schema: schema: \"additionalProperties\" at #: with strict it must be false");
}

TEST_CASE("what cannot be enforced is an error record that names field, keyword and place, also in a dry run") {
  const std::vector<std::pair<Json, std::string>> cases = {
      {{{"guided_json", {{"properties", {{"a", {{"unevaluatedItems", false}}}}}}}},
       "unsupported_form: guided_json: schema: \"unevaluatedItems\" at #/properties/a/unevaluatedItems"},
      {{{"guided_json", "{"}}, "invalid_form: guided_json: schema: it is not JSON"},
      {{{"guided_json", false}}, "invalid_form: guided_json: no answer can satisfy it"},
      {{{"guided_regex", "(?=a)b"}}, "unsupported_form: guided_regex: "},
      {{{"guided_regex", "(a"}}, "invalid_form: guided_regex: "},
      {{{"structured_outputs", {{"grammar", "root ::= x"}}}}, "invalid_form: structured_outputs.grammar: "},
  };
  std::string input;
  for (const auto& [fields, error] : cases) {
    Json line = {{"prompt", "Hello"}, {"max_tokens", 4}};
    line.update(fields);
    input += line.dump() + "\n";
  }
  const ProcessResult result = run_llm_batch({"--order", "input"}, input + "{\"prompt\": \"fine\", \"max_tokens\": 3}\n");
  const ProcessResult dry = run_llm_batch({"--dry-run"}, input + "{\"prompt\": \"fine\", \"max_tokens\": 3}\n");
  CHECK(result.exit_code == 3);
  CHECK(dry.exit_code == 3);
  const auto records = parse_lines(result.out);
  REQUIRE(records.size() == cases.size() + 1);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string error = records[i]["error"]["code"].get<std::string>() + ": " +
                              records[i]["error"]["message"].get<std::string>();
    CHECK_MESSAGE(error.starts_with(cases[i].second), error);
    CHECK_MESSAGE(dry.err.find(error) != std::string::npos, dry.err);
  }
  CHECK(records.back().contains("text"));
  CHECK(dry.err.find("1 lines ok, 6 bad") != std::string::npos);
}

TEST_CASE("a flag's form that cannot be enforced ends the job before the model is loaded") {
  const TemporaryDirectory dir;
  write_file(dir.file("bad.json"), R"({"properties": {"a": {"unevaluatedItems": false}}})");
  for (const bool dry : {false, true}) {
    const auto run = [&](std::vector<std::string> arguments) {
      if (dry) arguments.emplace_back("--dry-run");
      return run_llm_batch(arguments, "{\"prompt\": \"x\"}\n");
    };
    const ProcessResult schema = run({"--json-schema", dir.file("bad.json")});
    CHECK(schema.exit_code == 2);
    CHECK(schema.err.find("--json-schema: schema: \"unevaluatedItems\" at #/properties/a/unevaluatedItems") != std::string::npos);
    CHECK(run({"--json-schema", dir.file("none.json")}).exit_code == 2);
    CHECK(run({"--regex", "("}).exit_code == 2);
    for (const char* flag : {"--json-schema", "--regex", "--choice", "--grammar"}) CHECK(run({flag, ""}).exit_code == 2);
    CHECK(run({"--regex", "a", "--choice", "b"}).exit_code == 2);
    CHECK(run({"--regex", "a", "--ignore-eos"}).exit_code == 2);
  }
}

TEST_CASE("an answer that cannot go on is an error record that says so") {
  const Json record = answer(R"({"prompt": "Hello", "max_tokens": 30, "min_tokens": 20, "guided_choice": ["a"]})");
  CHECK(record["error"]["code"] == "no_token_allowed");
}

TEST_CASE("allowed_token_ids and bad_words bound the tokens of answers, also beside a form") {
  Json line = {{"prompt", "Once upon a time"}, {"max_tokens", 60}, {"temperature", 0}, {"return_token_ids", true}};
  const Json plain = answer(line.dump());
  const auto tokens = plain["token_ids"].get<std::vector<int>>();
  // Without a token of the answer: another answer, in which it is not.
  const std::set<int> distinct(tokens.begin(), tokens.end());
  std::vector<int> allowed(distinct.begin(), distinct.end());
  line["allowed_token_ids"] = allowed;
  CHECK(answer(line.dump())["token_ids"] == plain["token_ids"]);
  allowed.erase(std::find(allowed.begin(), allowed.end(), tokens[5]));
  line["allowed_token_ids"] = allowed;
  const Json other = answer(line.dump());
  for (const int token : other["token_ids"]) CHECK(std::count(allowed.begin(), allowed.end(), token) == 1);
  line.erase("allowed_token_ids");
  // Without a word of it: the answer takes another way there at the latest.
  std::istringstream words(plain["text"].get<std::string>());
  std::string word, second;
  words >> word >> second;
  line["bad_words"] = {second};
  const Json without = answer(line.dump());
  REQUIRE(without.contains("text"));
  CHECK(without["text"] != plain["text"]);
  line["guided_regex"] = "[a-z ]{20,40}";
  const Json both = answer(line.dump());
  CHECK(matches(both["text"].get<std::string>(), "[a-z ]{20,40}"));
  CHECK(answer(R"({"prompt":"a","allowed_token_ids":[]})")["error"]["param"] == "allowed_token_ids");
}

TEST_CASE("the held-out extraction questions: every answer validates, and no fewer are right than without a schema") {
  // The 100 of the published set, and of 600 others so many as LLMB_NUM_QUESTIONS says.
  const char* const count_text = std::getenv("LLMB_NUM_QUESTIONS");
  const size_t count = count_text ? std::strtoull(count_text, nullptr, 10) : 200;
  std::vector<Json> questions;
  for (const char* file : {"heldout.jsonl", "heldout_extract.jsonl"})
    for (Json line : parse_lines(read_file(source_dir() + "/data/eval/" + file))) {
      if (line["metadata"]["task"] != "extract" || questions.size() == count) continue;
      line["temperature"] = 0;
      line["guided_json"] = {{"type", "object"}, {"additionalProperties", false}};
      // The expected answer's members, in its order, give the schema.
      const auto expected = nlohmann::ordered_json::parse(line["metadata"]["expected"].get<std::string>());
      nlohmann::ordered_json with = nlohmann::ordered_json::parse(line.dump());
      for (const auto& [name, value] : expected.items()) {
        with["guided_json"]["properties"][name]["type"] = value.is_string() ? "string" : "integer";
        with["guided_json"]["required"].push_back(name);
      }
      questions.push_back(
          {{"line", with.dump()}, {"expected", expected.dump()}, {"text", line["metadata"]["expected"]}});
    }
  REQUIRE(questions.size() == std::min<size_t>(count, 700));
  std::string with, without;
  for (const Json& question : questions) {
    with += question["line"].get<std::string>() + "\n";
    Json line = Json::parse(question["line"].get<std::string>());
    line.erase("guided_json");
    without += line.dump() + "\n";
  }
  int num_right[2] = {};
  for (const bool has_schema : {false, true}) {
    const auto records = parse_lines(run_llm_batch({"--order", "input"}, has_schema ? with : without).out);
    REQUIRE(records.size() == questions.size());
    for (size_t i = 0; i < questions.size(); ++i) {
      const auto text = records[i]["text"].get<std::string>();
      num_right[has_schema] += text == questions[i]["text"];
      if (!has_schema) continue;
      const auto expected = nlohmann::ordered_json::parse(questions[i]["expected"].get<std::string>());
      const auto found = nlohmann::ordered_json::parse(text, nullptr, false);
      REQUIRE_MESSAGE(found.is_object(), text);
      CHECK(found.size() == expected.size());
      for (const auto& [name, value] : expected.items()) CHECK(found[name].type_name() == std::string(value.type_name()));
    }
  }
  MESSAGE(num_right[0] << " of " << questions.size() << " right without a schema, " << num_right[1] << " with");
  CHECK(num_right[1] >= num_right[0]);
}

}  // namespace llmb::test
