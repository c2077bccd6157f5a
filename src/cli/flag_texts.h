// Values of flags that are small languages: what their texts say.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/request.h"
#include "core/types.h"
#include "job/job_options.h"
#include "job/request_metrics.h"

namespace llmb {

// "ttft=200ms,tpot=50ms,e2el=2s" (units ms or s; none: ms).
Result<SloTargets> parse_slo(const std::string& text);

// {"50256": -100}, by increasing token. Whether the model has the tokens is not known here.
Result<std::vector<std::pair<TokenId, float>>> parse_logit_bias(const std::string& text);

// "a,b": names separated by commas, none of them empty.
Result<std::vector<std::string>> parse_names(const std::string& text);

// A template's text: `text` itself where it holds a "{" or a line break, else what is in the file of that name.
Result<std::string> read_template(const std::string& text);

// The form that all answers must have, of --json-schema and --grammar (names of files), --regex and --choice; null where
// none is given. An error where two are.
Result<std::shared_ptr<const AnswerForm>> parse_form(const std::string& json_schema, const std::string& regex,
                                                     const std::vector<std::string>& choices,
                                                     const std::string& grammar);

// NAME=DIR, of --adapter; of --lora-modules also vLLM's JSON {"name": …, "path": …}.
Result<std::vector<AdapterFolder>> parse_adapters(const std::vector<std::string>& adapters,
                                                  const std::vector<std::string>& lora_modules);

// "none", or kinds of drafters separated by commas; adds to `speculation`.
Status parse_speculative(const std::string& text, SpeculationOptions* speculation);

// The same as vLLM's JSON: {"method": "ngram", "num_speculative_tokens": 4}; "": changes nothing.
Status parse_speculative_config(const std::string& text, SpeculationOptions* speculation);

}  // namespace llmb
