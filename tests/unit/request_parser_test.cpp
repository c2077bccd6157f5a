// Lines that are requests, and the error of each that is none: FAULTS rows 14, 18 and 19.
#include "io/request_parser.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "io/json_scan.h"
#include "io/request_fields.h"
#include "io/result_writer.h"
#include "tests/unit/parsed_line.h"

namespace llmb::test {

TEST_CASE("a prompt: text, array of one text, token ids, array of one array of token ids") {
  CHECK(std::get<std::string>(accepted(R"({"prompt":"a\u00e9\u0000b"})").prompt) == std::string("a\xC3\xA9\0b", 5));
  CHECK(std::get<std::string>(accepted(R"({"prompt":["one"]})").prompt) == "one");
  CHECK(std::get<Tokens>(accepted(R"({"prompt":[1,2.0,3]})").prompt) == Tokens{1, 2, 3});
  CHECK(std::get<Tokens>(accepted(R"({"prompt":[[1,2,3]]})").prompt) == Tokens{1, 2, 3});
  CHECK(std::get<Tokens>(accepted(R"({"prompt_token_ids":[0,31999]})", {}, {.vocab_size = 32000}).prompt) ==
        Tokens{0, 31999});
  CHECK(accepted(R"({"prompt":"p"})").form == ApiForm::kNative);
}

TEST_CASE("prompts that are none are refused, naming the field") {
  struct Case {
    const char *line, *code, *param;
  };
  for (const Case& c : {
           Case{R"({"prompt":""})", "invalid_value", "prompt"},
           {R"({"prompt":5})", "invalid_value", "prompt"},
           {R"({"prompt":{"text":"x"}})", "invalid_value", "prompt"},
           {R"({"prompt":[]})", "invalid_value", "prompt"},
           {R"({"prompt":[""]})", "invalid_value", "prompt"},
           {R"({"prompt":[[]]})", "invalid_value", "prompt"},
           {R"({"prompt":["a","b"]})", "unsupported_field", "prompt"},
           {R"({"prompt":[[1],[2]]})", "unsupported_field", "prompt"},
           {R"({"prompt":[1,"b"]})", "invalid_value", "prompt[1]"},
           {R"({"prompt_token_ids":[]})", "invalid_value", "prompt_token_ids"},
           {R"({"prompt_token_ids":"1"})", "invalid_value", "prompt_token_ids"},
           {R"({"prompt_token_ids":[5,-1]})", "invalid_value", "prompt_token_ids[1]"},
           {R"({"prompt_token_ids":[32000]})", "invalid_value", "prompt_token_ids[0]"},
           {R"({"prompt_token_ids":[1.5]})", "invalid_value", "prompt_token_ids[0]"},
           {R"({"prompt_token_ids":[9223372036854775808]})", "invalid_value", "prompt_token_ids[0]"},
           {R"({"messages":[]})", "invalid_value", "messages"},
           {R"({"messages":"hi"})", "invalid_value", "messages"},
           {R"({"messages":{"role":"user","content":"x"}})", "invalid_value", "messages"},
           {R"({"messages":["hi"]})", "invalid_value", "messages[0]"},
           {R"({"messages":[{"content":"x"}]})", "missing_field", "messages[0].role"},
           {R"({"messages":[{"role":"user"}]})", "missing_field", "messages[0].content"},
           {R"({"messages":[{"role":"","content":"x"}]})", "invalid_value", "messages[0].role"},
           {R"({"messages":[{"role":1,"content":"x"}]})", "invalid_value", "messages[0].role"},
           {R"({"messages":[{"role":"user","role":"user","content":"x"}]})", "duplicate_field", "messages[0].role"},
           {R"({"messages":[{"role":"user","content":"x"},{"role":"user","content":7}]})", "invalid_value",
            "messages[1].content"},
           {R"({"messages":[{"role":"user","content":["x"]}]})", "invalid_value", "messages[0].content[0]"},
           {R"({"messages":[{"role":"user","content":[{"text":"x"}]}]})", "missing_field",
            "messages[0].content[0].type"},
           {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "missing_field",
            "messages[0].content[0].text"},
           {R"({"messages":[{"role":"user","content":[{"type":"text","text":1}]}]})", "invalid_value",
            "messages[0].content[0].text"},
           {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})",
            "unsupported_field", "messages[0].content[0].type"},
           {R"({"messages":[{"role":"assistant","content":null,"function_call":{"name":"f"}}]})", "unsupported_field",
            "messages[0].function_call"},
       }) {
    CAPTURE(c.line);
    const ParseFailure failure = refused(c.line, {}, {.vocab_size = 32000});
    CHECK(failure.error.code == c.code);
    CHECK(failure.error.param == c.param);
    CHECK(failure.error.byte_offset.has_value());
  }
}

