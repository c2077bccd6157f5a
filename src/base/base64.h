// Base64 (RFC 4648). Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace llmb {

bool decode_base64(std::string_view text, std::string* out);  // false: not base64; padding may be missing
std::string encode_base64(std::string_view bytes);

}  // namespace llmb
