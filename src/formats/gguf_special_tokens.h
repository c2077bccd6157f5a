// The special tokens that a GGUF file names among its values.
#pragma once

#include <map>
#include <string>

#include "formats/gguf_file.h"

namespace llmb {

// bos_token, eos_token, unk_token, pad_token, … → text. Only texts that are UTF-8, not empty and at most 1,024 bytes.
std::map<std::string, std::string> gguf_special_tokens(const GgufFile& file);

}  // namespace llmb
