// The steps that decoders are made of. decoder.h says what a step is.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "text/regex.h"
#include "tokenizer/decoder.h"

namespace llmb {

using DecoderSpecPtr = std::unique_ptr<DecoderSpec>;

// GPT-2's characters back to bytes; all tokens become one, whose bytes are read as UTF-8 with U+FFFD for what is not.
DecoderSpecPtr make_byte_level_decoder();
// A run of byte tokens <0xNN> becomes one token where it is valid UTF-8 as a whole, else one U+FFFD per byte.
DecoderSpecPtr make_byte_fallback_decoder();
// Everything becomes one token.
DecoderSpecPtr make_fuse_decoder();
// Up to `start` and `stop` copies of a character are cut from a token's ends.
DecoderSpecPtr make_strip_decoder(std::string content, size_t start, size_t stop);
// A suffix marks the ends of words; the last token's gives no space.
DecoderSpecPtr make_bpe_decoder(std::string suffix);
DecoderSpecPtr make_replace_decoder(std::string from, std::string to);  // `from` not empty
DecoderSpecPtr make_replace_decoder(Regex from, std::string to);
// The replacement character becomes a space, in the first token nothing where `drops_first`.
DecoderSpecPtr make_metaspace_decoder(std::string replacement, bool drops_first);
// Tokens without the prefix begin a word, the first apart; `cleanup` draws punctuation to the word before it.
DecoderSpecPtr make_word_piece_decoder(std::string prefix, bool cleanup);
DecoderSpecPtr make_join_decoder();  // tokens with spaces between them

}  // namespace llmb
