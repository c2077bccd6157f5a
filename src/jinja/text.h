// Python's str over UTF-8: counting and finding code points, classes of characters, repr, numbers as text.
// Pure functions; all text given here is valid UTF-8 (is_valid_utf8 checks what comes from outside).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/unicode.h"

namespace llmb::jinja {

using llmb::is_valid_utf8;
using llmb::next_char;

int64_t count_chars(std::string_view text);
uint64_t hash_text(std::string_view text);

// The code point that ends before byte `at`, which moves to its first byte.
uint32_t previous_char(std::string_view text, size_t* at);
// Byte offset of code point number `index` (text.size() where there are fewer).
size_t char_offset(std::string_view text, int64_t index);

bool is_space(uint32_t c);  // str.isspace, and \s of a str pattern
bool is_alpha(uint32_t c);
bool is_numeric(uint32_t c);
inline bool is_alnum(uint32_t c) { return is_alpha(c) || is_numeric(c); }
bool is_printable(uint32_t c);

// chars: none for white space, else the set of characters to take away.
enum class Side { kLeft, kRight, kBoth };
std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> chars = std::nullopt);

// Linear-time search. npos where it is not there.
size_t find_text(std::string_view haystack, std::string_view needle, size_t from = 0);

std::string repr_text(std::string_view text);
std::string repr_float(double value);
std::string escape_html(std::string_view text);
std::string quote_url(std::string_view text, bool for_query);

// int(text, base) and float(text) of Python; nullopt where they raise ValueError (or where an int passes 64 bits).
std::optional<int64_t> parse_int(std::string_view text, int base);
std::optional<double> parse_float(std::string_view text);

}  // namespace llmb::jinja
