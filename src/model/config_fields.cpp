#include "model/config_fields.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace llmb {

namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxDepth = 64;

std::string quoted(const char* name) { return std::string("\"") + name + "\""; }

std::string range_text(double min, double max) {
  return nlohmann::json(min).dump() + " to " + nlohmann::json(max).dump();
}

}  // namespace

std::string brief(const nlohmann::json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

const nlohmann::json* ConfigFields::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool ConfigFields::is_null(const char* name) const {
  const auto it = object_.find(name);
  return it != object_.end() && it->is_null();
}

std::string ConfigFields::pick(std::string_view names) const {
  const std::string first(names.substr(0, names.find('|')));
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('|', begin), names.size());
    const std::string name(names.substr(begin, end - begin));
    if (has(name.c_str())) return name;
    begin = end + 1;
  }
  return first;
}

int64_t ConfigFields::integer(const char* name, std::optional<int64_t> fallback, int64_t min, int64_t max) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) {
    if (!fallback) fail(data_loss(quoted(name) + " is missing"));
    return fallback.value_or(min);
  }
  // Integers above INT64_MAX come as unsigned: out of every range here.
  const bool in_range = value->is_number_integer() &&
                        !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX) &&
                        value->get<int64_t>() >= min && value->get<int64_t>() <= max;
  if (in_range) return value->get<int64_t>();
  fail(data_loss(quoted(name) + " is " + brief(*value) + ", expected an integer from " + std::to_string(min) + " to " +
                 std::to_string(max)));
  return min;
}

double ConfigFields::number(const char* name, double fallback, double min, double max) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return fallback;
  if (value->is_number()) {
    const double x = value->get<double>();
    if (x >= min && x <= max) return x;  // false for NaN
  }
  fail(data_loss(quoted(name) + " is " + brief(*value) + ", expected a number from " + range_text(min, max)));
  return fallback;
}

bool ConfigFields::boolean(const char* name, bool fallback) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  fail(data_loss(quoted(name) + " is " + brief(*value) + ", expected true or false"));
  return fallback;
}

std::string ConfigFields::text(const char* name, const std::string& fallback) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  fail(data_loss(quoted(name) + " is " + brief(*value) + ", expected a string"));
  return fallback;
}

std::vector<TokenId> ConfigFields::token_ids(const char* name) {
  const nlohmann::json* value = find(name);
  std::vector<TokenId> ids;
  if (value == nullptr) return ids;
  const auto add = [&](const nlohmann::json& id) {
    if (id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX) {
      ids.push_back(id.get<TokenId>());
    } else {
      fail(data_loss(quoted(name) + " holds " + brief(id) + ", expected token ids"));
    }
  };
  if (value->is_array()) {
    for (const auto& id : *value) add(id);
  } else {
    add(*value);
  }
  return ids;
}

std::vector<double> ConfigFields::numbers(const char* name, size_t size, double min, double max) {
  const nlohmann::json* value = find(name);
  std::vector<double> numbers;
  if (value == nullptr) {
    fail(data_loss(quoted(name) + " is missing"));
  } else if (!value->is_array() || value->size() != size) {
    fail(data_loss(quoted(name) + " is not a list of " + std::to_string(size) + " numbers"));
  } else {
    for (const auto& item : *value) {
      const double x = item.is_number() ? item.get<double>() : std::nan("");
      if (x >= min && x <= max) numbers.push_back(x);
      else fail(data_loss(quoted(name) + " holds " + brief(item) + ", expected numbers from " + range_text(min, max)));
    }
  }
  return numbers;
}

namespace {

// Python writes infinity as a bare word, which JSON does not have: here it becomes a text.
std::string with_infinity_quoted(std::string_view text) {
  constexpr std::string_view kWord = "Infinity";
  std::string out;
  bool is_in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_in_text && text[i] == '\\' && i + 1 < text.size()) {
      out += text[i++];
    } else if (text[i] == '"') {
      is_in_text = !is_in_text;
    } else if (!is_in_text && text.substr(i, kWord.size()) == kWord) {
      out += "\"Infinity\"";
      i += kWord.size() - 1;
      continue;
    }
    out += text[i];
  }
  return out;
}

}  // namespace

Result<nlohmann::json> parse_config_object(std::string_view text) {
  if (text.size() > kMaxConfigBytes) return data_loss("larger than 1 MiB");
  bool too_deep = false;
  const auto limit_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  try {
    nlohmann::json value = text.find("Infinity") == std::string_view::npos
                               ? nlohmann::json::parse(text, limit_depth)
                               : nlohmann::json::parse(with_infinity_quoted(text), limit_depth);
    if (too_deep) return data_loss("nested more than " + std::to_string(kMaxDepth) + " levels deep");
    if (!value.is_object()) return data_loss("not a JSON object");
    return value;
  } catch (const nlohmann::json::exception& e) {
    return data_loss("invalid JSON: " + std::string(e.what()).substr(0, 200));
  }
}

}  // namespace llmb
