// Reads how to sample, when to stop and what to return: every field of a request but its prompt.
#pragma once

#include "core/request.h"
#include "io/field_set.h"
#include "io/request_parser.h"

namespace llmb {

// Fills `request` (its form is known, its params are the defaults) from the fields that are there; the first field that
// is out of range is the error.
MaybeError read_params(const FieldSet& fields, const RequestLimits& limits, InputRequest* request);

// How it cuts prompts, as vLLM has it: -1 is the model's own limit, and the beginning is what is cut where nothing says
// otherwise.
MaybeError read_truncation(const FieldSet& fields, InputRequest* request);

// The part of it that may also stand beside an OpenAI body: model, arrival_ms, and what to return.
MaybeError read_outer_params(const FieldSet& fields, InputRequest* request);

}  // namespace llmb
