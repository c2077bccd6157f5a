#include "chat/chat_template_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/whole_file.h"
#include "formats/gguf_file.h"
#include "formats/gguf_special_tokens.h"
#include "jinja/lexer.h"

namespace llmb {

namespace fs = std::filesystem;

namespace {

using SpecialTokens = std::map<std::string, std::string>;
using Templates = std::map<std::string, std::string>;

constexpr size_t kMaxConfigBytes = size_t{64} << 20;

// A JSON object from a file; an empty one where there is no file.
Result<nlohmann::json> read_config(const fs::path& path) {
  Result<std::string> text = read_whole_file(path, kMaxConfigBytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) return nlohmann::json::object();
  LLMB_RETURN_IF_ERROR(text.status());
  nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object()) return data_loss(path.string() + ": not a JSON object");
  return json;
}

// A token is a string, or an object with its content.
void add_token(SpecialTokens* tokens, const std::string& name, const nlohmann::json& value) {
  const nlohmann::json* text = &value;
  if (value.is_object() && value.contains("content")) text = &value["content"];
  if (text->is_string()) (*tokens)[name] = text->get<std::string>();
}

void add_tokens(SpecialTokens* tokens, const nlohmann::json& config) {
  for (const auto& [name, value] : config.items()) {
    if (name.ends_with("_token")) add_token(tokens, name, value);
    if ((name != "extra_special_tokens" && name != "model_specific_special_tokens") || !value.is_object()) continue;
    for (const auto& [inner_name, inner] : value.items()) add_token(tokens, inner_name, inner);
  }
}

Status add_template_files(const fs::path& dir, Templates* templates) {
  const std::pair<const char*, const char*> kFiles[] = {{"default", "chat_template.jinja"},
                                                        {"tool_use", "additional_chat_templates/tool_use.jinja"}};
  for (const auto& [name, file] : kFiles) {
    Result<std::string> text = read_whole_file(dir / file, jinja::kMaxSourceBytes);
    if (text.ok()) (*templates)[name] = *text;
    else if (text.status().code() != StatusCode::kNotFound) return text.status();
  }
  return {};
}

Status add_configured_templates(const nlohmann::json& config, Templates* templates) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return {};
  if (found->is_string()) {
    (*templates)["default"] = found->get<std::string>();
    return {};
  }
  const Status malformed = data_loss("chat_template must be a string or a list of objects with name and template");
  if (!found->is_array()) return malformed;
  for (const auto& entry : *found) {
    const bool good = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                      entry.contains("template") && entry["template"].is_string();
    if (!good) return malformed;
    (*templates)[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
  }
  return {};
}

Result<Templates> find_templates(const fs::path& dir, const nlohmann::json& config) {
  Templates templates;
  LLMB_RETURN_IF_ERROR(add_template_files(dir, &templates));
  if (templates.empty()) {
    LLMB_RETURN_IF_ERROR(
        add_configured_templates(config, &templates).with_context((dir / "tokenizer_config.json").string()));
  }
  return templates;
}

Result<ChatTemplateFiles> read_gguf(const std::string& path, bool with_templates) {
  LLMB_ASSIGN_OR_RETURN(const auto file, GgufFile::open(path));
  ChatTemplateFiles files;
  files.special_tokens = gguf_special_tokens(file);
  for (const auto& [name, key] :
       {std::pair("default", "tokenizer.chat_template"), std::pair("tool_use", "tokenizer.chat_template.tool_use")}) {
    const auto text = file.text(key);
    if (!text || !with_templates) continue;
    if (text->size() > jinja::kMaxSourceBytes) return data_loss(path + ": \"" + key + "\" is too long");
    files.templates[name] = *text;
  }
  LLMB_RETURN_IF_ERROR(file.still_readable());
  return files;
}

Result<ChatTemplateFiles> read_dir(const fs::path& dir, bool with_templates) {
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json config, read_config(dir / "tokenizer_config.json"));
  ChatTemplateFiles files;
  if (with_templates) {
    LLMB_ASSIGN_OR_RETURN(files.templates, find_templates(dir, config));
  }
  add_tokens(&files.special_tokens, config);
  if (config.contains("added_tokens_decoder")) return files;
  // Older models keep them apart.
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json map, read_config(dir / "special_tokens_map.json"));
  add_tokens(&files.special_tokens, map);
  return files;
}

}  // namespace

Result<ChatTemplateFiles> read_chat_template_files(const std::string& model_path, const std::string& template_file) {
  std::error_code error;
  const bool is_file = fs::is_regular_file(model_path, error);
  const bool with_templates = template_file.empty();
  LLMB_ASSIGN_OR_RETURN(ChatTemplateFiles files,
                        is_file ? read_gguf(model_path, with_templates) : read_dir(model_path, with_templates));
  if (!with_templates) {
    LLMB_ASSIGN_OR_RETURN(std::string text, read_whole_file(template_file, jinja::kMaxSourceBytes));
    files.templates = {{"default", std::move(text)}};
  }
  if (files.templates.count("default") + files.templates.count("tool_use") == 0)
    return not_found(model_path +
                     (is_file ? ": no chat template (tokenizer.chat_template); "
                              : ": no chat template (chat_template.jinja, or chat_template in "
                                "tokenizer_config.json); ") +
                     "--chat-template FILE names one");
  return files;
}

}  // namespace llmb