TEST_CASE("exactly one kind of prompt") {
  CHECK(refused(R"({"id":1})").error.code == "missing_field");
  CHECK(refused(R"({"prompt":null})").error.code == "missing_field");
  CHECK(refused(R"({"id":1})").error.message.starts_with("the line needs prompt, messages or"));
  GenerationParams vectors;
  vectors.task = Task::kEmbed;
  CHECK(refused(R"({"id":1})", vectors).error.message.starts_with("the line needs input, prompt, messages or"));
  const auto names_task = [](const std::string& line, const char* task) {
    return refused(line).error.message.find(std::string("; --task ") + task) != std::string::npos;
  };
  CHECK(names_task(R"({"query":"a","documents":["b"]})", "classify ranks"));
  CHECK(names_task(R"({"text_1":"a","text_2":"b"})", "classify scores"));
  CHECK(names_task(R"({"input":"a"})", "embed takes"));
  CHECK(!names_task(R"({"input":"a","prompt":"a","documents":["b"]})", ""));
  CHECK(refused(R"({"prompt":"a","prompt_token_ids":[1]})").error.code == "invalid_request");
  CHECK(refused(R"({"prompt":"a","messages":[{"role":"user","content":"x"}]})").error.code == "invalid_request");
  CHECK(std::get<std::string>(accepted(R"({"prompt":"a","prompt_token_ids":null})").prompt) == "a");
}

TEST_CASE("messages keep their members and order; null content stays") {  // more in chat_lines_test
  CHECK(
      messages_of(accepted(
          R"({"messages":[ {"role":"system","name":"n","content":"a\"\u00e9"}, {"content":null,"role":"assistant","x":[1,1.0,{"y":true}]}]})")) ==
      "[{\"role\":\"system\",\"name\":\"n\",\"content\":\"a\\\"\xC3\xA9\"},{\"content\":null,\"role\":\"assistant\","
      "\"x\":[1,1.0,{\"y\":true}]}]");
}

TEST_CASE("ids are any scalar, kept as JSON text; missing, null, repeated and long ones are fine") {
  const auto id = [](const std::string& members) { return accepted(native(members)).id_json; };
  CHECK(id("\"id\":\"a\\n\\u00e9\"") == "\"a\\n\xC3\xA9\"");
  CHECK(id("\"id\":17") == "17");
  CHECK(id("\"id\":-1.50") == "-1.5");
  CHECK(id("\"id\":1.0") == "1.0");
  CHECK(id("\"id\":18446744073709551615") == "18446744073709551615");
  CHECK(id("\"id\":true") == "true");
  CHECK(id("\"id\":\"\"") == "\"\"");
  CHECK(id("\"id\":null").empty());
  CHECK(id("\"n\":1").empty());
  CHECK(id("\"custom_id\":\"c\"") == "\"c\"");
  CHECK(id("\"custom_id\":\"c\",\"id\":\"i\"") == "\"i\"");
  CHECK(id("\"id\":\"" + std::string(1 << 20, 'x') + "\"").size() == (1 << 20) + 2);
  CHECK(refused(native("\"id\":[1]")).error.param == "id");
  CHECK(refused(native("\"id\":{}")).error.param == "id");
  CHECK(accepted(chat("")).id_json == "\"c-1\"");
  CHECK(accepted(R"({"url":"/v1/completions","body":{"prompt":"p"}})").id_json.empty());
}

TEST_CASE("an error keeps the line's id, form and model, so that its record can be matched") {
  const ParseFailure failure = refused(completion("\"max_tokens\":0"));
  CHECK(failure.id_json == "\"c-1\"");
  CHECK(failure.form == ApiForm::kOpenAiCompletion);
  CHECK(failure.model_name == "m");
  CHECK(failure.line.index == 3);
  CHECK(refused(R"({"prompt":"p","prompt":"q","id":5})").id_json == "5");
  const Completion record = to_completion(refused(chat("\"audio\":{}")));
  CHECK(record.choices.empty());
  CHECK(record.error->code == "unsupported_field");
  CHECK(record.form == ApiForm::kOpenAiChat);
  CHECK(record.line.line_number == 4);
}

