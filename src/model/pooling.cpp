#include "model/pooling.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/whole_file.h"
#include "model/config_fields.h"

namespace llmb {

namespace {

constexpr size_t kMaxBytes = 1 << 20;

Status check_pooling(const std::string& path) {
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxBytes));
  const auto object = parse_config_object(text);
  if (!object.ok()) return object.status().with_context(path);
  bool takes_last = false;
  for (const auto& [name, value] : object->items()) {
    if (!name.starts_with("pooling_mode") || value == false) continue;
    if (name == "pooling_mode_lasttoken" || value == "lasttoken") takes_last = true;
    else
      return unsupported(path + ": \"" + name.substr(0, 60) + "\" is not supported; supported: pooling_mode_lasttoken");
  }
  return takes_last ? Status() : unsupported(path + ": names no \"pooling_mode_lasttoken\"");
}

}  // namespace

Result<Pooling> load_pooling(const std::string& model_dir, bool takes_last) {
  Pooling pooling;
  if (takes_last) return pooling;
  const std::string path = model_dir + "/modules.json";
  const auto text = read_whole_file(path, kMaxBytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound)
    return unsupported(model_dir + ": has no modules.json that says how its states become one vector; "
                       "to take the last token's, give `pooling` last");
  LLMB_RETURN_IF_ERROR(text.status());
  const nlohmann::json modules = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!modules.is_array()) return data_loss(path + ": is not a JSON array");
  pooling.normalizes = false;
  bool pools = false;
  for (const nlohmann::json& module : modules) {
    if (!module.is_object()) return data_loss(path + ": holds " + brief(module) + ", expected an object");
    const auto text_of = [&](const char* name) {
      const auto at = module.find(name);
      return at != module.end() && at->is_string() ? at->get<std::string>() : std::string();
    };
    const std::string type = text_of("type"), folder = text_of("path");
    if (type.ends_with(".Pooling")) {
      LLMB_RETURN_IF_ERROR(check_pooling(model_dir + "/" + folder + "/config.json"));
      pools = true;
    } else if (type.ends_with(".Normalize")) {
      pooling.normalizes = true;
    } else if (!type.ends_with(".Transformer")) {
      return unsupported(path + ": module \"" + type.substr(0, 80) + "\" is not supported");
    }
  }
  if (!pools) return unsupported(path + ": has no module that pools");
  return pooling;
}

}  // namespace llmb
