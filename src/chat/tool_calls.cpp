#include "chat/tool_calls.h"

#include <algorithm>
#include <utility>

#include "chat/white_space.h"
#include "formats/json_scanner.h"

namespace llmb {

namespace {

constexpr int kMaxDepth = 200;
constexpr size_t kMaxNameBytes = 512, kMaxArgumentBytes = size_t{16} << 20;
size_t skip_space(std::string_view text, size_t at) { return std::min(text.find_first_not_of(kWhiteSpace, at), text.size()); }

// Where the white space in front of `at` begins.
size_t before_space(std::string_view text, size_t at) {
  const size_t last = at == 0 ? text.npos : text.find_last_not_of(kWhiteSpace, at - 1);
  return last == text.npos ? 0 : last + 1;
}

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  });
}

std::vector<CallSpan> hermes_calls(std::string_view text) {
  constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
  std::vector<CallSpan> found;
  for (size_t at = text.find(kOpen); at != text.npos; at = text.find(kOpen, at)) {
    size_t end = 0;
    auto call = read_json_call(text, at + kOpen.size(), &end);
    if (call) end = skip_space(text, end);
    // The closing tag may lack at the end, where some models stop.
    const bool is_closed = call && text.substr(end).starts_with(kClose);
    if (!call || (!is_closed && end < text.size())) {
      at += kOpen.size();
      continue;
    }
    if (is_closed) end = skip_space(text, end + kClose.size());
    found.push_back({before_space(text, at), end, {std::move(*call)}});
    at = end;
  }
  return found;
}

std::vector<CallSpan> llama3_calls(std::string_view text, const std::vector<std::string>& names) {
  constexpr std::string_view kTag = "<|python_tag|>";
  size_t at = skip_space(text, 0);
  if (text.substr(at).starts_with(kTag)) at += kTag.size();
  CallSpan span = {0, text.size(), {}};
  while (true) {
    size_t end = 0;
    auto call = read_json_call(text, at, &end);
    if (!call || std::count(names.begin(), names.end(), call->name) == 0) return {};
    span.calls.push_back(std::move(*call));
    at = skip_space(text, end);
    if (at == text.size()) return {span};
    if (text[at++] != ';') return {};
  }
}

// [{…}, {…}]
std::optional<std::vector<ToolCall>> read_call_list(std::string_view text, size_t begin, size_t* end) {
  std::vector<ToolCall> calls;
  size_t at = skip_space(text, begin);
  if (at == text.size() || text[at] != '[') return std::nullopt;
  do {
    auto call = read_json_call(text, at + 1, end);
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
    at = skip_space(text, *end);
  } while (at < text.size() && text[at] == ',');
  if (at == text.size() || text[at] != ']') return std::nullopt;
  *end = at + 1;
  return calls;
}

// f[ARGS]{…}, in some templates with an id between them: f[CALL_ID]x[ARGS]{…}, or f{…}
std::optional<ToolCall> read_named_call(std::string_view text, size_t begin, size_t* end) {
  const size_t brace = text.find('{', begin);
  if (brace == text.npos) return std::nullopt;
  std::string_view name = text.substr(begin, brace - begin);
  for (const std::string_view tag : {"[ARGS]", "[CALL_ID]"}) name = name.substr(0, name.find(tag));
  const size_t first = skip_space(name, 0), last = before_space(name, name.size());
  name = first < last ? name.substr(first, last - first) : "";
  const std::string_view arguments = read_json_object(text, brace, end);
  if (!is_name(name) || arguments.empty()) return std::nullopt;
  return ToolCall{std::string(name), std::string(arguments)};
}