TEST_CASE("OpenAI batch lines") {
  const InputRequest request = accepted(chat("\"temperature\":0.5"));
  CHECK(request.form == ApiForm::kOpenAiChat);
  CHECK(request.model_name == "m");
  CHECK(request.params.sampling.temperature == 0.5f);
  CHECK(messages_of(request) == R"([{"role":"user","content":"hi"}])");
  CHECK(accepted(completion("")).form == ApiForm::kOpenAiCompletion);
  CHECK(std::get<Tokens>(accepted(R"({"url":"/v1/completions","body":{"prompt":[5,6]}})").prompt) == Tokens{5, 6});
  CHECK(accepted(R"({"url":"/v1/completions","arrival_ms":7,"note":1,"body":{"prompt":"p"}})").arrival_ms == 7.0);
  struct Case {
    const char *line, *code, *param;
  };
  for (const Case& c : {
           Case{R"({"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"input":"x"}})", "unsupported_url",
                "url"},
           {R"({"custom_id":"a","method":"GET","url":"/v1/completions","body":{"prompt":"p"}})", "invalid_value",
            "method"},
           {R"({"custom_id":"a","method":"POST","url":"/v1/completions"})", "missing_field", "body"},
           {R"({"custom_id":"a","method":"POST","body":{"prompt":"p"}})", "missing_field", "url"},
           {R"({"custom_id":"a","method":"POST","url":5,"body":{"prompt":"p"}})", "invalid_value", "url"},
           {R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":"p"})", "invalid_value", "body"},
           {R"({"url":"/v1/completions","body":{}})", "missing_field", "prompt"},
           {R"({"url":"/v1/completions","body":{"messages":[{"role":"user","content":"x"}]}})", "missing_field",
            "prompt"},
           {R"({"url":"/v1/chat/completions","body":{"prompt":"p"}})", "missing_field", "messages"},
           {R"({"url":"/v1/completions","body":{"prompt":"p"},"max_tokens":5})", "invalid_request", "max_tokens"},
           {R"({"url":"/v1/completions","body":{"prompt":"p","url":"x"}})", "unknown_field", "url"},
           {R"({"url":"/v1/completions","body":{"prompt":"p","whatever":1}})", "unknown_field", "whatever"},
           {R"({"url":"/v1/completions","body":{"prompt":"p","seed":1,"seed":1}})", "duplicate_field", "seed"},
       }) {
    CAPTURE(c.line);
    const ParseFailure failure = refused(c.line);
    CHECK(failure.error.code == c.code);
    CHECK(failure.error.param == c.param);
    CHECK(failure.form != ApiForm::kNative);
  }
  CHECK(refused(R"({"prompt":"p","url":"/v1/completions","body":{"prompt":"p"}})").error.code == "invalid_request");
}

