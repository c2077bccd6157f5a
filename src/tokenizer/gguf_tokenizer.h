// The tokenizer and the chat template that a GGUF file holds among its values.
#pragma once

#include <map>
#include <string>

#include "base/gguf_file.h"
#include "base/status.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/tokenizer_state.h"

namespace llmb {

// The same as the tokenizer.json that the file was made from would hold: byte-level BPE ("gpt2", with the splitting
// that tokenizer.ggml.pre names) or sentencepiece BPE ("llama"). Sets the special tokens of `config`. kNotFound: there
// is none in the file; kUnsupported names what is not built.
Result<TokenizerFile> read_gguf_tokenizer(const GgufFile& file, TokenizerConfig* config);

// bos_token, eos_token, unk_token, pad_token … as text, for chat templates.
std::map<std::string, std::string> gguf_special_tokens(const GgufFile& file);

}  // namespace llmb
