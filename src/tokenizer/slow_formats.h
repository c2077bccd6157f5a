// The tokenizer files that came before tokenizer.json, read into the same form.
#pragma once

#include <string>

#include "base/status.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/tokenizer_state.h"

namespace llmb {

// vocab.json + merges.txt, or encoder.json + vocab.bpe: byte-level BPE as tokenizer_config.json's tokenizer_class has it.
// Fills in the special tokens that the class has by default. not_found where none of the files is there.
Result<TokenizerFile> read_slow_format(const std::string& model_dir, TokenizerConfig* config);

}  // namespace llmb
