// The bundled model's own template, against what transformers made of the same conversations.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "chat/chat_template.h"
#include "tests/support/source_dir.h"

namespace llmb {

TEST_CASE("the bundled template renders the golden conversations byte for byte") {
  const auto tmpl = ChatTemplate::load(test::source_dir() + "/data/model");
  REQUIRE_MESSAGE(tmpl.ok(), tmpl.status().message());
  std::ifstream in(test::source_dir() + "/data/fixtures/chat-template-bundled.jsonl");
  int num_lines = 0;
  for (std::string line; std::getline(in, line); ++num_lines) {
    const auto golden = nlohmann::ordered_json::parse(line);
    const auto text = (*tmpl)->render({
        .messages_json = golden["messages"].dump(), .add_generation_prompt = golden["add_generation_prompt"].get<bool>()});
    REQUIRE_MESSAGE(text.ok(), text.status().message());
    CHECK(*text == golden["text"].get<std::string>());
  }
  CHECK(num_lines >= 30);
}

TEST_CASE("the bundled template refuses a role it does not know, by name") {
  const auto tmpl = ChatTemplate::load(test::source_dir() + "/data/model");
  REQUIRE(tmpl.ok());
  const auto text = (*tmpl)->render({R"([{"role": "tool", "content": "x"}])"});
  CHECK_FALSE(text.ok());
  CHECK(text.status().message() == "unknown role: tool");
}

}  // namespace llmb