TEST_CASE("a native line may have a url, a body and a method of its own") {
  const InputRequest r = accepted(R"({"prompt":"summarise","url":"https://a.example/x","body":"text","method":"GET"})");
  CHECK(r.form == ApiForm::kNative);
}

TEST_CASE("what is no JSON object is an error with the byte at fault") {
  CHECK(refused("not json").error.byte_offset == 0);
  CHECK(refused("{\"prompt\":\"a\xFF\"}").error.byte_offset == 12);
  CHECK(refused(R"({"prompt":"\udc00"})").error.byte_offset == 11);
  CHECK(refused(std::string("{\"prompt\":\"a\0\"}", 15)).error.byte_offset == 12);
  CHECK(refused("{\"prompt\":\"a\"").error.code == "invalid_json");
  for (const char* line : {"[1]", "\"prompt\"", "5", "null", "true"})
    CHECK(refused(line).error.code == "invalid_request");
  // The lines of a file that is one array say how to make lines of it.
  for (const char* line : {"[{\"prompt\":\"a\"}]", "["})
    CHECK(refused(line).error.message.find("jq -c '.[]' FILE") != std::string::npos);
  CHECK(refused("null").error.message.find("jq") == std::string::npos);
}

TEST_CASE("what is no whole JSON and has no newline may not have been written to its end") {
  const std::string whole = chat("\"max_tokens\":5,\"stop\":\"\xC3\xA9\"");
  RequestParser parser({}, {});
  for (size_t size = 1; size <= whole.size(); ++size)
    for (const bool has_newline : {false, true}) {
      CAPTURE(size);
      InputLine line;
      line.bytes = whole.substr(0, size);
      line.has_newline = has_newline;
      const Parsed parsed = parser.parse(line);
      CHECK(std::holds_alternative<InputRequest>(parsed) == (size == whole.size()));
      if (const auto* failure = std::get_if<ParseFailure>(&parsed)) {
        CHECK(failure->error.code == (has_newline ? "invalid_json" : kIncompleteLine));
        CHECK(contains(failure->error.message, "still being written") == !has_newline);
        CHECK(failure->error.byte_offset);
      }
    }
  InputLine bad;
  bad.bytes = "{\"prompt\":5}";
  bad.has_newline = false;
  CHECK(std::get<ParseFailure>(parser.parse(bad)).error.code == "invalid_value");
}

TEST_CASE("hostile sizes: deep nesting, a million keys, a ten megabyte number, a line that was too long") {
  CHECK(refused(std::string(100'000, '[')).error.code == "invalid_json");
  CHECK(refused("{\"prompt\":\"p\",\"x\":" + std::string(100'000, '[')).error.code == "invalid_json");
  std::string deep = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"extra\":" + std::string(1000, '[') +
                     std::string(1000, ']') + "}]}";
  CHECK(contains(messages_of(accepted(deep)), std::string(1000, '[')));
  std::string many = "{\"prompt\":\"p\"";
  for (int i = 0; i < 1'000'000; ++i) many += ",\"key_" + std::to_string(i) + "\":1";
  (void)accepted(many + "}");
  CHECK(refused(native("\"max_tokens\":" + std::string(10'000'000, '1'))).error.param == "max_tokens");
  InputLine line;
  line.too_long = true;
  RequestParser parser({}, {});
  CHECK(std::get<ParseFailure>(parser.parse(line)).error.code == "line_too_long");
}

TEST_CASE("a large line of more parts than the limit is refused, whole or not, and one of as many is not") {
  const auto ids = [](size_t count) {
    std::string text = "{\"prompt_token_ids\":[5";
    for (size_t i = 1; i < count; ++i) text += i % 2 ? ",5" : " , 5";
    return text + "]}";
  };
  const std::string filler = "{\"prompt\":\"[,,,\\\",,,\",\"x\":\"" + std::string(size_t{1} << 20, ',') + "\",\"y\":";
  std::string rich = filler + "[1";
  for (int i = 0; i < 41; ++i) rich += ",\t1";
  const int64_t num_parts = count_json_parts(rich + "]}");
  CHECK(num_parts == 97);
  const RequestLimits at_limit = {.max_json_parts = num_parts}, above = {.max_json_parts = num_parts - 1};
  (void)accepted(rich + "]}", {}, at_limit);
  CHECK(refused(rich + "]}", {}, above).error.code == "invalid_request");
  CHECK(refused(rich + "]]", {}, above).error.code == "invalid_json");
  CHECK(std::get<Tokens>(accepted(ids(200'000)).prompt).size() == 200'000);
  // A small line is parsed whatever it holds.
  CHECK(std::get<Tokens>(accepted(ids(1000), {}, above).prompt).size() == 1000);
}

TEST_CASE("mutated lines never throw and always end in a request or a well-formed record") {
  const std::string seeds[] = {
      chat(R"("logprobs":true,"top_logprobs":2,"stop":["a"],"metadata":{"k":[1,{"z":null}]})"),
      completion(R"("logit_bias":{"5":1.5},"seed":7)"),
      native(R"("id":1.5,"max_tokens":5,"stop_token_ids":[1],"response_format":{"type":"text"})"),
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"arrival_ms":1e3})"};
  const std::string_view alphabet = "{}[]\",:\\u0123456789eE+-.tfn \xC3\xA9\xE2\xED\xFF";
  std::mt19937 random(11);
  RequestParser parser({}, {.vocab_size = 100});
  const ResultFormatter formatter;
  int num_accepted = 0;
  for (int round = 0; round < 40000; ++round) {
    InputLine line;
    line.line.source = "in\xFF\n.jsonl";
    line.bytes = seeds[random() % std::size(seeds)];
    for (unsigned edits = random() % 4; edits > 0; --edits) {
      const size_t at = random() % line.bytes.size();
      const char c = alphabet[random() % alphabet.size()];
      if (const unsigned kind = random() % 5; kind == 0) line.bytes[at] = c;
      else if (kind == 1) line.bytes.insert(at, 1, c);
      else if (kind == 2) line.bytes.erase(at, 1);
      else if (kind == 3) line.bytes.insert(at, line.bytes.substr(random() % line.bytes.size(), random() % 20));
      else line.bytes.resize(at + 1);
      if (line.bytes.empty()) line.bytes = " ";
    }
    Parsed parsed = parser.parse(line);
    if (std::holds_alternative<InputRequest>(parsed)) {
      ++num_accepted;
      continue;
    }
    const std::string record = formatter.format(to_completion(std::get<ParseFailure>(std::move(parsed))));
    if (!nlohmann::json::accept(record)) FAIL("bad record ", record, " of ", line.bytes);
  }
  CHECK(num_accepted > 1000);
}

}  // namespace llmb::test
