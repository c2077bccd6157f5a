// The part of a record that holds scores of labels, pairs or documents. Private to the writers of records.
#pragma once

#include <string>
#include <vector>

#include "core/completion.h"
#include "io/json_writer.h"
#include "io/result_writer.h"

namespace llmb {

// Members of a native record.
void write_scores(JsonWriter& json, const Completion& completion, const std::vector<std::string>& labels);

// The body of a batch record, as vLLM answers /v1/classify, /v1/score and /v1/rerank.
void write_scores_body(JsonWriter& json, const Completion& completion, const ResultFormat& format,
                       const std::string& id);

}  // namespace llmb
