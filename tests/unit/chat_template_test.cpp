// Chat templates as the engine uses them: files, conversations, what is refused. The language itself is in
// jinja_language_test.cpp.
#include "chat/chat_template.h"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"

namespace llmb {

namespace fs = std::filesystem;

namespace {

ChatTemplate& tmpl(const std::string& source, std::map<std::string, std::string> tokens = {}) {
  static std::vector<std::unique_ptr<ChatTemplate>> kept;
  auto parsed = ChatTemplate::parse(source, std::move(tokens));
  REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
  kept.push_back(std::move(parsed).value());
  return *kept.back();
}

constexpr const char* kHi = R"([{"role": "user", "content": "hi"}])";

std::string text(const ChatTemplate& t, ChatMessages input) {
  const auto out = t.render(input);
  REQUIRE_MESSAGE(out.ok(), out.status().message());
  return *out;
}

Status error(const ChatTemplate& t, ChatMessages input) {
  const auto out = t.render(input);
  REQUIRE_MESSAGE(!out.ok(), *out);
  return out.status();
}

struct File {
  std::string name, content;
};

// A model directory with the given files, removed at the end.
class ModelDir {
 public:
  explicit ModelDir(std::initializer_list<File> files) {
    for (const File& file : files) {
      const fs::path path = fs::path(dir_.path()) / file.name;
      fs::create_directories(path.parent_path());
      std::ofstream(path, std::ios::binary) << file.content;
    }
  }
  const std::string& path() const { return dir_.path(); }
  Result<std::unique_ptr<ChatTemplate>> load() const { return ChatTemplate::load(dir_.path()); }
  std::string render(const ChatMessages& input) const {
    auto t = load();
    REQUIRE_MESSAGE(t.ok(), t.status().message());
    return text(**t, input);
  }

