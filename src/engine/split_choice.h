// Takes the answers of OpenAI's chat lines apart, once they are finished.
#pragma once

#include "core/completion.h"
#include "core/request.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

// Sets the choice's parts and reasoning tokens where its request asks for a split and there is something to split.
// hides_last: its last token ended it and is not in its text.
void split_choice(const Request& request, const Tokenizer& tokenizer, bool hides_last, Choice* choice);

}  // namespace llmb
