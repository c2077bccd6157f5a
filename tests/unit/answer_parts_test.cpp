// Answers as published models write them, taken apart.
#include "chat/answer_parts.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "chat/answer_formats.h"
#include "chat/reasoning.h"
#include "tests/support/skip.h"
#include "tests/support/source_dir.h"

namespace llmb {
namespace {

using Calls = std::vector<ToolCall>;

AnswerSplit split_as(ToolCallFormat calls, ReasoningFormat reasoning = ReasoningFormat::kNone, bool starts = false) {
  return {{calls, reasoning}, starts, {"get_weather", "add"}};
}

std::optional<AnswerParts> parts_of(const std::string& text, const AnswerSplit& split) {
  return split_answer({text, {}}, split);
}

// REQUIRES: the answer has parts.
AnswerParts must_split(const std::string& text, const AnswerSplit& split) {
  const auto parts = parts_of(text, split);
  REQUIRE_MESSAGE(parts.has_value(), text);
  return *parts;
}

constexpr auto kHermes = ToolCallFormat::kHermes;
constexpr auto kLlama3 = ToolCallFormat::kLlama3Json;
constexpr auto kMistral = ToolCallFormat::kMistral;
constexpr auto kGemma4 = ToolCallFormat::kGemma4;
constexpr auto kHarmony = ToolCallFormat::kHarmony;

}  // namespace

TEST_CASE("hermes: calls with and without text around them, several, in any layout") {
  const AnswerSplit split = split_as(kHermes);
  AnswerParts parts = must_split(
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": [1, 2]}}\n</tool_call>", split);
  CHECK(parts == AnswerParts{"", false, "", {{"get_weather", "{\"city\": \"Zürich\", \"days\": [1, 2]}"}}});
  parts = must_split(
      "Let me look.\n<tool_call>{\"arguments\":{},\"name\":\"a\"}</tool_call>\n<tool_call>\n{\"name\":\"b\"}\n</tool_call>\nDone.",
      split);
  CHECK(parts.content == "Let me look.Done.");
  CHECK(parts.calls == Calls{{"a", "{}"}, {"b", "{}"}});
  // The last closing tag may lack; arguments may stand in a string.
  parts = must_split("<tool_call>\n{\"name\": \"a\", \"arguments\": \"{\\\"x\\\": 1}\"}\n", split);
  CHECK(parts.calls == Calls{{"a", "{\"x\": 1}"}});
}

TEST_CASE("hermes: what is no call stays text") {
  const AnswerSplit split = split_as(kHermes);
  for (const char* text :
       {"", "plain", "<tool_call>", "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": ", "<tool_call>{}</tool_call>",
        "<tool_call>{\"name\": 5}</tool_call>", "<tool_call>{\"name\": \"a\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"a\", \"name\": \"b\"}</tool_call>", "<tool_call>{\"name\": \"a\"} and more",
        "<tool_call>{\"name\": \"a\", \"arguments\": \"no object\"}</tool_call>", "{\"name\": \"a\", \"arguments\": {}}"}) {
    CAPTURE(text);
    CHECK(!parts_of(text, split).has_value());
  }
  const AnswerParts parts = must_split("<tool_call>oh</tool_call><tool_call>{\"name\":\"a\"}</tool_call>", split);
  CHECK(parts.content == "<tool_call>oh</tool_call>");
  CHECK(parts.calls == Calls{{"a", "{}"}});
}

TEST_CASE("llama3_json: the whole answer is calls of known tools, or text") {
  const AnswerSplit split = split_as(kLlama3);
  CHECK(must_split("{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Bern\"}}", split).calls ==
        Calls{{"get_weather", "{\"city\": \"Bern\"}"}});
  CHECK(must_split("<|python_tag|>{\"name\": \"add\", \"parameters\": {\"a\": 1}}; {\"name\": \"add\", \"parameters\": {}}",
                   split)
            .calls == Calls{{"add", "{\"a\": 1}"}, {"add", "{}"}});
  for (const char* text : {"{\"name\": \"Bob\", \"parameters\": {}}", "{\"name\": \"add\", \"parameters\": {}} ok",
                           "Call {\"name\": \"add\", \"parameters\": {}}", "<|python_tag|>brave_search.call(query=\"x\")", "[]"})
    CHECK(!parts_of(text, split).has_value());
}

TEST_CASE("mistral: a list of calls, or names and arguments") {
  const AnswerSplit split = split_as(kMistral);
  CHECK(must_split("[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}, {\"name\": \"b\"}]", split)
            .calls == Calls{{"add", "{\"a\": 1}"}, {"b", "{}"}});
  const AnswerParts parts = must_split("I look.[TOOL_CALLS]add[ARGS]{\"a\": 1}[TOOL_CALLS]b[CALL_ID]x1[ARGS]{}", split);
  CHECK(parts.content == "I look.");
  CHECK(parts.calls == Calls{{"add", "{\"a\": 1}"}, {"b", "{}"}});
  CHECK(parts.has_short_call_ids);
  CHECK(must_split("[TOOL_CALLS] add{\"a\": 1}", split).calls == Calls{{"add", "{\"a\": 1}"}});
  for (const char* text : {"[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS][{\"name\": \"a\"}", "[TOOL_CALLS]add[ARGS]{\"a\"",
                           "[TOOL_CALLS]what is this {}", "[TOOL_CALLS]{}"})
    CHECK(!parts_of(text, split).has_value());
}

TEST_CASE("gemma4: arguments in its own notation become JSON") {
  const AnswerSplit split = split_as(kGemma4);
  CHECK(must_split("<|tool_call>call:f{city:<|\"|>New \"York\"\n<|\"|>,n:-1.5,on:true,none:null,list:[1,<|\"|>a,b<|\"|>],o:{<|\"|>k "
                   "k<|\"|>:{}}}<tool_call|><|tool_call>call:g{}<tool_call|>",
                   split)
            .calls ==
        Calls{{"f", "{\"city\": \"New \\\"York\\\"\\n\", \"n\": -1.5, \"on\": true, \"none\": null, \"list\": [1, \"a,b\"], "
                    "\"o\": {\"k k\": {}}}"},
              {"g", "{}"}});
  for (const char* text : {"<|tool_call>call:f{a:}<tool_call|>", "<|tool_call>call:f{a:<|\"|>x}<tool_call|>",
                           "<|tool_call>call:f{a:b}<tool_call|>", "<|tool_call>call:{}<tool_call|>",
                           "<|tool_call>call:f{a:1,}<tool_call|>", "<|tool_call>call:f{a:1"})
    CHECK_MESSAGE(!parts_of(text, split).has_value(), text);
}

TEST_CASE("functiongemma: the same notation between other tags") {
  CHECK(must_split("<start_function_call>call:f{a:<escape>x, <|\"|> y<escape>,b:[1]}<end_function_call>",
                   split_as(ToolCallFormat::kFunctionGemma))
            .calls == Calls{{"f", "{\"a\": \"x, <|\\\"|> y\", \"b\": [1]}"}});
  CHECK(call_format_of_template("{{ '<start_function_call>call:' + f }}") == ToolCallFormat::kFunctionGemma);
}

TEST_CASE("harmony: tags within arguments are text") {
  const std::string arguments = R"({"a": "<|end|> and <|call|>"})";
  const auto parts = must_split("<|channel|>commentary to=functions.f <|constrain|>json<|message|>" + arguments + "<|call|>",
                                split_as(kHarmony));
  CHECK(parts.calls == Calls{{"f", arguments}});
}

TEST_CASE("harmony: channels are reasoning, calls and content") {
  const AnswerSplit split = split_as(kHarmony, ReasoningFormat::kHarmony);
  AnswerParts parts = must_split(
      "<|channel|>analysis<|message|>We must call.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
      "<|constrain|>json<|message|>{\"a\": 1}<|call|>",
      split);
  CHECK(parts == AnswerParts{"", true, "We must call.", {{"add", "{\"a\": 1}"}}});
  parts = must_split("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Four.", split);
  CHECK(parts == AnswerParts{"Four.", true, "Hm.", {}});
  parts = must_split(" to=functions.add<|channel|>commentary json<|message|>{}<|call|>", split);
  CHECK(parts.calls == Calls{{"add", "{}"}});
  parts = must_split("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>", split);
  CHECK(parts == AnswerParts{"I look.", false, "", {}});
  parts = must_split("<|channel|>commentary to=functions.add<|message|>no JSON<|call|>", split);
  CHECK(parts == AnswerParts{"no JSON", false, "", {}});
  parts = must_split("<|channel|>analysis<|message|>cut in the mid", split);
  CHECK(parts == AnswerParts{"", true, "cut in the mid", {}});
  CHECK(!parts_of("plain", split).has_value());
  CHECK(!parts_of("", split).has_value());
  // Without tools a call is content.
  parts = must_split("<|channel|>commentary to=functions.add<|message|>{}<|call|>",
                     split_as(ToolCallFormat::kNone, ReasoningFormat::kHarmony));
  CHECK(parts.content == "{}");
}

TEST_CASE("reasoning: tags in the answer, opened by the prompt, cut, absent") {
  const auto qwen = split_as(kHermes, ReasoningFormat::kQwen3);
  const auto opened = split_as(kHermes, ReasoningFormat::kQwen3, true);
  const auto r1 = split_as(ToolCallFormat::kNone, ReasoningFormat::kDeepSeekR1);
  CHECK(must_split("<think>\nSo 2 + 2.\n</think>\n\nFour. ", qwen) == AnswerParts{"Four. ", true, "So 2 + 2.", {}});
  CHECK(must_split("So.\n</think>\n\nFour.", opened) == AnswerParts{"Four.", true, "So.", {}});
  CHECK(must_split("So <b>", opened) == AnswerParts{"", true, "So <b>", {}});
  CHECK(must_split("<think>\n\n</think>\n\nFour.", qwen) == AnswerParts{"Four.", true, "", {}});
  CHECK(must_split("So.</think>Four.", r1) == AnswerParts{"Four.", true, "So.", {}});
  CHECK(must_split("<think>So.</think>Four.</think>", r1) == AnswerParts{"Four.</think>", true, "So.", {}});
  CHECK(!parts_of("So.</think>Four.", qwen).has_value());
  CHECK(!parts_of("I write <think> here", qwen).has_value());
  CHECK(!parts_of("Four.", r1).has_value());
  // A call that is only thought of is none.
  const AnswerParts parts = must_split(
      "<think>maybe <tool_call>{\"name\":\"a\"}</tool_call></think>\n<tool_call>{\"name\":\"b\"}</tool_call>", qwen);
  CHECK(parts.calls == Calls{{"b", "{}"}});
  CHECK(parts.reasoning == "maybe <tool_call>{\"name\":\"a\"}</tool_call>");
  CHECK(parts.content == "");
  CHECK(must_split("[THINK]So.[/THINK]Four.", split_as(kMistral, ReasoningFormat::kMistral)) ==
        AnswerParts{"Four.", true, "So.", {}});
  CHECK(must_split("<|channel>thought\nSo.\n<channel|>Four.", split_as(kGemma4, ReasoningFormat::kGemma4)) ==
        AnswerParts{"Four.", true, "So.", {}});
}

TEST_CASE("special tokens that are hidden are in no part") {
  const std::string text = "<think>a<s>b</think><s>c<tool_call>{\"name\":\"f\"}</tool_call>d<s>";
  MarkedText answer = {text, {}};
  for (size_t at = text.find("<s>"); at != text.npos; at = text.find("<s>", at + 1)) answer.hidden.push_back({at, at + 3});
  const auto parts = split_answer(answer, split_as(kHermes, ReasoningFormat::kQwen3));
  REQUIRE(parts.has_value());
  CHECK(*parts == AnswerParts{"cd", true, "ab", {{"f", "{}"}}});
}

TEST_CASE("a prompt opens reasoning only where it ends in the tag") {
  CHECK(opens_reasoning("<|im_start|>assistant\n<think>\n", ReasoningFormat::kQwen3));
  CHECK(opens_reasoning("x<think>", ReasoningFormat::kDeepSeekR1));
  CHECK(!opens_reasoning("<think>\n\n</think>\n\n", ReasoningFormat::kQwen3));
  CHECK(!opens_reasoning("<think>", ReasoningFormat::kNone));
  CHECK(!opens_reasoning("", ReasoningFormat::kQwen3));
  CHECK(opens_reasoning("<|channel>thought\n", ReasoningFormat::kGemma4));
  CHECK(!opens_reasoning("<|channel>thought\n<channel|>", ReasoningFormat::kGemma4));
}

TEST_CASE("any bytes can be taken apart") {
  const std::string pieces[] = {"<tool_call>", "</tool_call>", "{\"name\":\"f\"}", "<think>", "</think>", "[TOOL_CALLS]", "[",
                                "]", "f[ARGS]{}", "<|channel|>", "analysis", "<|message|>", "<|end|>", "<|start|>", "{", "}",
                                "<|tool_call>call:f{", "<|\"|>", "a:1", "\n", "\xff", ""};
  uint64_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (int part = 0; part < 8; ++part) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      text += pieces[(state >> 33) % std::size(pieces)];
    }
    for (const auto calls : {kHermes, kLlama3, kMistral, kGemma4, kHarmony})
      for (const auto reasoning : {ReasoningFormat::kNone, ReasoningFormat::kQwen3, ReasoningFormat::kHarmony}) {
        const auto parts = parts_of(text, split_as(calls, reasoning));
        if (!parts) continue;
        REQUIRE((parts->has_reasoning || !parts->calls.empty() || calls == kHarmony || reasoning == ReasoningFormat::kHarmony));
        REQUIRE(parts->content.size() + parts->reasoning.size() <= text.size() + 8);
        for (const ToolCall& call : parts->calls) REQUIRE(call.arguments.front() == '{');
      }
  }
}

