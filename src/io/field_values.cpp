#include "io/field_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/utf8.h"
#include "io/json_writer.h"

namespace llmb {

namespace {

using simdjson::dom::element_type;

// Shortest text, without trailing zeros: 0.5, 100, 1e+30.
std::string number_text(double value) {
  std::string out;
  JsonWriter(out).floating(value);
  return out;
}

std::string range_text(const FloatRange& range) {
  return (range.low_included ? "from " : "above ") + number_text(range.low) + " to " + number_text(range.high);
}

// An integer, also where it is written 16.0.
std::optional<int64_t> as_integer(JsonElement value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value.is_int64()) return value.get_int64().value_unsafe();
  if (!value.is_double()) return std::nullopt;
  const double number = value.get_double().value_unsafe();
  if (!(std::fabs(number) <= kExact) || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::optional<double> as_number(JsonElement value) {
  if (value.is_double()) return value.get_double().value_unsafe();
  if (value.is_int64()) return static_cast<double>(value.get_int64().value_unsafe());
  if (value.is_uint64()) return static_cast<double>(value.get_uint64().value_unsafe());
  return std::nullopt;
}

bool is_true(JsonElement value) { return value.is_bool() && value.get_bool().value_unsafe(); }
bool is_false(JsonElement value) { return value.is_bool() && !value.get_bool().value_unsafe(); }
bool is_text(JsonElement value, std::string_view text) { return is_string(value) && string_of(value) == text; }

bool is_empty(JsonElement value) {
  if (value.is_array()) return array_of(value).begin() == array_of(value).end();
  if (value.is_object()) return object_of(value).begin() == object_of(value).end();
  return is_text(value, "");
}

bool is_text_only(JsonElement value) {
  if (!value.is_array()) return false;
  for (const JsonElement entry : array_of(value))
    if (!is_text(entry, "text")) return false;
  return true;
}

void append_double(std::string& out, double value) {
  const size_t begin = out.size();
  JsonWriter(out).floating(value);
  if (out.find_first_of(".en", begin) == std::string::npos) out += ".0";
}

}  // namespace

RequestError field_error(std::string_view code, std::string_view field, std::string message) {
  return {std::string(code), std::move(message), std::string(field), std::nullopt};
}

RequestError not_an_object(JsonElement line) {
  std::string message = "a line must be a JSON object; got " + shown(line);
  if (line.is_array()) message += kArrayHint;
  return {"invalid_request", std::move(message), std::nullopt, 0};
}

RequestError invalid_value(std::string_view field, std::string_view expected, JsonElement value) {
  return field_error("invalid_value", field,
                     std::string(field) + " must be " + std::string(expected) + "; got " + shown(value));
}

std::string shown(JsonElement value) {
  constexpr size_t kLongest = 40;
  if (value.is_array()) return is_empty(value) ? "[]" : "an array";
  if (value.is_object()) return is_empty(value) ? "{}" : "an object";
  std::string out;
  if (!is_string(value)) {
    append_json(out, value);
    return out.size() <= kLongest ? out : out.substr(0, kLongest) + "… (" + std::to_string(out.size()) + " characters)";
  }
  const std::string_view text = string_of(value);
  size_t cut = 0;
  while (cut < text.size()) {
    const size_t length = std::max<size_t>(1, utf8_length(text.data() + cut, text.data() + text.size()));
    if (cut + length > kLongest) break;
    cut += length;
  }
  append_json_string(out, text.substr(0, cut));
  if (cut < text.size()) out += "… (" + std::to_string(text.size()) + " bytes)";
  return out;
}

void append_json(std::string& out, JsonElement value) {
  JsonWriter scalar(out);
  bool first = true;
  const auto separate = [&] {
    if (!first) out += ',';
    first = false;
  };
  switch (value.type()) {
    case element_type::ARRAY:
      out += '[';
      for (const JsonElement entry : array_of(value)) {
        separate();
        append_json(out, entry);
      }
      out += ']';
      return;
    case element_type::OBJECT:
      out += '{';
      for (const auto& [key, member] : object_of(value)) {
        separate();
        append_json_string(out, key);
        out += ':';
        append_json(out, member);
      }
      out += '}';
      return;
    case element_type::INT64:
      scalar.integer(value.get_int64().value_unsafe());
      return;
    case element_type::UINT64:
      scalar.unsigned_integer(value.get_uint64().value_unsafe());
      return;
    case element_type::DOUBLE:
      append_double(out, value.get_double().value_unsafe());
      return;
    case element_type::STRING:
      if (const std::string_view digits = large_integer(string_of(value)); !digits.empty()) out += digits;
      else append_json_string(out, string_of(value));
      return;
    case element_type::BOOL:
      out += is_true(value) ? "true" : "false";
      return;
    case element_type::NULL_VALUE:
      out += "null";
      return;
  }
}

MaybeError read_int(std::string_view field, JsonElement value, int64_t low, int64_t high, int64_t* out) {
  const std::optional<int64_t> number = as_integer(value);
  if (!number || *number < low || *number > high)
    return invalid_value(field, "an integer from " + std::to_string(low) + " to " + std::to_string(high), value);
  *out = *number;
  return std::nullopt;
}

MaybeError read_int32(std::string_view field, JsonElement value, int32_t low, int32_t high, int32_t* out) {
  int64_t number = 0;
  if (MaybeError error = read_int(field, value, low, high, &number)) return error;
  *out = static_cast<int32_t>(number);
  return std::nullopt;
}

MaybeError read_seed(std::string_view field, JsonElement value, uint64_t* out) {
  if (value.is_uint64()) {
    *out = value.get_uint64().value_unsafe();
    return std::nullopt;
  }
  const std::optional<int64_t> number = as_integer(value);
  if (!number || *number < 0) return invalid_value(field, "an integer from 0 to 18446744073709551615", value);
  *out = static_cast<uint64_t>(*number);
  return std::nullopt;
}

MaybeError read_double(std::string_view field, JsonElement value, const FloatRange& range, double* out) {
  const std::optional<double> number = as_number(value);
  if (!number || !(range.low_included ? *number >= range.low : *number > range.low) || !(*number <= range.high))
    return invalid_value(field, "a number " + range_text(range), value);
  *out = *number;
  return std::nullopt;
}

MaybeError read_float(std::string_view field, JsonElement value, const FloatRange& range, float* out) {
  double number = 0;
  if (MaybeError error = read_double(field, value, range, &number)) return error;
  *out = static_cast<float>(number);
  // A number above 0 may be too small for a float.
  if (!range.low_included && !(static_cast<double>(*out) > range.low))
    return invalid_value(field, "a number " + range_text(range), value);
  return std::nullopt;
}

MaybeError read_bool(std::string_view field, JsonElement value, bool* out) {
  if (!value.is_bool()) return invalid_value(field, "true or false", value);
  *out = is_true(value);
  return std::nullopt;
}

MaybeError read_string(std::string_view field, JsonElement value, std::string* out) {
  if (!is_string(value)) return invalid_value(field, "a string", value);
  *out = string_of(value);
  return std::nullopt;
}

MaybeError read_strings(std::string_view field, JsonElement value, int32_t max_strings, std::vector<std::string>* out) {
  out->clear();
  const auto wrong = [&](JsonElement part) {
    return invalid_value(field, "an array of strings, none of them empty", part);
  };
  if (!value.is_array()) return wrong(value);
  for (const JsonElement entry : array_of(value)) {
    if (static_cast<int32_t>(out->size()) == max_strings)
      return field_error("invalid_value", field,
                         std::string(field) + " may hold at most " + std::to_string(max_strings) + " strings");
    if (!is_string(entry) || is_text(entry, "")) return wrong(entry);
    out->emplace_back(string_of(entry));
  }
  return std::nullopt;
}

MaybeError read_stop(std::string_view field, JsonElement value, int32_t max_strings, std::vector<std::string>* out) {
  if (value.is_array()) return read_strings(field, value, max_strings, out);
  if (!is_string(value) || is_text(value, ""))
    return invalid_value(field, "a string or an array of strings, none of them empty", value);
  out->assign(1, std::string(string_of(value)));
  return std::nullopt;
}

MaybeError read_token_ids(std::string_view field, JsonElement value, int32_t vocab_size, std::vector<TokenId>* out) {
  out->clear();
  if (!value.is_array()) return invalid_value(field, "an array of token ids", value);
  for (const JsonElement entry : array_of(value)) {
    const std::optional<int64_t> token = as_integer(entry);
    if (!token || *token < 0 || *token >= vocab_size)
      return invalid_value(std::string(field) + "[" + std::to_string(out->size()) + "]",
                           "a token id from 0 to " + std::to_string(vocab_size - 1), entry);
    out->push_back(static_cast<TokenId>(*token));
  }
  return std::nullopt;
}

MaybeError read_logit_bias(std::string_view field, JsonElement value, int32_t vocab_size,
                           std::vector<std::pair<TokenId, float>>* out) {
  out->clear();
  if (!value.is_object()) return invalid_value(field, "an object from token ids to numbers", value);
  for (const auto& [key, bias] : object_of(value)) {
    TokenId token = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token < 0 || token >= vocab_size) {
      std::string name;
      append_json_string(name, key.substr(0, 20));
      return field_error(
          "invalid_value", field,
          std::string(field) + ": " + name + " is not a token id from 0 to " + std::to_string(vocab_size - 1));
    }
    float number = 0;
    const std::string place = std::string(field) + "." + std::to_string(token);
    if (MaybeError error = read_float(place, bias, {-100, 100}, &number)) return error;
    out->emplace_back(token, number);
  }
  std::sort(out->begin(), out->end());
  const auto twice =
      std::adjacent_find(out->begin(), out->end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice == out->end()) return std::nullopt;
  return field_error("invalid_value", field,
                     std::string(field) + ": token " + std::to_string(twice->first) + " is given twice");
}

bool is_neutral(JsonElement value, Neutral neutral) {
  if (value.is_null()) return true;
  switch (neutral) {
    case Neutral::kNull:
      return false;
    case Neutral::kFalse:
      return is_false(value);
    case Neutral::kTrue:
      return is_true(value);
    case Neutral::kZero:
      return as_number(value) == 0.0;
    case Neutral::kOne:
      return as_number(value) == 1.0;
    case Neutral::kEmpty:
      return is_empty(value);
    case Neutral::kNoneOrAuto:
      return is_text(value, "none") || is_text(value, "auto");
    case Neutral::kTextOnly:
      return is_text_only(value);
  }
  return false;
}

std::string_view neutral_text(Neutral neutral) {
  switch (neutral) {
    case Neutral::kNull:
      return "null";
    case Neutral::kFalse:
      return "false";
    case Neutral::kTrue:
      return "true";
    case Neutral::kZero:
      return "0";
    case Neutral::kOne:
      return "1";
    case Neutral::kEmpty:
      return "empty";
    case Neutral::kNoneOrAuto:
      return "\"none\" or \"auto\"";
    case Neutral::kTextOnly:
      return "[\"text\"]";
  }
  return "null";
}

}  // namespace llmb
