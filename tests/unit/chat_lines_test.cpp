// Conversations of input lines: what reaches the chat template, and what is refused. That prompts are those of
// transformers is shown by tools/golden/compare_chat_templates.py.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "chat/chat_template.h"
#include "io/request_parser.h"

namespace llmb::test {

namespace {

std::variant<InputRequest, ParseFailure> parse(const std::string& text) {
  RequestParser parser({}, {});
  InputLine line;
  line.bytes = text;
  line.has_newline = true;
  return parser.parse(line);
}

std::string native(const std::string& messages, const std::string& more = "") {
  return R"({"messages":)" + messages + (more.empty() ? "" : "," + more) + "}";
}
std::string openai(const std::string& messages, const std::string& more = "") {
  return R"({"custom_id":"c","method":"POST","url":"/v1/chat/completions","body":)" + native(messages, more) + "}";
}

ChatMessages chat(const std::string& line) {
  const auto parsed = parse(line);
  if (const auto* failure = std::get_if<ParseFailure>(&parsed)) FAIL(failure->error.message);
  return std::get<ChatMessages>(std::get<InputRequest>(parsed).prompt);
}

RequestError refused(const std::string& line) {
  const auto parsed = parse(line);
  REQUIRE_MESSAGE(std::holds_alternative<ParseFailure>(parsed), line);
  return std::get<ParseFailure>(parsed).error;
}

std::string render(const std::string& source, const std::string& line) {
  const auto tmpl = ChatTemplate::parse(source, {});
  REQUIRE_MESSAGE(tmpl.ok(), tmpl.status().message());
  const auto text = (*tmpl)->render(chat(line), TextParts::kJoined);
  return text.ok() ? *text : "error: " + text.status().message();
}

constexpr const char* kHi = R"([{"role":"user","content":"hi"}])";
constexpr const char* kTools = R"([{"type":"function","function":{"name":"f","parameters":{"n":1.0}}}])";

}  // namespace

TEST_CASE("tools reach the template as they are, unless tool_choice says none") {
  for (const auto& line : {&native, &openai}) {
    const std::string tools = std::string(R"("tools":)") + kTools;
    CHECK(chat((*line)(kHi, tools)).tools_json == kTools);
    CHECK(chat((*line)(kHi, tools + R"(,"tool_choice":"auto","parallel_tool_calls":false)")).tools_json == kTools);
    CHECK(chat((*line)(kHi, tools + R"(,"tool_choice":"none")")).tools_json == "");
    for (const char* nothing : {R"("tools":[])", R"("tools":null)", R"("tools":[],"tool_choice":"auto")"})
      CHECK(chat((*line)(kHi, nothing)).tools_json == "");
    CHECK(render("{% for t in tools %}{{ t.function.name }}{{ t.function.parameters }}{% endfor %}",
                 (*line)(kHi, tools)) == "f{'n': 1.0}");
    CHECK(render("{{ tools }}", (*line)(kHi, "")) == "None");
  }
}

TEST_CASE("a line may ask for a call of any tool or of one; what names none of them is refused") {
  const std::string tools = std::string(R"("tools":)") + kTools;
  for (const auto& line : {&native, &openai}) {
    const ChatMessages any = chat((*line)(kHi, tools + R"(,"tool_choice":"required","parallel_tool_calls":false)"));
    CHECK(any.tool_choice == ToolChoice::kRequired);
    CHECK(any.has_one_call);
    CHECK(any.tools_json == kTools);
    const ChatMessages named =
        chat((*line)(kHi, tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})"));
    CHECK(named.tool_choice == ToolChoice::kNamed);
    CHECK(named.tool_name == "f");
    CHECK(!named.has_one_call);
    CHECK(chat((*line)(kHi, tools)).tool_choice == ToolChoice::kAuto);
  }
  for (const char* choice : {R"({"type":"function","function":{"name":"g"}})", R"({"type":"allowed_tools"})", "1", R"("")",
                             R"({"type":"function","function":{}})", R"("any")"}) {
    const RequestError error = refused(openai(kHi, tools + R"(,"tool_choice":)" + choice));
    CHECK(error.param == "tool_choice");
    CHECK(error.byte_offset.has_value());
  }
  CHECK(refused(openai(kHi, R"("tool_choice":"required")")).param == "tool_choice");
  CHECK(refused(openai(kHi, R"("tools":[],"tool_choice":"required")")).param == "tool_choice");
  CHECK(refused(openai(kHi, R"("tools":[{"type":"function"}],"tool_choice":"required")")).param == "tools[0].function");
  CHECK(refused(native(kHi, R"("tools":{"a":1})")).param == "tools");
  CHECK(refused(native(kHi, R"("tools":"f")")).param == "tools");
  CHECK(refused(native(kHi, R"("tools":[{},"f"])")).param == "tools[1]");
}

TEST_CASE("arguments in a string become the object that they are") {
  const auto arguments = [](const std::string& given) {
    const std::string call = R"([{"id":"1","type":"function","function":{"name":"f","arguments":)" + given + "}}]";
    const auto messages = nlohmann::ordered_json::parse(
        chat(openai(R"([{"role":"assistant","content":null,"tool_calls":)" + call + "}]")).messages_json);
    return messages[0]["tool_calls"][0]["function"]["arguments"].dump();
  };
  CHECK(arguments(R"("{\"b\": 1, \"a\": [1.0, null, \"\\n\"]}")") == R"({"b":1,"a":[1.0,null,"\n"]})");
  CHECK(arguments(R"({"b":1})") == R"({"b":1})");
  CHECK(arguments(R"("")") == "{}");
  CHECK(arguments(R"("{}")") == "{}");
  // Arguments that are no object stay as they were.
  for (const char* other : {R"("{")", R"("[1]")", R"("1")", R"("text")", R"("{} x")", "null", "7"})
    CHECK(arguments(other) == other);
  // Only of calls, and also where the function has no roof.
  const std::string plain = R"([{"role":"user","content":"x","arguments":"{}"}])";
  CHECK(chat(native(plain)).messages_json == plain);
  CHECK(chat(native(R"([{"role":"assistant","tool_calls":[{"name":"f","arguments":"{\"a\":1}"}]}])")).messages_json ==
        R"([{"role":"assistant","tool_calls":[{"name":"f","arguments":{"a":1}}]}])");
}

TEST_CASE("integers beyond 64 bits in tools and arguments reach the template digit by digit, and are numbers to it") {
  const std::string big = "123456789012345678901234567890", tools = R"("tools":[{"maximum":)" + big + ",\"minimum\":-" +
                          big + R"(,"limit":9223372036854775808}])";
  for (const auto& line : {&native, &openai}) {
    CHECK(chat((*line)(kHi, tools)).tools_json ==
          "[{\"maximum\":" + big + ",\"minimum\":-" + big + ",\"limit\":9223372036854775808}]");
    CHECK(render("{{ tools | tojson }}", (*line)(kHi, tools)) ==
          "[{\"maximum\": " + big + ", \"minimum\": -" + big + ", \"limit\": 9223372036854775808}]");
    CHECK(render("{{ tools[0].maximum }} {{ tools[0].maximum is number }} {{ tools[0].maximum is string }}",
                 (*line)(kHi, tools)) == big + " True False");
  }
  const std::string in_object = R"({"x":)" + big + "}", in_string = nlohmann::json(in_object).dump();
  for (const std::string& arguments : {in_object, in_string}) {
    const std::string messages = R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" +
                                 arguments + "}}]},{\"role\":\"tool\",\"content\":\"1\"}]";
    CHECK(render("{{ messages[0].tool_calls[0].function.arguments | tojson }}", native(messages)) == "{\"x\": " + big + "}");
  }
  CHECK(chat(native(kHi, R"("chat_template_kwargs":{"n":)" + big + "}")).template_kwargs_json == "{\"n\":" + big + "}");
}

TEST_CASE("an integer beyond 64 bits is no text, no seed and no id") {
  const std::string big = "123456789012345678901234567890";
  for (const char* line : {R"({"prompt":%})", R"({"messages":[{"role":"user","content":%}]})",
                           R"({"messages":[{"role":%,"content":"a"}]})", R"({"prompt":"a","stop":%})",
                           R"({"prompt":"a","seed":%})", R"({"prompt":"a","max_tokens":%})", R"({"prompt":"a","id":%})",
                           R"({"prompt":"a","temperature":%})", R"({"prompt":["a",%]})", R"({"prompt":[%]})"}) {
    CAPTURE(line);
    std::string text = line;
    text.replace(text.find('%'), 1, big);
    const RequestError error = refused(text);
    CHECK(error.message.find("\U0010FFFF") == std::string::npos);
    CHECK((error.code == "invalid_value" || error.code == "unsupported_field"));
  }
}

TEST_CASE("messages of a conversation with tools: what may be absent, what is checked") {
  const std::string call = R"({"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f"}}]})";
  const std::string result = R"({"role":"tool","tool_call_id":"1","content":{"t":20}})";
  CHECK(chat(native("[" + call + "," + result + "]")).messages_json == "[" + call + "," + result + "]");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"([{"role":"assistant"}])", "messages[0].content"},
      {R"([{"role":"assistant","tool_calls":[]}])", "messages[0].content"},
      {R"([{"role":"assistant","tool_calls":null}])", "messages[0].content"},
      {R"([{"role":"assistant","tool_calls":{}}])", "messages[0].content"},
      {R"([{"role":"assistant","tool_calls":"f"}])", "messages[0].tool_calls"},
      {R"([{"role":"assistant","tool_calls":[1]}])", "messages[0].tool_calls[0]"},
      {R"([{"tool_calls":[{}]}])", "messages[0].role"},
      {R"([{"role":"user","content":{"t":20}}])", "messages[0].content"},
      {R"([{"role":"assistant","content":"x","function_call":{"name":"f"}}])", "messages[0].function_call"},
  };
  for (const auto& c : cases) {
    const std::string &messages = c.first, &param = c.second;
    CAPTURE(messages);
    CHECK(refused(native(messages)).param == param);
    CHECK(refused(openai(messages)).param == param);
  }
}

