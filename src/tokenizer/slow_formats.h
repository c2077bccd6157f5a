// The tokenizer files that came before tokenizer.json, read into the same form.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/tokenizer_state.h"

namespace llmb {

inline constexpr size_t kMaxMergeWork = size_t{1} << 32;  // bytes hashed while looking for the parts of tokens

// Reads what the directory has: vocab.json + merges.txt, encoder.json + vocab.bpe, tokenizer.model, tiktoken.model or
// *.tiktoken. Fills in the special tokens that go with it by default. not_found where none of the files is there.
Result<TokenizerFile> read_slow_format(const std::string& model_dir, TokenizerConfig* config);

// sentencepiece's tokenizer.model, BPE or unigram.
Result<TokenizerFile> read_sentencepiece(std::string_view bytes, TokenizerConfig* config);

// tiktoken's ranks. How text is split is told by tokenizer_config.json's tokenizer_class (QWenTokenizer and Kimi's
// TikTokenTokenizer), else recognised from the tokens, with a warning; Llama 3's where that fails.
Result<TokenizerFile> read_tiktoken(std::string_view bytes, TokenizerConfig* config);
bool looks_like_tiktoken(std::string_view bytes);

}  // namespace llmb
