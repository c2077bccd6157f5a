#include "chat/forced_calls.h"

#include <nlohmann/json.hpp>

#include "chat/answer_parts.h"
#include "chat/tool_calls.h"

namespace llmb {

namespace {

using Json = nlohmann::ordered_json;
using IsSpecial = std::function<bool(const std::string&)>;

// Without parameters a function takes none.
constexpr const char* kNoParameters = R"({"type":"object","properties":{},"additionalProperties":false})";

struct Tool {
  std::string name, schema;
  bool is_strict = false;
};

// io has checked the tools of a request whose answer must call some.
std::vector<Tool> read_tools(const std::string& tools_json) {
  std::vector<Tool> tools;
  const Json all = Json::parse(tools_json, nullptr, /*allow_exceptions=*/false);
  if (!all.is_array()) return tools;
  for (const Json& entry : all) {
    if (!entry.is_object()) continue;
    const Json function = entry.value("function", Json());
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) continue;
    Tool tool = {function["name"].get<std::string>(), kNoParameters, false};
    const auto parameters = function.find("parameters");
    if (parameters != function.end() && !parameters->is_null()) tool.schema = parameters->dump();
    const auto strict = function.find("strict");
    tool.is_strict = strict != function.end() && strict->is_boolean() && strict->get<bool>();
    tools.push_back(std::move(tool));
  }
  return tools;
}

std::string quoted(const std::string& text) { return Json(text).dump(); }

class FrameMaker {
 public:
  FrameMaker(ToolCallFormat format, const IsSpecial& is_special) : format_(format), is_special_(is_special) {}

  CallFrame frame(const Tool& tool) const {
    switch (format_) {
      case ToolCallFormat::kHermes:
        return {tag("<tool_call>") + "\n{\"name\": " + quoted(tool.name) + ", \"arguments\": ", tool.schema,
                "}\n" + tag("</tool_call>"), tool.is_strict};
      case ToolCallFormat::kLlama3Json:
        return {"{\"name\": " + quoted(tool.name) + ", \"parameters\": ", tool.schema, "}", tool.is_strict};
      case ToolCallFormat::kMistral:
        if (is_special_("[ARGS]")) return {tag("[TOOL_CALLS]") + tool.name + tag("[ARGS]"), tool.schema, "", tool.is_strict};
        return {tag("[TOOL_CALLS]") + "[{\"name\": " + quoted(tool.name) + ", \"arguments\": ", tool.schema, "}]",
                tool.is_strict};
      case ToolCallFormat::kGemma4:
      case ToolCallFormat::kFunctionGemma: {
        const GemmaTags tags = gemma_tags(format_);
        return {tag(tags.open) + "call:" + tool.name, tool.schema, tag(tags.close), tool.is_strict};
      }
      case ToolCallFormat::kHarmony:
      case ToolCallFormat::kNone:
        break;
    }
    return {tag("<|channel|>") + "commentary to=functions." + tool.name + " " + tag("<|constrain|>") + "json" +
                tag("<|message|>"),
            tool.schema, "", tool.is_strict};
  }

  // Between one call and the next; whether there may be a next one.
  bool repeats() const {
    return format_ == ToolCallFormat::kHermes || is_gemma() ||
           (format_ == ToolCallFormat::kMistral && is_special_("[ARGS]"));
  }
  std::string quote() const { return is_gemma() ? tag(gemma_tags(format_).quote) : ""; }
  std::string between() const { return format_ == ToolCallFormat::kHermes ? "\n" : ""; }

 private:
  bool is_gemma() const { return format_ == ToolCallFormat::kGemma4 || format_ == ToolCallFormat::kFunctionGemma; }
  std::string tag(std::string_view text) const {
    return (is_special_(std::string(text)) ? std::string(1, kSpecialMark) : "") + std::string(text);
  }

  const ToolCallFormat format_;
  const IsSpecial& is_special_;
};

// An answer with this call and no arguments is one to its readers.
bool reads_back(const CallFrame& frame, const std::string& name, ToolCallFormat format) {
  MarkedText answer{frame.before + "{}" + frame.after, {}};
  std::erase(answer.text, kSpecialMark);
  AnswerSplit split;
  split.formats.calls = format;
  split.tool_names = {name};
  const auto parts = split_answer(answer, split);
  return parts && parts->calls == std::vector<ToolCall>{{name, "{}"}};
}

}  // namespace

std::vector<std::string> tool_names(const std::string& tools_json) {
  std::vector<std::string> names;
  if (tools_json.empty()) return names;
  for (Tool& tool : read_tools(tools_json)) names.push_back(std::move(tool.name));
  return names;
}

Result<AnswerForm> forced_call_form(const ChatMessages& chat, ToolCallFormat format, const IsSpecial& is_special) {
  if (format == ToolCallFormat::kNone)
    return unsupported("the model's chat template does not tell how it writes calls; name a format by --tool-call-parser");
  AnswerForm form;
  form.kind = AnswerForm::Kind::kCalls;
  form.field = "tools";
  const FrameMaker maker(format, is_special);
  for (const Tool& tool : read_tools(chat.tools_json)) {
    if (chat.tool_choice == ToolChoice::kNamed && tool.name != chat.tool_name) continue;
    form.calls.push_back(maker.frame(tool));
    if (!reads_back(form.calls.back(), tool.name, format))
      return unsupported("calls of " + quoted(tool.name) + " cannot be told in the notation of " +
                         std::string(name_of(format)) + ", which takes its name apart");
  }
  form.text = maker.between();
  form.quote = maker.quote();
  form.has_several_calls = maker.repeats() && !chat.has_one_call && chat.tool_choice == ToolChoice::kRequired;
  return form;
}

}  // namespace llmb
