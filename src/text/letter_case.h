// Upper, lower and title case after Unicode's special casing, as Python's str has them. Pure and thread-safe; all text
// is valid UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace llmb {

bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);    // str.title: each letter behind one that is none
std::string capitalize(std::string_view text);  // the first character in title case, the others in lower case

}  // namespace llmb