TEST_CASE("text parts reach a template that reads them and are joined for one that does not") {
  const std::string line = native(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
                                      {"role":"assistant","content":"c"}])");
  CHECK(
      chat(line).messages_json ==
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":"c"}])");
  const std::string reads =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text "
      "}}|{% endfor %}"
      "{% endif %}{% endfor %}";
  // The probe of a single part must print the same as the text: here a bar follows.
  CHECK(render(reads, line) == "a\nbc");
  std::string exact = reads;
  exact.erase(exact.find('|'), 1);
  CHECK(render(exact, line) == "abc");
  for (const char* source :
       {"{% for m in messages %}{{ m.content }}{% endfor %}",  // would print the list
        "{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
        "{% for m in messages %}{{ '' + m.content }}{% endfor %}",  // would be an error
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}"}) {
    CAPTURE(source);
    CHECK(render(source, line)
              .starts_with(std::string(source).find("tojson") != std::string::npos ? "\"a\\nb\"" : "a\nb"));
  }
  // A template that refuses the probe's conversation.
  CHECK(render("{% if messages | length < 2 %}{{ raise_exception('short') }}{% endif %}{{ messages[0].content }}",
               line) == "a\nb");
}

TEST_CASE("the end of the prompt: add_generation_prompt and continue_final_message") {
  const std::string source =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% "
      "endif %}";
  const std::string messages = R"([{"role":"user","content":"q"},{"role":"assistant","content":"a b"}])";
  const std::string closed = "<user>q</><assistant>a b</>";
  CHECK(render(source, native(messages)) == closed + "<assistant>");
  CHECK(render(source, openai(messages, R"("add_generation_prompt":true)")) == closed + "<assistant>");
  CHECK(render(source, openai(messages, R"("add_generation_prompt":false)")) == closed);
  CHECK(render(source, native(messages, R"("continue_final_message":false)")) == closed + "<assistant>");
  for (const char* flags :
       {R"("continue_final_message":true)", R"("add_generation_prompt":false,"continue_final_message":true)"})
    CHECK(render(source, openai(messages, flags)) == "<user>q</><assistant>a b");
  CHECK(refused(native(messages, R"("add_generation_prompt":true,"continue_final_message":true)")).param ==
        "continue_final_message");
  CHECK(refused(native(messages, R"("continue_final_message":1)")).param == "continue_final_message");
  CHECK(refused(native(messages, R"("add_generation_prompt":"yes")")).param == "add_generation_prompt");
}

