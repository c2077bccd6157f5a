#include "cli/flag_texts.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "base/whole_file.h"

namespace llmb {

Result<SloTargets> parse_slo(const std::string& text) {
  SloTargets slo;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    char* end = nullptr;
    const double value = equals == std::string::npos ? -1 : std::strtod(part.c_str() + equals + 1, &end);
    const std::string unit = end != nullptr ? end : "";
    std::optional<double>* target = name == "ttft"                      ? &slo.ttft_ms
                                    : name == "tpot"                    ? &slo.tpot_ms
                                    : (name == "e2el" || name == "e2e") ? &slo.e2el_ms
                                                                        : nullptr;
    if (target == nullptr || !(value > 0) || !(value < 1e12) || (unit != "ms" && unit != "s" && !unit.empty()))
      return invalid_argument("--slo: '" + part + "': expected ttft=, tpot= or e2el= and a time such as 200ms or 2s");
    *target = unit == "s" ? value * 1000 : value;
  }
  if (!slo.any()) return invalid_argument("--slo: no target; expected for example ttft=200ms,tpot=50ms");
  return slo;
}

Result<std::vector<std::pair<TokenId, float>>> parse_logit_bias(const std::string& text) {
  std::vector<std::pair<TokenId, float>> bias;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return invalid_argument("--logit-bias: not a JSON object such as {\"50256\": -100}");
  for (const auto& [key, value] : json.items()) {
    char* end = nullptr;
    const long token = std::strtol(key.c_str(), &end, 10);
    if (key.empty() || *end != '\0' || token < 0 || token > std::numeric_limits<TokenId>::max())
      return invalid_argument("--logit-bias: '" + key + "' is not a token id");
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100))
      return invalid_argument("--logit-bias: the bias of token " + key + " is not a number in [-100, 100]");
    bias.emplace_back(static_cast<TokenId>(token), value.get<float>());
  }
  std::sort(bias.begin(), bias.end());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (std::adjacent_find(bias.begin(), bias.end(), same) != bias.end())  // "7" and "07"
    return invalid_argument("--logit-bias: a token is named twice");
  return bias;
}

Result<std::vector<std::string>> parse_names(const std::string& text) {
  std::vector<std::string> names;
  std::stringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    if (part.empty()) return invalid_argument("--keep: a name is empty; expected all, or names such as id,label");
    names.push_back(part);
  }
  return names;
}

Result<std::string> read_template(const std::string& text) {
  constexpr int64_t kMaxBytes = 1 << 20;
  if (text.find_first_of("{\n") != text.npos) return text;
  Result<std::string> content = read_whole_file(text, kMaxBytes);
  if (!content.ok())
    return invalid_argument("--template: '" + text +
                            "' contains no {{ field }} and is not a readable file: " + content.status().message());
  if (content->empty()) return invalid_argument("--template: " + text + " is empty");
  return content;
}

namespace {

Result<std::string> read_form_file(const std::string& flag, const std::string& path) {
  constexpr int64_t kMaxBytes = 4 << 20;
  Result<std::string> content = read_whole_file(path, kMaxBytes);
  if (!content.ok()) return invalid_argument(flag + ": " + content.status().message());
  if (content->empty()) return invalid_argument(flag + ": " + path + " is empty");
  return content;
}

}  // namespace

Result<std::shared_ptr<const AnswerForm>> parse_form(const std::string& json_schema, const std::string& regex,
                                                     const std::vector<std::string>& choices,
                                                     const std::string& grammar) {
  if (!json_schema.empty() + !regex.empty() + !choices.empty() + !grammar.empty() > 1)
    return invalid_argument("--json-schema, --regex, --choice and --grammar cannot be combined");
  auto form = std::make_shared<AnswerForm>();
  if (!json_schema.empty()) {
    *form = {AnswerForm::Kind::kJsonSchema, "", {}, false, "json_schema"};
    LLMB_ASSIGN_OR_RETURN(form->text, read_form_file("--json-schema", json_schema));
  } else if (!grammar.empty()) {
    *form = {AnswerForm::Kind::kGrammar, "", {}, false, "grammar"};
    LLMB_ASSIGN_OR_RETURN(form->text, read_form_file("--grammar", grammar));
  } else if (!regex.empty()) {
    *form = {AnswerForm::Kind::kRegex, regex, {}, false, "regex"};
  } else if (!choices.empty()) {
    *form = {AnswerForm::Kind::kChoice, "", choices, false, "choice"};
  } else {
    form = nullptr;
  }
  return std::shared_ptr<const AnswerForm>(std::move(form));
}

