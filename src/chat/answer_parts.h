// Takes the text of an answer apart: reasoning, calls of tools, and the rest.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/answer_split.h"

namespace llmb {

// A text with all its special tokens. `hidden`: byte ranges [first, second) in order, of those that no part shows.
struct MarkedText {
  std::string text;
  std::vector<std::pair<size_t, size_t>> hidden;
};

// nullopt: there is neither reasoning nor a call, so that the answer stays as it is. White space around reasoning, line
// ends in front of the content, and white space around the content of an answer with calls are left out.
std::optional<AnswerParts> split_answer(const MarkedText& answer, const AnswerSplit& split);

// How many bytes at the text's beginning are reasoning and its tags.
size_t reasoning_end(const std::string& text, const AnswerSplit& split);

}  // namespace llmb
