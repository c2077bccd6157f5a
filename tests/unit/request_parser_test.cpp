// What a line may say, and what each mistake in it is answered with: FAULTS rows 14, 18, 19 and 20.
#include "io/request_parser.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "io/request_fields.h"
#include "io/result_writer.h"

namespace llmb {

namespace {

using Parsed = std::variant<InputRequest, ParseFailure>;

Parsed parse(const std::string& bytes, const GenerationParams& defaults = {}, RequestLimits limits = {}) {
  RequestParser parser(defaults, limits);
  InputLine line;
  line.line = {3, "in.jsonl", 4, 100, 0xABCD};
  line.bytes = bytes;
  return parser.parse(line);
}

InputRequest accepted(const std::string& bytes, const GenerationParams& defaults = {}, RequestLimits limits = {}) {
  Parsed parsed = parse(bytes, defaults, limits);
  if (const auto* failure = std::get_if<ParseFailure>(&parsed)) FAIL(bytes, ": ", failure->error.message);
  return std::get<InputRequest>(parsed);
}

ParseFailure refused(const std::string& bytes, const GenerationParams& defaults = {}, RequestLimits limits = {}) {
  Parsed parsed = parse(bytes, defaults, limits);
  if (!std::holds_alternative<ParseFailure>(parsed)) FAIL("accepted: ", bytes);
  return std::get<ParseFailure>(parsed);
}

// A native line with more members, and the same as the body of either OpenAI line.
std::string native(const std::string& members) { return "{\"prompt\":\"p\"," + members + "}"; }
std::string chat(const std::string& members, const std::string& messages = R"([{"role":"user","content":"hi"}])") {
  return R"({"custom_id":"c-1","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":)" +
         messages + (members.empty() ? "" : "," + members) + "}}";
}
std::string completion(const std::string& members) {
  return R"({"custom_id":"c-1","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"p")" +
         (members.empty() ? "" : "," + members) + "}}";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string messages_of(const InputRequest& request) { return std::get<ChatMessages>(request.prompt).messages_json; }
using Tokens = std::vector<TokenId>;

}  // namespace

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

TEST_CASE(
    "every numeric field: its borders are accepted, one step beyond is an error that names field, range and value") {
  struct Case {
    std::string field;
    std::vector<std::string> good, bad;
  };
  const Case cases[] = {
      {"max_tokens",
       {"1", "2147483647", "16.0"},
       {"0", "-1", "2147483648", "9223372036854775808", "1.5", "\"5\"", "true", "[1]"}},
      {"max_completion_tokens", {"1", "2147483647"}, {"0", "-1", "2147483648", "1.5", "\"5\""}},
      {"min_tokens", {"0", "2147483647"}, {"-1", "2147483648", "0.5", "\"0\""}},
      {"temperature", {"0", "100", "0.7", "1e-300"}, {"-1", "-0.001", "100.001", "\"1\"", "false", "{}"}},
      {"top_p", {"1", "0.001"}, {"0", "-0.5", "1.001", "1e-300", "\"1\""}},
      {"top_k", {"-1", "0", "1", "2147483647"}, {"-2", "2147483648", "1.5", "\"1\""}},
      {"min_p", {"0", "1"}, {"-0.001", "1.001", "\"0\""}},
      {"repetition_penalty", {"0.001", "1", "100"}, {"0", "-1", "100.5", "1e-300", "\"1\""}},
      {"presence_penalty", {"-2", "2"}, {"-2.001", "2.001", "\"0\""}},
      {"frequency_penalty", {"-2", "2"}, {"-2.001", "2.001", "\"0\""}},
      {"seed", {"0", "1", "18446744073709551615", "9223372036854775808"}, {"-1", "1.5", "\"5\"", "true"}},
      {"arrival_ms", {"0", "1.5", "1e12"}, {"-1", "1.1e12", "\"0\""}},
      {"logprobs", {"true", "false", "0", "20"}, {"-1", "21", "1.5", "\"1\""}},
      {"ignore_eos", {"true", "false"}, {"0", "1", "\"true\""}},
      {"include_stop_str_in_output", {"true", "false"}, {"0", "\"true\""}},
      {"skip_special_tokens", {"true", "false"}, {"0", "\"true\""}},
      {"return_token_ids", {"true", "false"}, {"0", "\"true\""}},
      {"stop", {"\"x\"", "[]", "[\"x\",\"\\n\"]"}, {"\"\"", "[\"\"]", "[1]", "1", "{}"}},
      {"stop_token_ids", {"[]", "[0,31999]"}, {"[32000]", "[-1]", "[\"1\"]", "5"}},
      {"logit_bias",
       {"{}", R"({"0":-100,"31999":100})"},
       {"[]", R"({"32000":1})", R"({"x":1})", R"({"1":101})", R"({"1":"1"})", R"({"1":1,"01":1})", R"({"-1":1})",
        R"({"":1})", R"({"1 ":1})"}},
      {"model", {"\"m\"", "\"\""}, {"1", "[]"}},
  };
  for (const Case& c : cases) {
    for (const std::string& value : c.good)
      (void)accepted(native("\"" + c.field + "\":" + value), {}, {.vocab_size = 32000});
    (void)accepted(native("\"" + c.field + "\":null"));
    for (const std::string& value : c.bad) {
      const std::string line = native("\"" + c.field + "\":" + value);
      CAPTURE(line);
      const ParseFailure failure = refused(line, {}, {.vocab_size = 32000});
      CHECK(failure.error.code == "invalid_value");
      CHECK(failure.error.param->substr(0, c.field.size()) == c.field);
      CHECK(contains(failure.error.message, c.field));
      CHECK(failure.error.byte_offset == static_cast<int64_t>(line.find(value)));
    }
  }
}

TEST_CASE("the message says what was expected and what was there, shortened") {
  CHECK(refused(native("\"max_tokens\":1.5")).error.message ==
        "max_tokens must be an integer from 1 to 2147483647; got 1.5");
  CHECK(refused(native("\"top_p\":0")).error.message == "top_p must be a number above 0 to 1; got 0");
  CHECK(refused(native("\"seed\":\"" + std::string(100000, 'x') + "\"")).error.message.size() < 200);
  CHECK(refused(native("\"max_tokens\":18446744073709551616")).error.param == "max_tokens");
  CHECK(refused(native("\"temperature\":1e999")).error.param == "temperature");
  CHECK(refused(native("\"temperature\":NaN")).error.code == "invalid_json");
}

TEST_CASE("values arrive in the request") {
  const InputRequest r = accepted(native(
      R"("id":"a","max_tokens":7,"min_tokens":2,"temperature":0.5,"top_p":0.25,"top_k":-1,"min_p":0.125,"repetition_penalty":1.5,
         "presence_penalty":-1,"frequency_penalty":2,"seed":18446744073709551615,"stop":["x","y"],"stop_token_ids":[4,3],
         "ignore_eos":true,"logprobs":3,"logit_bias":{"9":1.5,"2":-100},"include_stop_str_in_output":true,
         "skip_special_tokens":false,"return_token_ids":true,"arrival_ms":12.5,"model":"m")"));
  CHECK(r.id_json == "\"a\"");
  CHECK(r.model_name == "m");
  CHECK(r.arrival_ms == 12.5);
  CHECK(r.line.index == 3);
  CHECK(r.line.content_hash == 0xABCD);
  const SamplingParams& s = r.params.sampling;
  CHECK(s.temperature == 0.5f);
  CHECK(s.top_p == 0.25f);
  CHECK(s.top_k == 0);
  CHECK(s.min_p == 0.125f);
  CHECK(s.repetition_penalty == 1.5f);
  CHECK(s.presence_penalty == -1.0f);
  CHECK(s.frequency_penalty == 2.0f);
  CHECK(s.seed == UINT64_MAX);
  CHECK(s.num_logprobs == 3);
  CHECK(s.logit_bias == std::vector<std::pair<TokenId, float>>{{2, -100.0f}, {9, 1.5f}});
  CHECK(r.params.stop.max_tokens == 7);
  CHECK(r.params.stop.min_tokens == 2);
  CHECK(r.params.stop.stop == std::vector<std::string>{"x", "y"});
  CHECK(r.params.stop.stop_token_ids == Tokens{4, 3});
  CHECK(r.params.stop.ignore_eos);
  CHECK(r.params.stop.include_stop_str_in_output);
  CHECK(!r.params.output.skip_special_tokens);
  CHECK(r.params.output.return_token_ids);
}

TEST_CASE("defaults hold where a line is silent or says null, and only there") {
  GenerationParams defaults;
  defaults.sampling.temperature = 0.3f;
  defaults.sampling.num_logprobs = 2;
  defaults.stop.max_tokens = 50;
  defaults.stop.min_tokens = 10;
  defaults.stop.stop = {"END"};
  const InputRequest silent = accepted(native("\"temperature\":null"), defaults);
  CHECK(silent.params.sampling.temperature == 0.3f);
  CHECK(silent.params.sampling.num_logprobs == 2);
  CHECK(silent.params.stop.max_tokens == 50);
  CHECK(silent.params.stop.stop == std::vector<std::string>{"END"});
  const InputRequest loud = accepted(native(R"("temperature":0,"logprobs":false,"max_tokens":5,"stop":[])"), defaults);
  CHECK(loud.params.sampling.temperature == 0.0f);
  CHECK(!loud.params.sampling.num_logprobs);
  CHECK(loud.params.stop.max_tokens == 5);
  CHECK(loud.params.stop.min_tokens == 5);
  CHECK(loud.params.stop.stop.empty());
  CHECK(refused(native("\"min_tokens\":51"), defaults).error.param == "min_tokens");
}

TEST_CASE("max_tokens: both names agree or it is an error; OpenAI's defaults where nobody says") {
  CHECK(accepted(native(R"("max_tokens":5,"max_completion_tokens":5)")).params.stop.max_tokens == 5);
  CHECK(refused(native(R"("max_tokens":5,"max_completion_tokens":6)")).error.param == "max_completion_tokens");
  CHECK(!accepted(native("\"n\":1")).params.stop.max_tokens);
  CHECK(!accepted(chat("")).params.stop.max_tokens);
  CHECK(accepted(completion("")).params.stop.max_tokens == 16);
  GenerationParams defaults;
  defaults.stop.max_tokens = 50;
  CHECK(accepted(completion(""), defaults).params.stop.max_tokens == 50);
  CHECK(accepted(chat(""), defaults).params.stop.max_tokens == 50);
}

TEST_CASE("logprobs in each form") {
  const auto wanted = [](const std::string& line) { return accepted(line).params.sampling.num_logprobs; };
  CHECK(wanted(native("\"logprobs\":true")) == 0);
  CHECK(wanted(native("\"logprobs\":true,\"top_logprobs\":4")) == 4);
  CHECK(wanted(native("\"top_logprobs\":4")) == 4);
  CHECK(wanted(native("\"logprobs\":5")) == 5);
  CHECK(wanted(chat("\"logprobs\":true")) == 0);
  CHECK(wanted(chat("\"logprobs\":true,\"top_logprobs\":20")) == 20);
  CHECK(!wanted(chat("\"logprobs\":false,\"top_logprobs\":0")));
  CHECK(!wanted(chat("\"top_logprobs\":0")));
  CHECK(wanted(completion("\"logprobs\":0")) == 0);
  CHECK(wanted(completion("\"logprobs\":5")) == 5);
  for (const std::string& line :
       {native("\"logprobs\":false,\"top_logprobs\":1"), native("\"logprobs\":1,\"top_logprobs\":1"),
        chat("\"logprobs\":1"), chat("\"top_logprobs\":1"), chat("\"logprobs\":true,\"top_logprobs\":21"),
        completion("\"logprobs\":true"), completion("\"logprobs\":1,\"top_logprobs\":1"),
        completion("\"logprobs\":21")})
    CHECK(refused(line).error.code == "invalid_value");
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
  const Completion record = to_completion(refused(chat("\"n\":2")));
  CHECK(record.finish_reason == FinishReason::kError);
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

TEST_CASE("fields that ask for nothing are accepted, those that ask for what is not built are named") {
  for (const char* member : {R"("user":"u")",
                             R"("metadata":{"a":{"max_tokens":0}})",
                             R"("store":true)",
                             R"("stream":false)",
                             R"("service_tier":"auto")",
                             R"("n":1)",
                             R"("n":null)",
                             R"("best_of":1)",
                             R"("echo":false)",
                             R"("suffix":null)",
                             R"("tools":[])",
                             R"("tool_choice":"none")",
                             R"("tool_choice":"auto")",
                             R"("parallel_tool_calls":true)",
                             R"("response_format":{"type":"text"})",
                             R"("stream_options":null)",
                             R"("prediction":null)",
                             R"("modalities":["text"])",
                             R"("add_generation_prompt":true)",
                             R"("length_penalty":1.0)",
                             R"("guided_json":null)",
                             R"("priority":0)"}) {
    CAPTURE(member);
    (void)accepted(native(member));
    (void)accepted(chat(member));
    (void)accepted(completion(member));
  }
  for (const char* member : {R"("stream":true)",
                             R"("n":2)",
                             R"("n":0)",
                             R"("n":"1")",
                             R"("best_of":2)",
                             R"("echo":true)",
                             R"("suffix":"x")",
                             R"("functions":[{}])",
                             R"("response_format":{"type":"json_object"})",
                             R"("response_format":{"type":"text","x":1})",
                             R"("response_format":{})",
                             R"("stream_options":{})",
                             R"("modalities":["text","audio"])",
                             R"("audio":{})",
                             R"("guided_json":{})",
                             R"("structured_outputs":{})",
                             R"("prompt_logprobs":0)",
                             R"("use_beam_search":true)",
                             R"("chat_template":"{{x}}")",
                             R"("lora":"a")",
                             R"("adapter":"a")"}) {
    CAPTURE(member);
    for (const std::string& line : {native(member), chat(member), completion(member)}) {
      const ParseFailure failure = refused(line);
      CHECK(failure.error.code == "unsupported_field");
      CHECK("\"" + *failure.error.param + "\"" == std::string(member).substr(0, std::strchr(member, ':') - member));
      CHECK(failure.error.byte_offset == static_cast<int64_t>(line.find(member) + failure.error.param->size() + 3));
    }
  }
}

TEST_CASE("the user's own fields of a native line are ignored, near misses of known ones are not") {
  (void)accepted(native(
      R"("answer":"x","topic":1,"passages":[1],"score":2,"step":3,"label":null,"mode":1,"prompt_id":"x","N":1,"text":"t","category":[[]])"));
  struct Case {
    const char *name, *meant;
  };
  for (const Case& c : {Case{"max_token", "max_tokens"},
                        {"maxTokens", "max_tokens"},
                        {"max-tokens", "max_tokens"},
                        {"temprature", "temperature"},
                        {"Temperature", "temperature"},
                        {"temperatuer", "temperature"},
                        {"top-p", "top_p"},
                        {"topk", "top_k"},
                        {"prompts", "prompt"},
                        {"message", "messages"},
                        {"max_new_tokens", "max_tokens"},
                        {"stop_sequences", "stop"},
                        {"logprob", "logprobs"},
                        {"customId", "custom_id"},
                        {"frequency_penality", "frequency_penalty"}}) {
    CAPTURE(c.name);
    const ParseFailure failure = refused(native("\"" + std::string(c.name) + "\":1"));
    CHECK(failure.error.code == "unknown_field");
    CHECK(failure.error.param == c.name);
    CHECK(contains(failure.error.message, "did you mean " + std::string(c.meant) + "?"));
  }
}

TEST_CASE("near misses are found again on later lines, ordinary fields once") {
  RequestParser parser({}, {});
  InputLine line;
  for (int i = 0; i < 3; ++i) {
    line.bytes = native("\"topic\":1,\"max_token\":5");
    CHECK(std::holds_alternative<ParseFailure>(parser.parse(line)));
    line.bytes = native("\"topic\":1");
    CHECK(std::holds_alternative<InputRequest>(parser.parse(line)));
  }
}

TEST_CASE("no known field is a near miss of another") {
  for (const char* name : {"top_p", "top_k", "min_p", "max_tokens", "min_tokens", "prompt", "messages"})
    CHECK(find_field(name) != nullptr);
  for (const char* word : {"", "i", "id2", "need", "shop", "models", "methods", "urls", "seeds", "total_tokens",
                           "input", "output", "question"})
    CHECK(!near_miss(word));
}

TEST_CASE("a control field given twice is an error at its second value, another's own field is not") {
  const std::string line = R"({"prompt":"p","temperature":1,"x":1,"x":2,"temperature":1})";
  const ParseFailure failure = refused(line);
  CHECK(failure.error.code == "duplicate_field");
  CHECK(failure.error.param == "temperature");
  CHECK(failure.error.byte_offset == static_cast<int64_t>(line.rfind('1')));
  (void)accepted(R"({"prompt":"p","x":1,"x":2})");
}

TEST_CASE("what is no JSON object is an error with the byte at fault") {
  CHECK(refused("not json").error.byte_offset == 0);
  CHECK(refused("{\"prompt\":\"a\xFF\"}").error.byte_offset == 12);
  CHECK(refused(R"({"prompt":"\udc00"})").error.byte_offset == 11);
  CHECK(refused(std::string("{\"prompt\":\"a\0\"}", 15)).error.byte_offset == 12);
  CHECK(refused("{\"prompt\":\"a\"").error.code == "invalid_json");
  for (const char* line : {"[1]", "\"prompt\"", "5", "null", "true"})
    CHECK(refused(line).error.code == "invalid_request");
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

TEST_CASE("stop strings are limited in number") {
  CHECK(accepted(native(R"("stop":["a","b"])"), {}, {.max_stop_strings = 2}).params.stop.stop.size() == 2);
  CHECK(refused(native(R"("stop":["a","b","c"])"), {}, {.max_stop_strings = 2}).error.param == "stop");
}

// Any bytes give a request or a record that is itself valid JSON.
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

}  // namespace llmb
