// The tokenizer that a GGUF file holds among its values.
#pragma once

#include "base/status.h"
#include "formats/gguf_file.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/tokenizer_state.h"

namespace llmb {

// The same as the tokenizer.json that the file was made from would hold: byte-level BPE ("gpt2", with the splitting
// that tokenizer.ggml.pre names) or sentencepiece BPE ("llama"). Sets the special tokens of `config`. kNotFound: there
// is none in the file; kUnsupported names what is not built.
Result<TokenizerFile> read_gguf_tokenizer(const GgufFile& file, TokenizerConfig* config);

}  // namespace llmb
