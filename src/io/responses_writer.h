// The body of an answer to a /v1/responses line: a Response object. Private to the writer of records.
#pragma once

#include <string>

#include "core/completion.h"
#include "io/json_writer.h"
#include "io/result_writer.h"

namespace llmb {

// id: the record's. REQUIRES: one choice.
void write_response(JsonWriter& json, const Completion& completion, const ResultFormat& format, const std::string& id);

}  // namespace llmb
