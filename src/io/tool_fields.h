// Reads tools, and whether an answer must call one of them.
#pragma once

#include "core/chat_messages.h"
#include "io/field_set.h"

namespace llmb {

// Sets what is about tools. With tool_choice "none" there are none. Where an answer must call some, each must be a
// function with a name of letters, digits, _, - and ., and a name that is chosen must be one of theirs.
MaybeError read_tools(const FieldSet& fields, ChatMessages* chat);

}  // namespace llmb
