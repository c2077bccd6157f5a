// Records of OpenAI's batch form: result_writer.h. Private to the writer of records.
#pragma once

#include <cstdint>
#include <string>

#include "core/completion.h"
#include "io/json_writer.h"
#include "io/result_writer.h"

namespace llmb {

// Unique among the calls of a record, of which `record` is the id. Short ones are nine letters and digits: templates of
// Mistral refuse a conversation with others.
std::string call_id(const std::string& record, int64_t choice, size_t call, bool is_short);

void write_openai(JsonWriter& json, const Completion& completion, const ResultFormat& format);

}  // namespace llmb
