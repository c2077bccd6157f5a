// Calls that an answer must be: the frames of each format, and the grammars made of them.
#include "chat/forced_calls.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "chat/answer_parts.h"
#include "grammar/call_forms.h"

namespace llmb {
namespace {

const std::string kTools = R"([
  {"type":"function","function":{"name":"add","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"integer"}},
    "required":["a"],"additionalProperties":false}}},
  {"type":"function","function":{"name":"tree","parameters":{"type":"object","properties":{"left":{"$ref":"#"}},
    "additionalProperties":false}}},
  {"type":"function","function":{"name":"now"}},
  {"type":"web_search"}])";

ChatMessages chat(ToolChoice choice, const std::string& name = "") {
  ChatMessages messages;
  messages.tools_json = kTools;
  messages.tool_choice = choice;
  messages.tool_name = name;
  return messages;
}

AnswerForm form_of(const ChatMessages& messages, ToolCallFormat format, bool is_special = false) {
  auto form = forced_call_form(messages, format, [=](const std::string&) { return is_special; });
  REQUIRE_MESSAGE(form.ok(), form.status().message());
  return *form;
}

// Bytes as tokens, a special token for each tag, and one that ends the answer.
const std::vector<std::string> kSpecial = {"[TOOL_CALLS]", "[ARGS]",        "<|channel|>",  "<|constrain|>",
                                           "<|message|>",  "<|tool_call>", "<tool_call|>", "<|\"|>"};
constexpr TokenId kEnd = 256, kFirstSpecial = 257;

std::shared_ptr<const TokenConstraint> constraint_of(const AnswerForm& form) {
  std::vector<grammar::CallShape> calls;
  for (const CallFrame& call : form.calls) calls.push_back({call.before, call.schema, call.after, call.is_strict});
  auto rules = grammar::call_rules(calls, form.text, form.has_several_calls, form.quote);
  REQUIRE_MESSAGE(rules.ok(), rules.status().message());
  const auto bytes_of = [](TokenId token) {
    if (token < kEnd) return std::string(1, static_cast<char>(token));
    return token == kEnd ? std::string() : kSpecialMark + kSpecial[token - kFirstSpecial];
  };
  const auto vocabulary = std::make_shared<const grammar::Vocabulary>(
      static_cast<int32_t>(kFirstSpecial + kSpecial.size()), bytes_of, std::vector<TokenId>{kEnd});
  auto constraint = grammar::make_constraint(std::move(*rules), vocabulary);
  REQUIRE_MESSAGE(constraint.ok(), constraint.status().message());
  return *constraint;
}

bool may_be(ConstraintState& state, TokenId token) { return (state.allowed()[token / 32] >> token % 32 & 1u) != 0; }

// "@i" in the text is special token i.
bool accepts(const TokenConstraint& constraint, const std::string& text) {
  const auto state = constraint.start();
  for (size_t i = 0; i < text.size(); ++i) {
    const TokenId token = text[i] == '@' ? kFirstSpecial + (text[++i] - '0') : static_cast<unsigned char>(text[i]);
    if (!may_be(*state, token)) return false;
    state->advance(token);
  }
  return may_be(*state, kEnd);
}

}  // namespace

TEST_CASE("names of tools are those of functions") {
  CHECK(tool_names(kTools) == std::vector<std::string>{"add", "tree", "now"});
  CHECK(tool_names("").empty());
  CHECK(tool_names("{}").empty());
  CHECK(tool_names("[1,{},{\"function\":{}},{\"function\":{\"name\":5}}]").empty());
}