std::vector<CallSpan> mistral_calls(std::string_view text) {
  constexpr std::string_view kTag = "[TOOL_CALLS]";
  std::vector<CallSpan> found;
  for (size_t at = text.find(kTag); at != text.npos; at = text.find(kTag, at)) {
    size_t end = 0;
    CallSpan span = {before_space(text, at), 0, {}};
    if (auto calls = read_call_list(text, at + kTag.size(), &end)) span.calls = std::move(*calls);
    else if (auto call = read_named_call(text, at + kTag.size(), &end)) span.calls.push_back(std::move(*call));
    if (span.calls.empty()) {
      at += kTag.size();
      continue;
    }
    at = span.end = skip_space(text, end);
    found.push_back(std::move(span));
  }
  return found;
}

std::vector<CallSpan> gemma_calls(std::string_view text, const GemmaTags& tags) {
  const std::string open = std::string(tags.open) + "call:";
  std::vector<CallSpan> found;
  for (size_t at = text.find(open); at != text.npos; at = text.find(open, at)) {
    size_t end = 0;
    auto call = read_gemma_call(text, at + open.size(), tags.quote, &end);
    const bool is_closed = call && text.substr(end).starts_with(tags.close);
    if (!call || (!is_closed && end < text.size())) {
      at += open.size();
      continue;
    }
    if (is_closed) end = skip_space(text, end + tags.close.size());
    found.push_back({before_space(text, at), end, {std::move(*call)}});
    at = end;
  }
  return found;
}

// A value of arguments: an object, or a string that holds one.
Status read_arguments(JsonScanner* scanner, std::string_view text, std::string* arguments) {
  const char first = scanner->peek();
  const size_t begin = scanner->position();
  if (first == '{') {
    LLMB_RETURN_IF_ERROR(scanner->skip_value(kMaxDepth));
    *arguments = text.substr(begin, scanner->position() - begin);
    return {};
  }
  std::string inner;
  LLMB_RETURN_IF_ERROR(scanner->read_string(&inner, kMaxArgumentBytes));
  size_t end = 0;
  *arguments = read_json_object(inner, 0, &end);
  return !arguments->empty() && skip_space(inner, end) == inner.size() ? Status() : scanner->error("no arguments");
}

}  // namespace

std::string_view read_json_object(std::string_view text, size_t begin, size_t* end) {
  JsonScanner scanner(text.substr(begin));
  if (scanner.peek() != '{') return "";
  const size_t first = begin + scanner.position();
  if (!scanner.skip_value(kMaxDepth).ok()) return "";
  *end = begin + scanner.position();
  return text.substr(first, *end - first);
}

std::optional<ToolCall> read_json_call(std::string_view text, size_t begin, size_t* end) {
  const std::string_view rest = text.substr(begin);
  JsonScanner scanner(rest);
  ToolCall call;
  bool has_name = false, has_arguments = false;
  const Status read = scanner.read_object([&](const std::string& key) {
    if (key == "name" && !std::exchange(has_name, true)) return scanner.read_string(&call.name, kMaxNameBytes);
    if ((key == "arguments" || key == "parameters") && !std::exchange(has_arguments, true))
      return read_arguments(&scanner, rest, &call.arguments);
    const bool is_double = key == "name" || key == "arguments" || key == "parameters";
    return is_double ? scanner.error("a member is given twice") : scanner.skip_value(kMaxDepth);
  });
  if (!read.ok() || call.name.empty()) return std::nullopt;
  if (!has_arguments) call.arguments = "{}";
  *end = begin + scanner.position();
  return call;
}

std::vector<CallSpan> find_calls(std::string_view text, const AnswerSplit& split) {
  switch (split.formats.calls) {
    case ToolCallFormat::kHermes:
      return hermes_calls(text);
    case ToolCallFormat::kLlama3Json:
      return llama3_calls(text, split.tool_names);
    case ToolCallFormat::kMistral:
      return mistral_calls(text);
    case ToolCallFormat::kGemma4:
    case ToolCallFormat::kFunctionGemma:
      return gemma_calls(text, gemma_tags(split.formats.calls));
    case ToolCallFormat::kNone:
    case ToolCallFormat::kHarmony:
      return {};
  }
  return {};
}

}  // namespace llmb
