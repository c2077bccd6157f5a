// Texts that answers may resemble, for drafts by lookup.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "core/types.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

// The member "text" of each line of a .jsonl file, such as an earlier output; any other file is one text. At most the
// first 2^22 tokens. The tokenizer may be null, which is refused, as is a file without any text.
Result<std::vector<std::vector<TokenId>>> read_corpus(const std::string& path, const Tokenizer* tokenizer);

}  // namespace llmb
