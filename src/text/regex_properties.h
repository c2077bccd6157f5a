// Sets of characters as Oniguruma has them, spelled for PCRE2: what may stand between brackets.
// Pure functions; their results are part of a pattern for options UTF and UCP.
#pragma once

#include <string>
#include <string_view>

namespace llmb {

std::string hex_escape(char32_t c);  // \x{41}

std::string space_items();                            // \s: White_Space
std::string hex_digit_items();                        // \h
const std::string& word_items();                      // \w between brackets
std::string lone_word_items();                        // \w outside brackets
std::string category_items(const std::string& name);  // a general category: L, Lu, …

// \p{name}: a general category, script, POSIX class or binary property. A name that PCRE2 does not know is kept, so
// that the pattern's compilation fails.
std::string property_items(const std::string& name);

// [:name:]; "" where there is no such class.
std::string posix_items(std::string_view name);

}  // namespace llmb
