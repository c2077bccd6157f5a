#include "chat/harmony.h"

#include <algorithm>

#include "chat/tool_calls.h"

namespace llmb {

namespace {

constexpr std::string_view kMessage = "<|message|>", kChannel = "<|channel|>", kFunction = "to=functions.";

// From `begin` on, to where a word ends.
std::string word_at(std::string_view text, size_t begin) {
  return std::string(text.substr(begin, std::min(text.find_first_of(" \t\r\n<", begin), text.size()) - begin));
}

size_t end_of_message(std::string_view text, size_t begin) {
  size_t end = text.size();
  for (const std::string_view tag : {"<|end|>", "<|call|>", "<|return|>", "<|start|>"})
    end = std::min(end, text.find(tag, begin));
  return end;
}

}  // namespace

std::vector<HarmonyMessage> read_harmony(std::string_view text) {
  std::vector<HarmonyMessage> messages;
  for (size_t at = 0; at < text.size();) {
    const size_t mark = text.find(kMessage, at);
    if (mark == text.npos) {
      // A header without a message, where an answer is cut, is nothing; other text is content.
      const std::string_view rest = text.substr(at);
      if (rest.find("<|") == rest.npos) messages.push_back({"", "", at, text.size()});
      break;
    }
    const std::string_view header = text.substr(at, mark - at);
    HarmonyMessage message;
    if (const size_t channel = header.find(kChannel); channel != header.npos)
      message.channel = word_at(header, channel + kChannel.size());
    if (const size_t function = header.find(kFunction); function != header.npos)
      message.function = word_at(header, function + kFunction.size());
    message.begin = mark + kMessage.size();
    // Tags within a call's arguments are text.
    size_t end = message.begin;
    if (!message.function.empty() && read_json_object(text, message.begin, &end).empty()) end = message.begin;
    message.end = end_of_message(text, end);
    at = message.end;
    messages.push_back(std::move(message));
    // <|start|> begins a header; the other tags end a message.
    if (!text.substr(at).starts_with("<|start|>") && at < text.size()) at = text.find("|>", at) + 2;
  }
  return messages;
}

}  // namespace llmb
