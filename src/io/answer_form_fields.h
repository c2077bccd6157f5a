// Reads the form that a line asks its answer to have: OpenAI's response_format, vLLM's structured_outputs and guided_*.
#pragma once

#include "core/request.h"
#include "io/field_set.h"
#include "io/field_values.h"

namespace llmb {

// A form of the line takes the place of the default's; response_format {"type": "text"} asks for none. What a schema, a
// pattern or a grammar says is not looked at. An error where the line asks for two, or for something beside which no
// form can stand: beams, and ignore_eos, as answers end where they are complete. REQUIRES: the other params are read.
MaybeError read_answer_form(const FieldSet& fields, InputRequest* request);

}  // namespace llmb
