// Reads one field's JSON value into the type and range that the request needs, or says what was expected.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/completion.h"
#include "core/request.h"
#include "io/json_scan.h"
#include "io/request_fields.h"

namespace llmb {

using JsonElement = simdjson::dom::element;

// simdjson tells of memory that it could not have as of a fault in the text.
inline void throw_if_out_of_memory(simdjson::error_code code) {
  if (code == simdjson::MEMALLOC) throw std::bad_alloc();
}

// The value as the type that it has. REQUIRES: value.is_string() and so on.
inline std::string_view string_of(JsonElement value) { return value.get_string().value_unsafe(); }
// A large integer is held as a string and is none (json_scan.h).
inline bool is_string(JsonElement value) { return value.is_string() && large_integer(string_of(value)).empty(); }
inline simdjson::dom::array array_of(JsonElement value) { return value.get_array().value_unsafe(); }
inline simdjson::dom::object object_of(JsonElement value) { return value.get_object().value_unsafe(); }

// nullopt: fine.
using MaybeError = std::optional<RequestError>;

RequestError field_error(std::string_view code, std::string_view field, std::string message);

// "field must be <expected>; got <value>".
RequestError invalid_value(std::string_view field, std::string_view expected, JsonElement value);

// The value's JSON text, short enough for a message: long strings are cut, containers named.
std::string shown(JsonElement value);

// Behind messages on lines that hold an array or its beginning, as the lines of a JSON file do.
inline constexpr std::string_view kArrayHint = "; for a file that is one array: jq -c '.[]' FILE | llm-batch …";

RequestError not_an_object(JsonElement line);

// The value's JSON text. A double stays a double: 1.0, not 1.
void append_json(std::string& out, JsonElement value);

struct FloatRange {
  double low, high;
  bool low_included = true;
};

MaybeError read_int(std::string_view field, JsonElement value, int64_t low, int64_t high, int64_t* out);
MaybeError read_int32(std::string_view field, JsonElement value, int32_t low, int32_t high, int32_t* out);
MaybeError read_seed(std::string_view field, JsonElement value, uint64_t* out);
MaybeError read_double(std::string_view field, JsonElement value, const FloatRange& range, double* out);
MaybeError read_float(std::string_view field, JsonElement value, const FloatRange& range, float* out);
MaybeError read_bool(std::string_view field, JsonElement value, bool* out);
MaybeError read_string(std::string_view field, JsonElement value, std::string* out);
// An array of at most max_strings strings, none of them empty; read_stop also takes one such string alone.
MaybeError read_strings(std::string_view field, JsonElement value, int32_t max_strings, std::vector<std::string>* out);
MaybeError read_stop(std::string_view field, JsonElement value, int32_t max_strings, std::vector<std::string>* out);
MaybeError read_token_ids(std::string_view field, JsonElement value, int32_t vocab_size, std::vector<TokenId>* out);
MaybeError read_logit_bias(std::string_view field, JsonElement value, int32_t vocab_size,
                           std::vector<std::pair<TokenId, float>>* out);

bool is_neutral(JsonElement value, Neutral neutral);
std::string_view neutral_text(Neutral neutral);  // for messages

}  // namespace llmb
