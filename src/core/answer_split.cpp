#include "core/answer_split.h"

#include <utility>

namespace llmb {

namespace {

constexpr std::pair<ToolCallFormat, std::string_view> kCallFormats[] = {
    {ToolCallFormat::kNone, "none"},       {ToolCallFormat::kHermes, "hermes"}, {ToolCallFormat::kLlama3Json, "llama3_json"},
    {ToolCallFormat::kMistral, "mistral"}, {ToolCallFormat::kGemma4, "gemma4"}, {ToolCallFormat::kHarmony, "openai"},
    {ToolCallFormat::kFunctionGemma, "functiongemma"}};

constexpr std::pair<ReasoningFormat, std::string_view> kReasoningFormats[] = {
    {ReasoningFormat::kNone, "none"},
    {ReasoningFormat::kQwen3, "qwen3"},
    {ReasoningFormat::kDeepSeekR1, "deepseek_r1"},
    {ReasoningFormat::kMistral, "mistral"},
    {ReasoningFormat::kGemma4, "gemma4"},
    {ReasoningFormat::kHarmony, "openai_gptoss"}};

template <typename Table, typename Format>
std::string_view find_name(const Table& table, Format format) {
  for (const auto& [entry, name] : table)
    if (entry == format) return name;
  return "";
}

template <typename Format, typename Table>
std::optional<Format> find_format(const Table& table, std::string_view name) {
  for (const auto& [format, entry] : table)
    if (entry == name) return format;
  return std::nullopt;
}

template <typename Table>
std::vector<std::string_view> names(const Table& table) {
  std::vector<std::string_view> all;
  for (const auto& [format, name] : table) all.push_back(name);
  return all;
}

}  // namespace

std::string_view name_of(ToolCallFormat format) { return find_name(kCallFormats, format); }
std::string_view name_of(ReasoningFormat format) { return find_name(kReasoningFormats, format); }
std::optional<ToolCallFormat> call_format_named(std::string_view name) {
  return find_format<ToolCallFormat>(kCallFormats, name);
}
std::optional<ReasoningFormat> reasoning_format_named(std::string_view name) {
  return find_format<ReasoningFormat>(kReasoningFormats, name);
}
std::vector<std::string_view> call_format_names() { return names(kCallFormats); }
std::vector<std::string_view> reasoning_format_names() { return names(kReasoningFormats); }

}  // namespace llmb