TEST_CASE("published templates tell their formats") {
  const std::map<std::string, std::pair<std::string, std::string>> expected = {
      {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", {"hermes", "none"}},
      {"Qwen-Qwen2.5-7B-Instruct", {"hermes", "none"}},
      {"Qwen-Qwen3-0.6B", {"hermes", "qwen3"}},
      {"Qwen-QwQ-32B", {"hermes", "qwen3"}},
      {"Qwen3.5-4B", {"none", "qwen3"}},  // calls in XML
      {"GLM-4.7-Flash", {"none", "qwen3"}},
      {"meta-llama-Llama-3.1-8B-Instruct", {"llama3_json", "none"}},
      {"meta-llama-Llama-3.2-3B-Instruct", {"llama3_json", "none"}},
      {"mistralai-Mistral-Nemo-Instruct-2407", {"mistral", "none"}},
      {"mistralai-Ministral-3-14B-Reasoning-2512", {"mistral", "mistral"}},
      {"google-gemma-4-31B-it", {"gemma4", "gemma4"}},
      {"google-gemma-2-2b-it", {"none", "none"}},
      {"openai-gpt-oss-120b", {"openai", "openai_gptoss"}},
      {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", {"none", "qwen3"}},
      {"microsoft-Phi-3.5-mini-instruct", {"none", "none"}},
      {"ibm-granite-granite-3.3-2B-Instruct", {"none", "none"}}};
  for (const auto& [name, formats] : expected) {
    std::ifstream file(test::source_dir() + "/../shared/data/templates/" + name + ".jinja");
    if (!file) return test::skip("no published templates");
    std::stringstream text;
    text << file.rdbuf();
    CAPTURE(name);
    CHECK(name_of(call_format_of_template(text.str())) == formats.first);
    CHECK(name_of(reasoning_format_of_template(text.str())) == formats.second);
  }
}

TEST_CASE("each format has a name that leads back to it") {
  for (const auto name : call_format_names()) CHECK(name_of(call_format_named(name).value()) == name);
  for (const auto name : reasoning_format_names()) CHECK(name_of(reasoning_format_named(name).value()) == name);
  CHECK(call_format_names().size() == 7);
  CHECK(reasoning_format_names().size() == 6);
  CHECK(!call_format_named("qwen").has_value());
  CHECK(!reasoning_format_named("").has_value());
}

}  // namespace llmb
