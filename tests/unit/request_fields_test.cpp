// The fields of a line: their names, ranges and defaults. FAULTS rows 14 and 20.
#include "io/request_fields.h"

#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "io/request_parser.h"
#include "tests/unit/parsed_line.h"

namespace llmb::test {

namespace {

// A line with more members, in each form.
using LineOf = std::function<std::string(const std::string&)>;
const LineOf kLines[] = {[](const std::string& members) { return native(members); },
                         [](const std::string& members) { return chat(members); },
                         [](const std::string& members) { return completion(members); }};

}  // namespace

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
      {"n", {"1", "256", "2.0"}, {"0", "-1", "257", "1.5", "\"1\"", "true", "[1]"}},
      {"best_of", {"1", "256"}, {"0", "257", "1.5", "\"2\""}},
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

TEST_CASE("n and best_of: in every form of line, over flags; best_of below n, or above it and greedy, is refused") {
  for (const LineOf& line : kLines) {
    const SamplingParams given = accepted(line(R"("n":3,"best_of":5)")).params.sampling;
    CHECK(given.n == 3);
    CHECK(given.best_of == 5);
    CHECK(accepted(line(R"("n":3,"best_of":3,"temperature":0)")).params.sampling.best_of == 3);
    for (const char* members : {R"("best_of":2,"n":3)", R"("n":2,"best_of":3,"temperature":0)"}) {
      const ParseFailure failure = refused(line(members));
      CHECK(failure.error.code == "invalid_value");
      CHECK(failure.error.param == "best_of");
      CHECK(contains(failure.error.message, "n 3") != contains(failure.error.message, "n 2"));
    }
  }
  GenerationParams flags;
  flags.sampling.n = 2;
  flags.sampling.best_of = 4;
  const auto best_of = [&](const char* members) { return accepted(native(members), flags).params.sampling.best_of; };
  CHECK(best_of(R"("id":1)") == 4);
  CHECK(best_of(R"("n":3)") == 4);
  CHECK(best_of(R"("n":5)") == 5);
  CHECK(best_of(R"("best_of":2)") == 2);
  CHECK(best_of(R"("temperature":0)") == 4);
  CHECK(refused(native(R"("best_of":1)"), flags).error.param == "best_of");
}

TEST_CASE("beams: width is n unless it is given; what means nothing to them, and what needs them, is refused by name") {
  for (const LineOf& line : kLines) {
    const SamplingParams plain = accepted(line(R"("use_beam_search":true,"n":3,"seed":1)")).params.sampling;
    REQUIRE(plain.beams);
    CHECK(plain.n == 3);
    CHECK(plain.beams->width == 3);
    CHECK(plain.beams->length_penalty == 1);
    CHECK(plain.beams->early_stopping == EarlyStopping::kFalse);
    const SamplingParams all = accepted(line(R"("use_beam_search":true,"beam_width":256,"length_penalty":-0.5,)"
                                             R"("early_stopping":"never","temperature":1,"top_p":1,"top_k":-1)"))
                                   .params.sampling;
    CHECK(all.n == 1);
    CHECK(all.beams->width == 256);
    CHECK(all.beams->length_penalty == -0.5f);
    CHECK(all.beams->early_stopping == EarlyStopping::kNever);
    CHECK(accepted(line(R"("use_beam_search":true,"early_stopping":true)")).params.sampling.beams->early_stopping ==
          EarlyStopping::kTrue);
    CHECK(!accepted(line(R"("use_beam_search":false,"beam_width":1,"early_stopping":false)")).params.sampling.beams);
    for (const char* member :
         {R"("beam_width":2)", R"("length_penalty":0.5)", R"("early_stopping":true)", R"("early_stopping":"never")"})
      CHECK(contains(refused(line(member)).error.message, "needs use_beam_search"));
    for (const char* member :
         {R"("temperature":0.7)", R"("top_p":0.9)", R"("top_k":5)", R"("min_p":0.1)", R"("best_of":4)",
          R"("repetition_penalty":1.1)", R"("presence_penalty":1)", R"("frequency_penalty":1)",
          R"("logit_bias":{"5":1})", R"("stop":"x")", R"("n":5)", R"("beam_width":0)", R"("beam_width":257)",
          R"("length_penalty":11)", R"("early_stopping":"yes")", R"("early_stopping":1)"}) {
      CAPTURE(member);
      const bool has_width = contains(member, "beam_width");
      const ParseFailure failure =
          refused(line(std::string(R"("use_beam_search":true,)") + (has_width ? "" : R"("beam_width":4,)") + member));
      CHECK(failure.error.code == "invalid_value");
      CHECK("\"" + *failure.error.param + "\"" == std::string(member).substr(0, std::strchr(member, ':') - member));
    }
  }
  CHECK(refused(native(R"("use_beam_search":true,"logprobs":1)")).error.param == "logprobs");
  CHECK(refused(native(R"("use_beam_search":true,"beam_width":30)"), {}, {.vocab_size = 29}).error.param ==
        "beam_width");
  GenerationParams flags;
  flags.sampling.temperature = 0.7f;
  flags.sampling.top_k = 40;
  flags.sampling.best_of = 7;
  const SamplingParams sampling = accepted(native(R"("use_beam_search":true,"beam_width":4)"), flags).params.sampling;
  CHECK(sampling.temperature == 0);
  CHECK(sampling.top_k == 0);
  CHECK(!sampling.best_of);
  flags.sampling.repetition_penalty = 1.1f;
  CHECK(refused(native(R"("use_beam_search":true)"), flags).error.param == "repetition_penalty");
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
  for (const char* member :
       {R"("stream":true)", R"("suffix":"x")", R"("functions":[{}])",
        R"("stream_options":{})", R"("modalities":["text","audio"])", R"("audio":{})",
        R"("guided_whitespace_pattern":" ")", R"("structural_tag":{})", R"("chat_template":"{{x}}")", R"("lora":"a")"}) {
    CAPTURE(member);
    for (const std::string& line : {native(member), chat(member), completion(member)}) {
      const ParseFailure failure = refused(line);
      CHECK(failure.error.code == "unsupported_field");
      CHECK("\"" + *failure.error.param + "\"" == std::string(member).substr(0, std::strchr(member, ':') - member));
      CHECK(failure.error.byte_offset == static_cast<int64_t>(line.find(member) + failure.error.param->size() + 3));
    }
  }
}

TEST_CASE("echo is for prompts; beside logprobs it asks for those of the prompt") {
  CHECK(accepted(native(R"("echo":true)")).params.output.echo);
  CHECK(accepted(completion(R"("echo":true)")).params.output.echo);
  CHECK(refused(chat(R"("echo":true)")).error.param == "echo");
  const auto scored = accepted(completion(R"("echo":true,"logprobs":1)")).params;
  CHECK((scored.score.prompt_logprobs == 1 && scored.score.hides_details));
  const auto shown = accepted(completion(R"("echo":true,"logprobs":1,"prompt_logprobs":1)")).params;
  CHECK((shown.score.prompt_logprobs == 1 && !shown.score.hides_details));
  CHECK(refused(completion(R"("echo":true,"logprobs":1,"prompt_logprobs":2)")).error.param == "prompt_logprobs");
  const auto unanswered = accepted(completion(R"("echo":true,"max_tokens":0)")).params;
  CHECK((unanswered.output.hides_answer && unanswered.stop.max_tokens == 1));
  CHECK(refused(completion(R"("max_tokens":0)")).error.param == "max_tokens");
  CHECK(refused(completion(R"("echo":1)")).error.param == "echo");
}

TEST_CASE("what other tools call a form is never ignored") {
  for (const char* name : {"regex", "ebnf", "grammar", "json_schema", "jsonSchema", "response_schema", "guided_decoding"}) {
    CAPTURE(name);
    for (const std::string& line : {native("\"" + std::string(name) + "\":\"x\""), chat("\"" + std::string(name) + "\":\"x\"")}) {
      const ParseFailure failure = refused(line);
      CHECK(failure.error.code == "unknown_field");
      CHECK(failure.error.param == name);
      CHECK(failure.error.message.find("did you mean") != std::string::npos);
    }
  }
  (void)accepted(native(R"("schema":"CREATE TABLE t","choices":["a","b"],"format":"x","pattern":"y")"));
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

TEST_CASE("stop strings are limited in number") {
  CHECK(accepted(native(R"("stop":["a","b"])"), {}, {.max_stop_strings = 2}).params.stop.stop.size() == 2);
  CHECK(refused(native(R"("stop":["a","b","c"])"), {}, {.max_stop_strings = 2}).error.param == "stop");
}

// Any bytes give a request or a record that is itself valid JSON.

}  // namespace llmb::test