TEST_CASE("reasoning_effort and thinking_token_budget are read, and their ranges checked") {
  CHECK(chat(openai(kHi, R"("reasoning_effort":"low")")).reasoning_effort == "low");
  CHECK(chat(openai(kHi, R"("reasoning_effort":null)")).reasoning_effort == "");
  for (const char* bad : {R"("lots")", "1", R"("")", "true"})
    CHECK(refused(openai(kHi, std::string(R"("reasoning_effort":)") + bad)).param == "reasoning_effort");
  for (const char* bad : {"-2", "1.5", R"("5")", "2147483648"})
    CHECK(refused(openai(kHi, std::string(R"("thinking_token_budget":)") + bad)).param == "thinking_token_budget");
}

TEST_CASE("fields of a conversation need messages, but for values that ask for nothing") {
  for (const char* member : {R"("tools":[{}])", R"("tool_choice":"required")", R"("chat_template_kwargs":{})",
                             R"("reasoning_effort":"low")", R"("thinking_token_budget":5)",
                             R"("add_generation_prompt":false)", R"("continue_final_message":true)"}) {
    const RequestError error = refused(std::string(R"({"prompt":"x",)") + member + "}");
    CHECK(error.code == "invalid_value");
    CHECK(std::string(member).find("\"" + error.param.value_or("") + "\"") == 0);
  }
  CHECK(refused(native(kHi, R"("chat_template_kwargs":[1])")).param == "chat_template_kwargs");
  CHECK(chat(native(kHi, R"("chat_template_kwargs":{"enable_thinking":false})")).template_kwargs_json ==
        R"({"enable_thinking":false})");
}

TEST_CASE("nothing of a line is ever a template") {
  const std::string source = "{{ messages[0].content }}{{ tools }}{{ x }}";
  const std::string evil = "{{ 7 * 7 }}{% for i in range(9) %}x{% endfor %}";
  const std::string quoted = nlohmann::json(evil).dump();
  CHECK(render(source, native(R"([{"role":"user","content":)" + quoted + "}]",
                              R"("chat_template_kwargs":{"x":)" + quoted + "}")) == evil + "None" + evil);
  CHECK(refused(native(kHi, R"("chat_template":)" + quoted)).param == "chat_template");
  CHECK(
      render(source, native(kHi, R"("chat_template_kwargs":{"chat_template":)" + quoted + "}")).starts_with("error: "));
}

}  // namespace llmb::test
