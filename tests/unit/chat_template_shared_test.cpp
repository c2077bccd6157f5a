// Published chat templates: ../shared/data. tools/golden/compare_chat_templates.py compares them with transformers.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "chat/chat_template.h"
#include "tests/support/skip.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace fs = std::filesystem;

TEST_CASE("the templates beside the repository parse and render a conversation with tools") {
  const fs::path dir = fs::path(source_dir()) / "../shared/data/templates";
  if (!fs::exists(dir)) return skip("no ../shared/data/templates");
  const std::string messages = R"([{"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."},
                                   {"role": "user", "content": "Why?"}])";
  const std::string tools =
      R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type":
      "object", "properties": {"a": {"type": "string", "description": "x"}}}}}])";
  // Variables that a template asks of its caller.
  const std::map<std::string, std::string> kwargs = {
      {"fireworks-ai-llama-3-firefunction-v2.jinja", R"({"functions": "[]", "datetime": "2026-01-01"})"}};
  // Fails where there are none, as it does in transformers.
  const std::string needs_tools = "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja";
  int num_templates = 0;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().extension() != ".jinja") continue;
    const std::string name = entry.path().filename().string();
    const auto own = kwargs.find(name);
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string source(std::istreambuf_iterator<char>(in), {});
    CAPTURE(name);
    const auto t = ChatTemplate::parse(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    REQUIRE_MESSAGE(t.ok(), t.status().message());
    for (const std::string& with : {std::string(), tools}) {
      if (with.empty() && name == needs_tools) continue;
      const auto prompt = (*t)->render({messages, with, own == kwargs.end() ? "" : own->second});
      REQUIRE_MESSAGE(prompt.ok(), prompt.status().message());
      CHECK(prompt->find("Why?") != std::string::npos);
      CHECK(prompt->find("That.") < prompt->find("Why?"));
    }
    ++num_templates;
  }
  CHECK(num_templates >= 12);
}

}  // namespace llmb::test
