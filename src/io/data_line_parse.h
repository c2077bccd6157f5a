// Reads a line of data. Private to the parser of requests.
#pragma once

#include <string>
#include <string_view>

#include "core/request.h"
#include "io/data_line.h"
#include "io/field_values.h"
#include "io/line_reader.h"

namespace llmb {

// The line's fields as a JSON object: a row's columns, or {"text": line}. REQUIRES: no JSON line
Result<std::string> fields_of_line(const InputLine& line);

// Fills id and prompt from a line of this format; `fields_json` is the text of `fields`, an object.
MaybeError read_data_line(JsonElement fields, std::string_view fields_json, InputFormat format,
                          const DataMapping& mapping, InputRequest* request);

// The fields that the record repeats, as a JSON object; "": none are wanted, or `fields` is no object.
std::string kept_fields(JsonElement fields, const DataMapping& mapping);

// "; it has a, b and 3 others": the names of an object's members, for messages.
std::string names_of_fields(JsonElement fields);

}  // namespace llmb
