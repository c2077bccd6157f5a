// How the text of a model's answer is taken apart: calls of tools, reasoning, and the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmb {

// How a model writes calls (chat/tool_calls.h).
enum class ToolCallFormat : uint8_t { kNone, kHermes, kLlama3Json, kMistral, kGemma4, kHarmony, kFunctionGemma };

// How a model marks what it thinks (chat/reasoning.h).
enum class ReasoningFormat : uint8_t { kNone, kQwen3, kDeepSeekR1, kMistral, kGemma4, kHarmony };

struct AnswerFormats {
  ToolCallFormat calls = ToolCallFormat::kNone;
  ReasoningFormat reasoning = ReasoningFormat::kNone;
};

// vLLM's names of its parsers, and "none".
std::string_view name_of(ToolCallFormat format);
std::string_view name_of(ReasoningFormat format);
std::optional<ToolCallFormat> call_format_named(std::string_view name);
std::optional<ReasoningFormat> reasoning_format_named(std::string_view name);
std::vector<std::string_view> call_format_names();
std::vector<std::string_view> reasoning_format_names();

// How the answers to one request are taken apart.
struct AnswerSplit {
  AnswerFormats formats;                // none: the text stays whole
  bool starts_in_reasoning = false;     // the prompt ends in an open tag
  std::vector<std::string> tool_names;  // that may be called

  bool any() const { return formats.calls != ToolCallFormat::kNone || formats.reasoning != ReasoningFormat::kNone; }
};

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object, as the model spelled it
  bool operator==(const ToolCall&) const = default;
};

// An answer that has reasoning or calls.
struct AnswerParts {
  std::string content;  // "": none
  bool has_reasoning = false;
  std::string reasoning;
  std::vector<ToolCall> calls;
  bool has_short_call_ids = false;  // the model's template reads no other ids of calls
  bool operator==(const AnswerParts&) const = default;
};

}  // namespace llmb
