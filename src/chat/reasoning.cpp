#include "chat/reasoning.h"

#include <algorithm>

#include "chat/white_space.h"

namespace llmb {

namespace {

std::string_view without_space_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);
}

}  // namespace

ReasoningTags reasoning_tags(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::kQwen3:
    case ReasoningFormat::kDeepSeekR1:
      return {"<think>", "</think>"};
    case ReasoningFormat::kMistral:
      return {"[THINK]", "[/THINK]"};
    case ReasoningFormat::kGemma4:
      return {"<|channel>thought\n", "<channel|>"};
    case ReasoningFormat::kHarmony:
      return {"<|channel|>analysis<|message|>", "<|end|>"};
    case ReasoningFormat::kNone:
      break;
  }
  return {};
}

std::optional<ReasoningSpan> find_reasoning(std::string_view text, const AnswerSplit& split) {
  const ReasoningTags tags = reasoning_tags(split.formats.reasoning);
  if (tags.begin.empty() || split.formats.reasoning == ReasoningFormat::kHarmony) return std::nullopt;
  ReasoningSpan span;
  const size_t first = std::min(text.find_first_not_of(kWhiteSpace), text.size());
  const bool is_open = text.substr(first).starts_with(tags.begin);
  if (is_open) span.begin = first + tags.begin.size();
  const size_t end = text.find(tags.end, span.begin);
  const bool may_lack = split.formats.reasoning == ReasoningFormat::kDeepSeekR1 && end != text.npos;
  if (!is_open && !split.starts_in_reasoning && !may_lack) return std::nullopt;
  span.end = std::min(end, text.size());
  span.rest = end == text.npos ? text.size() : end + tags.end.size();
  return span;
}

bool opens_reasoning(std::string_view prompt, ReasoningFormat format) {
  const std::string_view begin = without_space_behind(reasoning_tags(format).begin);
  return !begin.empty() && without_space_behind(prompt).ends_with(begin);
}

bool closes_reasoning(std::string_view prompt, ReasoningFormat format) {
  const std::string_view end = reasoning_tags(format).end;
  return !end.empty() && format != ReasoningFormat::kHarmony && without_space_behind(prompt).ends_with(end);
}

}  // namespace llmb
