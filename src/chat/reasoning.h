// Where an answer's reasoning is.
//   qwen3         <think>…</think>, at the beginning; the prompt may have opened it
//   deepseek_r1   the same, and </think> without a beginning ends reasoning, too
//   mistral       [THINK]…[/THINK]
//   gemma4        <|channel>thought\n…<channel|>
// Harmony's is in chat/harmony.h. Reasoning that does not end goes to the end of the text.
#pragma once

#include <optional>
#include <string_view>

#include "core/answer_split.h"

namespace llmb {

// The texts around reasoning. "": the format has none.
struct ReasoningTags {
  std::string_view begin, end;
};
ReasoningTags reasoning_tags(ReasoningFormat format);

struct ReasoningSpan {
  size_t begin = 0, end = 0;  // of the reasoning
  size_t rest = 0;            // of the text behind it
};

// nullopt: none.
std::optional<ReasoningSpan> find_reasoning(std::string_view text, const AnswerSplit& split);

// The prompt ends in reasoning that the answer goes on with; or behind reasoning, which is over.
bool opens_reasoning(std::string_view prompt, ReasoningFormat format);
bool closes_reasoning(std::string_view prompt, ReasoningFormat format);

}  // namespace llmb
