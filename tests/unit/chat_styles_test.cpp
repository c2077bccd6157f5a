// Whole templates in the manner of published ones, against transformers: data/fixtures/chat_templates/styles.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "chat/chat_template.h"
#include "tests/support/golden.h"
#include "tests/support/process.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

TEST_CASE("every conversation gives transformers' text, or an error where transformers raises one") {
  const std::string dir = source_dir() + "/data/fixtures/chat_templates/styles/";
  const auto inputs = nlohmann::ordered_json::parse(read_file(dir + "inputs.json"));
  std::map<std::string, std::unique_ptr<ChatTemplate>> templates;
  int num_texts = 0, num_errors = 0;
  for (const auto& golden : read_json_lines(dir + "golden.jsonl")) {
    const auto name = golden["template"].get<std::string>();
    CAPTURE(name);
    auto& tmpl = templates[name];
    if (tmpl == nullptr) {
      auto parsed = ChatTemplate::parse(read_file(dir + name), {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
      REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
      tmpl = std::move(*parsed);
    }
    const auto& tools = inputs["tools"][golden["tools"].get<size_t>()];
    ChatMessages chat;
    chat.messages_json = inputs["conversations"][golden["conversation"].get<size_t>()].dump();
    chat.tools_json = tools.is_null() ? "" : tools.dump();
    chat.template_kwargs_json = inputs["kwargs"][golden["kwargs"].get<size_t>()].dump();
    chat.add_generation_prompt = golden["add_generation_prompt"];
    chat.continue_final_message = golden["continue_final_message"];
    CAPTURE(chat.messages_json);
    const auto text = tmpl->render(chat);
    if (golden.contains("text")) {
      ++num_texts;
      REQUIRE_MESSAGE(text.ok(), text.status().message());
      CHECK(*text == golden["text"].get<std::string>());
    } else {
      ++num_errors;
      CHECK(text.status().code() == StatusCode::kInvalidArgument);
    }
  }
  CHECK(templates.size() >= 6);
  CHECK(num_texts >= 150);
  CHECK(num_errors >= 10);
}

}  // namespace llmb::test
