// Finds calls of tools in the text of an answer. Pure functions, one for each format:
//   hermes       <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>, any number of them, text around them
//                (Hermes, Qwen 2.5 and 3)
//   llama3_json  {"name": "f", "parameters": {…}}, perhaps behind <|python_tag|>, several with "; " between them; only
//                where this is all of the text and all names are those of tools (Llama 3.1 to 3.3)
//   mistral      [TOOL_CALLS][{"name": "f", "arguments": {…}}, …] at the text's end, or [TOOL_CALLS]f[ARGS]{…}…
//   gemma4       <|tool_call>call:f{key:<|"|>text<|"|>,other:1}<tool_call|>, any number of them
//   functiongemma  <start_function_call>call:f{key:<escape>text<escape>,other:1}<end_function_call>, the same
// Harmony's are in chat/harmony.h. A call that is not whole, or is none, is text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/answer_split.h"

namespace llmb {

// The bytes [begin, end) of a text that spell these calls, tags and the white space next to them included.
struct CallSpan {
  size_t begin = 0, end = 0;
  std::vector<ToolCall> calls;  // at least one
};

// In order, none overlapping.
std::vector<CallSpan> find_calls(std::string_view text, const AnswerSplit& split);

// {"name": "f", "arguments": {…}}, or "parameters", at `begin`, white space before it skipped. Other members are
// ignored; without arguments they are {}; a string that holds an object is taken for it. *end: behind it.
std::optional<ToolCall> read_json_call(std::string_view text, size_t begin, size_t* end);

// The JSON object at `begin`, white space before it skipped; "": there is none. *end: behind it.
std::string_view read_json_object(std::string_view text, size_t begin, size_t* end);

// Around a call of Gemma's models, in front of its "call:", and around strings of its arguments.
struct GemmaTags {
  std::string_view open, close, quote;
};
GemmaTags gemma_tags(ToolCallFormat format);  // REQUIRES: kGemma4 or kFunctionGemma

// f{key:<|"|>text<|"|>,…} at `begin`, with these quotes; arguments become JSON. *end: behind it.
std::optional<ToolCall> read_gemma_call(std::string_view text, size_t begin, std::string_view quote, size_t* end);

}  // namespace llmb
