// Renders conversations with a chat template, one JSON result line for each input line.
//   render_chat [--lines] TEMPLATE_FILE_OR_MODEL_DIR [NAME=TOKEN …] < cases.jsonl > out.jsonl
// An input line: {"messages": […], "tools": […], "kwargs": {…}, "add_generation_prompt": true,
// "continue_final_message": false, "template": "…"}; "template" overrides the one on the command line. With --lines the
// input lines are those of llm-batch, and what comes out are the prompts that it would tokenise.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "chat/chat_template.h"
#include "io/request_parser.h"

namespace {

using llmb::ChatTemplate;
using nlohmann::ordered_json;

llmb::Result<std::unique_ptr<ChatTemplate>> open_template(const std::string& path,
                                                          const std::map<std::string, std::string>& tokens) {
  if (std::filesystem::is_directory(path)) return ChatTemplate::load(path);
  std::ifstream in(path, std::ios::binary);
  if (!in) return llmb::not_found(path + ": cannot be read");
  return ChatTemplate::parse(std::string(std::istreambuf_iterator<char>(in), {}), tokens);
}

ordered_json render(const ChatTemplate& tmpl, const ordered_json& line) {
  llmb::ChatMessages input;
  input.messages_json = line.at("messages").dump();
  if (line.contains("tools") && !line["tools"].is_null()) input.tools_json = line["tools"].dump();
  if (line.contains("kwargs")) input.template_kwargs_json = line["kwargs"].dump();
  input.add_generation_prompt = line.value("add_generation_prompt", false);
  input.continue_final_message = line.value("continue_final_message", false);
  const auto text = tmpl.render(input);
  if (!text.ok()) return {{"error", text.status().message()}};
  return {{"text", *text}};
}

// A line of llm-batch.
ordered_json render_line(const ChatTemplate& tmpl, llmb::RequestParser& parser, const std::string& text) {
  llmb::InputLine line;
  line.bytes = text;
  line.has_newline = true;
  const auto parsed = parser.parse(line);
  if (const auto* failure = std::get_if<llmb::ParseFailure>(&parsed)) return {{"error", failure->error.message}};
  const auto* chat = std::get_if<llmb::ChatMessages>(&std::get<llmb::InputRequest>(parsed).prompt);
  if (chat == nullptr) return {{"error", "not a line with messages"}};
  const auto prompt = tmpl.render(*chat, llmb::TextParts::kJoined);
  if (!prompt.ok()) return {{"error", prompt.status().message()}};
  return {{"text", *prompt}};
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> tokens;
  const bool are_lines = argc > 1 && argv[1] == std::string("--lines");
  if (are_lines) --argc, ++argv;
  llmb::RequestParser parser({}, {});
  for (int i = 2; i < argc; ++i) {
    const std::string pair = argv[i];
    tokens[pair.substr(0, pair.find('='))] = pair.substr(pair.find('=') + 1);
  }
  std::unique_ptr<ChatTemplate> standard;
  if (argc > 1 && argv[1] != std::string("-")) {
    auto opened = open_template(argv[1], tokens);
    if (!opened.ok()) {
      std::cerr << "render_chat: " << opened.status().message() << "\n";
      return 4;
    }
    standard = std::move(opened).value();
  }
  for (std::string text; std::getline(std::cin, text);) {
    if (are_lines && standard != nullptr) {
      std::cout << render_line(*standard, parser, text).dump() << "\n";
      continue;
    }
    const ordered_json line = ordered_json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("messages")) {
      std::cout << ordered_json{{"error", "not a JSON object with messages"}}.dump() << "\n";
      continue;
    }
    ordered_json out;
    if (line.contains("template")) {
      const auto own = ChatTemplate::parse(line["template"].get<std::string>(), tokens);
      out = own.ok() ? render(**own, line) : ordered_json{{"error", own.status().message()}};
    } else if (standard != nullptr) {
      out = render(*standard, line);
    } else {
      out = {{"error", "no template"}};
    }
    std::cout << out.dump() << "\n";
  }
}
