#include "chat/answer_formats.h"

namespace llmb {

namespace {

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

bool is_harmony(std::string_view text) { return has(text, "<|channel|>") && has(text, "<|message|>"); }

}  // namespace

ToolCallFormat call_format_of_template(std::string_view text) {
  if (is_harmony(text) && has(text, "functions.")) return ToolCallFormat::kHarmony;
  if (has(text, "<|tool_call>call:")) return ToolCallFormat::kGemma4;
  if (has(text, "<start_function_call>call:")) return ToolCallFormat::kFunctionGemma;
  if (has(text, "[TOOL_CALLS]")) return ToolCallFormat::kMistral;
  // Others put something else than JSON between these tags. Templates may escape the quotes.
  const bool has_json = (has(text, "\"name\": ") || has(text, "name\\\": ")) &&
                        (has(text, "\"arguments\": ") || has(text, "arguments\\\": "));
  if (has(text, "<tool_call>") && has_json && !has(text, "<function=") && !has(text, "<arg_key>"))
    return ToolCallFormat::kHermes;
  if (has(text, "{\"name\": function name, \"parameters\":")) return ToolCallFormat::kLlama3Json;
  return ToolCallFormat::kNone;
}

ReasoningFormat reasoning_format_of_template(std::string_view text) {
  if (is_harmony(text)) return ReasoningFormat::kHarmony;
  if (has(text, "<|channel>thought")) return ReasoningFormat::kGemma4;
  if (has(text, "[THINK]") && has(text, "[/THINK]")) return ReasoningFormat::kMistral;
  // With <response> behind it the answer, too, is in tags.
  return has(text, "</think>") && !has(text, "<response>") ? ReasoningFormat::kQwen3 : ReasoningFormat::kNone;
}

}  // namespace llmb