TEST_CASE("hermes: one call or several, each of its tool's parameters") {
  const auto any = constraint_of(form_of(chat(ToolChoice::kRequired), ToolCallFormat::kHermes));
  const std::string add = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  CHECK(accepts(*any, add));
  CHECK(accepts(*any, add + "\n" + add));
  CHECK(!accepts(*any, add + add));
  CHECK(!accepts(*any, ""));
  CHECK(accepts(*any, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"));
  CHECK(!accepts(*any, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}\n</tool_call>"));
  CHECK(!accepts(*any, "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>"));
  // A reference to the schema itself stays one to the tool's own.
  CHECK(accepts(*any, "<tool_call>\n{\"name\": \"tree\", \"arguments\": {\"left\": {\"left\": {}}}}\n</tool_call>"));
  CHECK(!accepts(*any, "<tool_call>\n{\"name\": \"tree\", \"arguments\": {\"left\": {\"a\": 1}}}\n</tool_call>"));
  ChatMessages one = chat(ToolChoice::kRequired);
  one.has_one_call = true;
  CHECK(!accepts(*constraint_of(form_of(one, ToolCallFormat::kHermes)), add + "\n" + add));
  const auto named = constraint_of(form_of(chat(ToolChoice::kNamed, "add"), ToolCallFormat::kHermes));
  CHECK(accepts(*named, add));
  CHECK(!accepts(*named, add + "\n" + add));
  CHECK(!accepts(*named, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"));
}

TEST_CASE("tags that are special tokens are those tokens, and no text") {
  const auto named = constraint_of(form_of(chat(ToolChoice::kNamed, "add"), ToolCallFormat::kMistral, true));
  CHECK(accepts(*named, "@0add@1{\"a\": 1}"));
  CHECK(!accepts(*named, "[TOOL_CALLS]add@1{\"a\": 1}"));
  const auto any = constraint_of(form_of(chat(ToolChoice::kRequired), ToolCallFormat::kMistral, true));
  CHECK(accepts(*any, "@0add@1{\"a\": 1}@0now@1{}"));
  const auto plain = constraint_of(form_of(chat(ToolChoice::kRequired), ToolCallFormat::kMistral));
  CHECK(accepts(*plain, "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}}]"));
  CHECK(!accepts(*plain, "@0[{\"name\": \"add\", \"arguments\": {\"a\": 1}}]"));
  const auto harmony = constraint_of(form_of(chat(ToolChoice::kRequired), ToolCallFormat::kHarmony, true));
  CHECK(accepts(*harmony, "@2commentary to=functions.now @3json@4{}"));
  CHECK(!accepts(*harmony, "@2commentary to=functions.fly @3json@4{}"));
  const auto llama = constraint_of(form_of(chat(ToolChoice::kRequired), ToolCallFormat::kLlama3Json));
  CHECK(accepts(*llama, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}"));
}

TEST_CASE("Gemma's models: arguments in their own notation, its quotes as text or as tokens") {
  ChatMessages messages = chat(ToolChoice::kRequired);
  messages.tools_json = R"([{"function":{"name":"say","parameters":{"type":"object","properties":{
    "text":{"type":"string"},"loud mark":{"const":true},"a:b":{"enum":["{","x<|\"|>y",null,-2.5]},
    "list":{"type":"array","items":{"type":"object","additionalProperties":{"type":"string","maxLength":2}}}},
    "required":["text"],"additionalProperties":false}}}])";
  const auto text = constraint_of(form_of(messages, ToolCallFormat::kGemma4));
  const std::string quote = "<|\"|>", call = "<|tool_call>call:say{text:", end = "}<tool_call|>";
  CHECK(accepts(*text, call + quote + quote + end));
  CHECK(accepts(*text, call + quote + "two\nlines, \"quotes\", <|\" and é" + quote + end));
  CHECK(accepts(*text, call + quote + "<|\"|" + quote + end));
  CHECK(!accepts(*text, call + quote + quote + quote + end));
  CHECK(!accepts(*text, call + "\"a\"" + end));
  CHECK(!accepts(*text, call + " " + quote + quote + end));
  CHECK(!accepts(*text, "<|tool_call>call:say{}<tool_call|>"));
  CHECK(accepts(*text, call + quote + "a" + quote + ",loud mark:true," + quote + "a:b" + quote + ":" + quote + "{" + quote + end));
  CHECK(accepts(*text, call + quote + quote + "," + quote + "a:b" + quote + ":null" + end));
  CHECK(!accepts(*text, call + quote + quote + ",a:b:null" + end));
  CHECK(!accepts(*text, call + quote + quote + "," + quote + "a:b" + quote + ":" + quote + "x" + quote + "y" + quote + end));
  const std::string list = call + quote + quote + ",list:[{},{k:" + quote + "ab" + quote + "," + quote + quote + ":" + quote + "é" + quote + "}]";
  CHECK(accepts(*text, list + end));
  CHECK(!accepts(*text, call + quote + quote + ",list:[{k:" + quote + "abc" + quote + "}]" + end));
  CHECK(!accepts(*text, call + quote + quote + ",list:[{" + quote + "k" + quote + ":" + quote + "a" + quote + "}]" + end));
  const std::string one = call + quote + quote + end;
  CHECK(accepts(*text, one + one));
  AnswerSplit split;
  split.formats.calls = ToolCallFormat::kGemma4;
  const auto parts = split_answer({list + end, {}}, split);
  REQUIRE((parts && parts->calls.size() == 1));
  CHECK(parts->calls[0] == ToolCall{"say", R"({"text": "", "list": [{}, {"k": "ab", "": "é"}]})"});

  const auto tokens = constraint_of(form_of(messages, ToolCallFormat::kGemma4, true));
  CHECK(accepts(*tokens, "@5call:say{text:@7a<b@7}@6"));
  CHECK(!accepts(*tokens, one));
  CHECK(!accepts(*tokens, "@5call:say{text:@7" + quote + "@7}@6"));  // its readers see text
  const auto other = constraint_of(form_of(messages, ToolCallFormat::kFunctionGemma));
  CHECK(accepts(*other, "<start_function_call>call:say{text:<escape>" + quote + "<escape>}<end_function_call>"));
  CHECK(!accepts(*other, "<start_function_call>call:say{text:<escape><escape><escape>}<end_function_call>"));
}

