// Parts that records of several forms have. Private to the writers of records.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/completion.h"
#include "io/json_writer.h"
#include "io/result_writer.h"

namespace llmb {

std::string to_hex(uint64_t hash);
// One to one.
uint64_t mix_bits(uint64_t x);
// 32 digits. No two lines of a job have the first half in common.
std::string record_id(const JobStamp& stamp, const LineRef& line);

// The value of a log-probability; the others write a member or a value, as the head of result_writer.h says.
void write_logprob(JsonWriter& json, float logprob);
void write_id(JsonWriter& json, const std::string& id_json);
void write_hash(JsonWriter& json, uint64_t hash);
void write_usage(JsonWriter& json, const Completion& completion);
void write_metrics(JsonWriter& json, const RequestLatency& latency);
void write_finish(JsonWriter& json, const Choice& choice);
void write_token_ids(JsonWriter& json, const Choice& choice);
void write_embedding(JsonWriter& json, const Choice& choice, bool as_base64);  // a value
// The prompt's tokens, the first of which has none, as in write_logprob_list with ids.
void write_prompt_logprobs(JsonWriter& json, const Completion& c);
// In vLLM's form: for each token an object by ids.
void write_prompt_logprobs_by_id(JsonWriter& json, const Completion& c);
// OpenAI's chat form, and with ids the native one.
void write_logprob_list(JsonWriter& json, const Choice& choice, bool with_ids);
void write_place(JsonWriter& json, const LineRef& line, const RequestError& error);

}  // namespace llmb