 private:
  test::TempDir dir_;
};

}  // namespace

// ---- what a template sees -----------------------------------------------------------------------

TEST_CASE("messages, tools, documents, flags, special tokens and chat_template_kwargs are variables") {
  const auto& t = tmpl(
      "{{ bos_token }}{{ messages[0].content }}|{{ tools }}|{{ documents }}|{{ add_generation_prompt }}|{{ mode }}",
      {{"bos_token", "<s>"}});
  CHECK(text(t, {.messages_json = kHi, .add_generation_prompt = true}) == "<s>hi|None|None|True|");
  CHECK(text(t, {.messages_json = kHi,
                 .tools_json = R"([{"a": 1.0}])",
                 .template_kwargs_json = R"({"mode": [true, null], "documents": []})",
                 .add_generation_prompt = false}) ==
        "<s>hi|[{'a': 1.0}]|[]|False|[True, None]");
  CHECK(text(t, {.messages_json = kHi,
                 .tools_json = "[]",
                 .template_kwargs_json = R"({"bos_token": "B", "add_generation_prompt": false})",
                 .add_generation_prompt = true}) == "Bhi|[]|None|False|");
}

TEST_CASE("null fields of a message are not there, and reasoning is known under each of its names") {
  const auto& t = tmpl("{% for m in messages %}{{ m }};{% endfor %}");
  CHECK(text(t, {R"([{"role": "assistant", "content": null, "tool_calls": [{"x": null}]}])"}) ==
        "{'role': 'assistant', 'tool_calls': [{'x': None}]};");
  CHECK(text(t, {R"([{"role": "a", "reasoning": "r"}])"}) ==
        "{'thinking': 'r', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r'};");
  CHECK(text(t, {R"([{"thinking": "t", "reasoning_content": null, "reasoning": "r"}])"}) ==
        "{'thinking': 't', 'reasoning': 'r', 'reasoning_content': 't'};");
}

TEST_CASE("text of a message is never a template") {
  const auto& t = tmpl("{{ messages[0].content }}{{ extra }}");
  const std::string content = "{{ 7 * 7 }}{% for x in y %}{# #}{{ raise_exception('x') }}";
  nlohmann::json messages = nlohmann::json::array({{{"content", content}}});
  CHECK(text(t, {messages.dump(), "", nlohmann::json{{"extra", content}}.dump()}) == content + content);
  for (const char* key : {"chat_template", "messages", "conversation", "tokenize"}) {
    const Status s = error(t, {kHi, "", nlohmann::json{{key, content}}.dump()});
    CHECK(s.code() == StatusCode::kInvalidArgument);
    CHECK(s.message().find(key) != std::string::npos);
  }
}

TEST_CASE("raise_exception's message is the error's message") {
  const Status s = error(tmpl("{{ raise_exception('roles must alternate') }}"), {kHi});
  CHECK(s.code() == StatusCode::kInvalidArgument);
  CHECK(s.message() == "roles must alternate");
}

TEST_CASE("input that is not what it should be is refused by name") {
  const auto& t = tmpl("x");
  const auto message = [&](ChatMessages input) { return error(t, std::move(input)).message(); };
  CHECK(message({"[]"}) == "messages must not be empty");
  CHECK(message({"{}"}) == "messages must be a JSON array");
  CHECK(message({"[1]"}) == "each message must be a JSON object");
  CHECK(message({"[{]"}).find("messages: invalid JSON") == 0);
  CHECK(message({kHi, "{}"}) == "tools must be a JSON array");
  CHECK(message({kHi, "", "[]"}) == "chat_template_kwargs must be a JSON object");
  CHECK(message({"[" + std::string(100'000, '[')}).find("nested too deeply") != std::string::npos);
}

TEST_CASE("an integer beyond 64 bits keeps its digits") {
  CHECK(text(tmpl("{{ messages[0].n }}"), {R"([{"n": 9223372036854775808}])"}) == "9223372036854775808");
}

// ---- continue_final_message ---------------------------------------------------------------------

TEST_CASE("continue_final_message ends the prompt inside the last message") {
  const std::string plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
  const std::string trimmed = "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}</>{% endfor %}";
  const auto input = [](const std::string& content) {
    nlohmann::json messages = {{{"role", "u"}, {"content", "q"}}, {{"role", "a"}, {"content", content}}};
    return ChatMessages{
        .messages_json = messages.dump(), .add_generation_prompt = false, .continue_final_message = true};
  };
  CHECK(text(tmpl(plain), input("I am")) == "<u>q</><a>I am");
  CHECK(text(tmpl(plain), input("I am ")) == "<u>q</><a>I am ");
  CHECK(text(tmpl(plain), input("")) == "<u>q</><a>");
  CHECK(text(tmpl(trimmed), input(" I am \n")) == "<u>q</><a>I am");
  CHECK(text(tmpl("{{ messages[0].content[1].text }}!"),
             {.messages_json = R"([{"content": [{"text": "first"}, {"text": "second"}, {"type": "image"}]}])",
              .add_generation_prompt = false,
              .continue_final_message = true}) ==
        "second");
}

TEST_CASE("continue_final_message is refused where there is nothing to continue") {
  const auto message = [&](const std::string& source, const std::string& messages, bool generate = false) {
    return error(tmpl(source), {.messages_json = messages,
                                .add_generation_prompt = generate,
                                .continue_final_message = true}).message();
  };
  CHECK(message("{{ messages[0].content }}", kHi, true).find("cannot be combined") != std::string::npos);
  CHECK(message("{{ messages[0].content }}", R"([{"role": "a"}])").find("no content") != std::string::npos);
  CHECK(message("{{ messages[0].content }}", R"([{"content": 5}])").find("not text") != std::string::npos);
  CHECK(message("{{ messages[0].content }}", R"([{"content": [{"type": "image"}]}])").find("no text") !=
        std::string::npos);
  CHECK(message("no use of it", kHi).find("does not use") != std::string::npos);
  CHECK(message("{{ messages[0].content|upper }}", kHi).find("does not print") != std::string::npos);
}

// ---- files --------------------------------------------------------------------------------------

TEST_CASE("a template comes from chat_template.jinja before tokenizer_config.json") {
  const std::string config =
      R"({"chat_template": "config {{ bos_token }}", "bos_token": {"content": "<b>"}, "unk_token": null})";
  CHECK(ModelDir({{"tokenizer_config.json", config}}).render({kHi}) == "config <b>");
  CHECK(ModelDir({{"tokenizer_config.json", config},
                  {"chat_template.jinja", "file {{ bos_token }}{{ unk_token is defined }}\n"}})
            .render({kHi}) == "file <b>False");
  CHECK(ModelDir({{"chat_template.jinja", "alone"}}).render({kHi}) == "alone");
}

TEST_CASE("a template that the user names takes the place of the model's, with the model's special tokens") {
  const ModelDir model({{"tokenizer_config.json", R"({"chat_template": "own", "bos_token": "<s>"})"},
                        {"other.jinja", "{{ bos_token }}other"},
                        {"broken.jinja", "{% if %}"}});
  const auto other = ChatTemplate::load(model.path(), model.path() + "/other.jinja");
  REQUIRE(other.ok());
  CHECK(text(**other, {kHi, "[]"}) == "<s>other");
  CHECK(ChatTemplate::load(model.path(), model.path() + "/none.jinja").status().code() == StatusCode::kNotFound);
  const Status broken = ChatTemplate::load(model.path(), model.path() + "/broken.jinja").status();
  CHECK(broken.message().find("broken.jinja: chat template") != std::string::npos);
}

TEST_CASE("of a list of templates, requests with tools get tool_use") {
  const ModelDir both({{"tokenizer_config.json", R"({"chat_template": [
      {"name": "default", "template": "plain"}, {"name": "rag", "template": "{% not read %}"},
      {"name": "tool_use", "template": "with {{ tools|length }}"}]})"}});
  CHECK(both.render({kHi}) == "plain");
  CHECK(both.render({kHi, "[]"}) == "with 0");
  CHECK(both.render({kHi, "[{}]"}) == "with 1");
  const ModelDir files({{"chat_template.jinja", "plain"}, {"additional_chat_templates/tool_use.jinja", "tools"}});
  CHECK(files.render({kHi, "[{}]"}) == "tools");
  const ModelDir only({{"tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"}]})"}});
  CHECK(only.render({kHi, "[{}]"}) == "t");
  const auto loaded = only.load();
  CHECK(error(**loaded, {kHi}).message().find("tools only") != std::string::npos);
}

TEST_CASE("special tokens come from tokenizer_config.json, and from special_tokens_map.json of older models") {
  const std::string show = "{{ eos_token }}{{ image_token }}{{ bos_token }}";
  const std::string map = R"({"eos_token": {"content": "</map>"}, "bos_token": "<map>"})";
  CHECK(ModelDir(
            {{"chat_template.jinja", show},
             {"special_tokens_map.json", map},
             {"tokenizer_config.json", R"({"eos_token": "</c>", "image_token": "<i>", "added_tokens_decoder": {}})"}})
            .render({kHi}) == "</c><i>");
  CHECK(
      ModelDir({{"chat_template.jinja", show},
                {"special_tokens_map.json", map},
                {"tokenizer_config.json", R"({"eos_token": "</c>", "extra_special_tokens": {"image_token": "<x>"}})"}})
          .render({kHi}) == "</map><x><map>");
}

TEST_CASE("a model without a template, or with a broken one, says so") {
  CHECK(ModelDir({}).load().status().code() == StatusCode::kNotFound);
  CHECK(ModelDir({{"tokenizer_config.json", R"({"chat_template": null})"}}).load().status().code() ==
        StatusCode::kNotFound);
  CHECK(ModelDir({{"tokenizer_config.json", "[]"}}).load().status().code() == StatusCode::kDataLoss);
  CHECK(ModelDir({{"tokenizer_config.json", "{"}}).load().status().code() == StatusCode::kDataLoss);
  for (const char* odd : {"5", "{}", "[5]", R"([{"name": "default"}])", R"([{"name": 1, "template": "x"}])"}) {
    CHECK(
        ModelDir({{"tokenizer_config.json", std::string("{\"chat_template\": ") + odd + "}"}}).load().status().code() ==
        StatusCode::kDataLoss);
  }
  const Status broken = ModelDir({{"chat_template.jinja", "\n\n{% if %}"}}).load().status();
  CHECK(broken.code() == StatusCode::kInvalidArgument);
  CHECK(broken.message().find("line 3") != std::string::npos);
  CHECK_FALSE(ModelDir({{"chat_template.jinja", "a\xff"}}).load().ok());
  CHECK_FALSE(ModelDir({{"chat_template.jinja", std::string(300'000, 'x')}}).load().ok());
}

// ---- threads ------------------------------------------------------------------------------------

TEST_CASE("one template renders in many threads at once") {
  const auto& t = tmpl(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.n %}{{ 'text' ~ m.n }}{% endfor "
      "%}={{ ns.n }}");
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&, k] {
      const std::string messages = "[{\"n\": " + std::to_string(k) + "}, {\"n\": 10}]";
      const std::string expected = "text" + std::to_string(k) + "text10=" + std::to_string(k + 10);
      for (int i = 0; i < 200; ++i) {
        const auto out = t.render({messages});
        good += out.ok() && *out == expected;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(good == 800);
}

}  // namespace llmb