TEST_CASE("a tool whose name its readers would take apart is refused by name") {
  const auto status = [](const std::string& name, ToolCallFormat format) {
    ChatMessages messages = chat(ToolChoice::kRequired);
    messages.tools_json = R"([{"function":{"name":")" + name + "\"}}]";
    return forced_call_form(messages, format, [](const std::string& text) { return text == "[ARGS]"; }).status();
  };
  for (const auto format : {ToolCallFormat::kHermes, ToolCallFormat::kLlama3Json, ToolCallFormat::kMistral,
                            ToolCallFormat::kGemma4, ToolCallFormat::kFunctionGemma, ToolCallFormat::kHarmony})
    CHECK(status("get_the-weather2", format).ok());
  for (const auto format : {ToolCallFormat::kMistral, ToolCallFormat::kGemma4, ToolCallFormat::kHarmony}) {
    CHECK(status("two words", format).code() == StatusCode::kUnsupported);
    CHECK(status("two words", format).message().find("two words") != std::string::npos);
  }
  CHECK(status("two words", ToolCallFormat::kHermes).ok());
}

TEST_CASE("formats that cannot be asked for, and schemas that cannot be enforced, are refused") {
  const auto refused = [](ToolCallFormat format) {
    return forced_call_form(chat(ToolChoice::kRequired), format, [](const std::string&) { return false; }).status();
  };
  CHECK(refused(ToolCallFormat::kNone).code() == StatusCode::kUnsupported);
  using grammar::CallShape;
  const auto status = [](std::vector<CallShape> calls) { return grammar::call_rules(calls, "", false).status(); };
  const Status unsupported = status({{"", "{}", ""}, {"", R"({"properties":{"x":{"unevaluatedItems":false}}})", ""}});
  CHECK(unsupported.code() == StatusCode::kUnsupported);
  CHECK(unsupported.message().find("function 1") != std::string::npos);
  CHECK(unsupported.message().find("#/properties/x") != std::string::npos);
  CHECK(!status({}).ok());
  CHECK(!status({{"", R"({"type":"object","properties":{"a":{}}})", "", true}}).ok());  // strict, and not closed
  CHECK(!status({{"", "{", ""}}).ok());
}

}  // namespace llmb