Result<std::vector<AdapterFolder>> parse_adapters(const std::vector<std::string>& adapters,
                                                  const std::vector<std::string>& lora_modules) {
  std::vector<AdapterFolder> folders;
  const auto add = [&](const std::string& flag, const std::string& text) -> Status {
    AdapterFolder folder;
    if (text.starts_with('{')) {
      const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (json.is_object() && json.value("name", nlohmann::json()).is_string() &&
          json.value("path", nlohmann::json()).is_string())
        folder = {json["name"].get<std::string>(), json["path"].get<std::string>()};
    } else if (const size_t at = text.find('='); at != text.npos) {
      folder = {text.substr(0, at), text.substr(at + 1)};
    }
    if (folder.name.empty() || folder.dir.empty())
      return invalid_argument(flag + ": '" + text + "': expected NAME=DIR");
    for (const AdapterFolder& other : folders)
      if (other.name == folder.name) return invalid_argument(flag + ": the name " + folder.name + " is given twice");
    folders.push_back(std::move(folder));
    return {};
  };
  for (const std::string& text : adapters) LLMB_RETURN_IF_ERROR(add("--adapter", text));
  for (const std::string& text : lora_modules) LLMB_RETURN_IF_ERROR(add("--lora-modules", text));
  return folders;
}

Status parse_speculative(const std::string& text, SpeculationOptions* speculation) {
  if (text == "none") return {};
  std::stringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    if (part == "auto" || part == "lookup") {
      speculation->lookup = true;
    } else if (part == "lookahead") {
      speculation->lookahead = true;
    } else if (part == "tree") {
      speculation->trees = true;
    } else if (part == "mtp") {
      speculation->mtp = true;
    } else if (part.starts_with("draft:") && part.size() > 6) {
      speculation->draft_model = part.substr(6);
    } else if (part.starts_with("medusa:") && part.size() > 7) {
      speculation->medusa = part.substr(7);
    } else if (part.starts_with("eagle:") && part.size() > 6) {
      speculation->eagle = part.substr(6);
    } else {
      const char* const end = part.data() + part.size();
      const bool is_layers = part.starts_with("layers:");
      const auto [rest, error] = std::from_chars(part.data() + (is_layers ? 7 : 0), end, speculation->num_layers);
      if (!is_layers || error != std::errc() || rest != end || speculation->num_layers < 1)
        return invalid_argument("--speculative: '" + part +
                                "': expected none, auto, lookup, draft:MODEL, mtp, eagle:DIR, medusa:DIR, layers:N, lookahead or tree");
    }
  }
  if (!speculation->any()) speculation->lookup = true;  // a tree of something
  return {};
}

Status parse_speculative_config(const std::string& text, SpeculationOptions* speculation) {
  if (text.empty()) return {};
  const std::string flag = "--speculative-config: ";
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return invalid_argument(flag + "not a JSON object such as {\"method\": \"ngram\"}");
  // The longest match is taken, whatever its length.
  const std::vector<std::string> without_meaning = {"prompt_lookup_max", "prompt_lookup_min"};
  std::string method;
  for (const auto& [key, value] : json.items()) {
    if (key == "method" && value.is_string()) {
      method = value.get<std::string>();
    } else if (key == "model" && value.is_string()) {
      speculation->draft_model = value.get<std::string>();
    } else if (key == "num_speculative_tokens" && value.is_number_integer() && value >= 1 && value <= 16) {
      speculation->max_tokens = value.get<int32_t>();
    } else if (std::count(without_meaning.begin(), without_meaning.end(), key) == 0) {
      return invalid_argument(flag + "\"" + key + "\": " + value.dump() +
                              ": expected a \"method\", and \"num_speculative_tokens\" from 1 to 16");
    }
  }
  // Servers name it for the model, too: deepseek_mtp, qwen3_next_mtp.
  speculation->mtp = method == "mtp" || method.ends_with("_mtp");
  if (speculation->mtp) return {};
  const bool is_draft = method == "draft_model" || method.empty(), is_eagle = method == "eagle" || method == "eagle3";
  if ((is_draft || is_eagle) && speculation->draft_model.empty()) return invalid_argument(flag + "a \"model\" is missing");
  if (is_eagle) speculation->eagle = std::exchange(speculation->draft_model, "");
  if (is_draft || is_eagle) return {};
  if (method != "ngram" && method != "suffix")
    return invalid_argument(flag + "the method is '" + method + "'; expected ngram, suffix, mtp, eagle, eagle3 or draft_model");
  speculation->lookup = true;
  return {};
}

}  // namespace llmb
