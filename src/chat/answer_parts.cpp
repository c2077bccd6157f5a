#include "chat/answer_parts.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "chat/harmony.h"
#include "chat/reasoning.h"
#include "chat/tool_calls.h"
#include "chat/white_space.h"

namespace llmb {

namespace {

std::string stripped(const std::string& text, std::string_view front, std::string_view back) {
  const size_t begin = std::min(text.find_first_not_of(front), text.size());
  const size_t last = back.empty() ? text.size() : text.find_last_not_of(back) + 1;
  return begin < last ? text.substr(begin, last - begin) : std::string();
}

// The bytes [begin, end) without what is hidden.
std::string shown(const MarkedText& answer, size_t begin, size_t end) {
  std::string text;
  for (const auto& [first, last] : answer.hidden) {
    if (last <= begin || first >= end) continue;
    if (first > begin) text.append(answer.text, begin, first - begin);
    begin = std::max(begin, last);
  }
  if (begin < end) text.append(answer.text, begin, end - begin);
  return text;
}

bool is_call(const HarmonyMessage& message, const std::string& text, const AnswerSplit& split) {
  size_t end = 0;
  const std::string_view body = std::string_view(text).substr(message.begin, message.end - message.begin);
  return split.formats.calls == ToolCallFormat::kHarmony && !message.function.empty() &&
         !read_json_object(body, 0, &end).empty() && body.find_first_not_of(kWhiteSpace, end) == body.npos;
}

bool is_analysis(const HarmonyMessage& message, const AnswerSplit& split) {
  return message.channel == "analysis" && split.formats.reasoning == ReasoningFormat::kHarmony;
}

std::optional<AnswerParts> split_harmony(const MarkedText& answer, const AnswerSplit& split) {
  const std::vector<HarmonyMessage> messages = read_harmony(answer.text);
  const bool has_parts = std::any_of(messages.begin(), messages.end(), [](const auto& m) { return !m.channel.empty(); });
  if (!has_parts) return std::nullopt;
  AnswerParts parts;
  for (const HarmonyMessage& message : messages) {
    const std::string text = stripped(shown(answer, message.begin, message.end), kWhiteSpace, kWhiteSpace);
    if (is_call(message, answer.text, split)) {
      parts.calls.push_back({message.function, text});
      continue;
    }
    std::string& part = is_analysis(message, split) ? parts.reasoning : parts.content;
    parts.has_reasoning = parts.has_reasoning || is_analysis(message, split);
    part += (part.empty() || text.empty() ? "" : "\n") + text;
  }
  return parts;
}

}  // namespace

size_t reasoning_end(const std::string& text, const AnswerSplit& split) {
  if (split.formats.reasoning != ReasoningFormat::kHarmony) {
    const auto span = find_reasoning(text, split);
    return span ? span->rest : 0;
  }
  size_t end = 0;
  for (const HarmonyMessage& message : read_harmony(text))
    if (is_analysis(message, split)) end = message.end;
  return end;
}

std::optional<AnswerParts> split_answer(const MarkedText& answer, const AnswerSplit& split) {
  if (split.formats.calls == ToolCallFormat::kHarmony || split.formats.reasoning == ReasoningFormat::kHarmony)
    return split_harmony(answer, split);
  AnswerParts parts;
  size_t at = 0;
  if (const auto span = find_reasoning(answer.text, split)) {
    parts.has_reasoning = true;
    parts.reasoning = stripped(shown(answer, span->begin, span->end), kWhiteSpace, kWhiteSpace);
    at = span->rest;
  }
  const size_t rest = at;
  for (CallSpan& span : find_calls(std::string_view(answer.text).substr(rest), split)) {
    parts.content += shown(answer, at, rest + span.begin);
    std::move(span.calls.begin(), span.calls.end(), std::back_inserter(parts.calls));
    at = rest + span.end;
  }
  if (!parts.has_reasoning && parts.calls.empty()) return std::nullopt;
  parts.content += shown(answer, at, answer.text.size());
  const bool has_calls = !parts.calls.empty();
  parts.has_short_call_ids = has_calls && split.formats.calls == ToolCallFormat::kMistral;
  parts.content = stripped(parts.content, has_calls ? kWhiteSpace : "\r\n", has_calls ? kWhiteSpace : "");
  return parts;
}

}  // namespace llmb
