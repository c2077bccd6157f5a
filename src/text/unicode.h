// UTF-8 and the few properties of characters that tokenizers ask for. All functions are pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace llmb {

constexpr char32_t kReplacementChar = 0xFFFD;
constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

// Bytes of the character that starts with `lead`, in valid UTF-8.
inline size_t utf8_length(char lead) {
  const auto b = static_cast<unsigned char>(lead);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

// The character at `*pos` of valid UTF-8; moves *pos past it. REQUIRES: *pos < text.size().
inline char32_t next_char(std::string_view text, size_t* pos) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + *pos;
  const size_t n = utf8_length(text[*pos]);
  *pos += n;
  switch (n) {
    case 1:
      return p[0];
    case 2:
      return (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    case 3:
      return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    default:
      return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
  }
}

// Where the last character of valid, non-empty UTF-8 begins.
inline size_t last_char_start(std::string_view text) {
  size_t i = text.size() - 1;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) --i;
  return i;
}

std::string to_valid_utf8(std::string_view bytes);  // one U+FFFD per maximal invalid subpart

// Properties as Hugging Face tokenizers has them: see unicode_tables.h.
bool is_whitespace(char32_t c);         // White_Space
bool is_numeric(char32_t c);            // Nd, Nl, No
bool is_punctuation(char32_t c);        // ASCII punctuation, P*
bool is_mark(char32_t c);               // M*
bool is_nonspacing_mark(char32_t c);    // Mn
bool is_control_or_format(char32_t c);  // C* but for unassigned characters
bool is_word_char(char32_t c);          // Alphabetic, M*, Nd, Pc, Join_Control (UTS 18, \w)
void append_lowercase(std::string* out, char32_t c);

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normalize_unicode(std::string_view text, NormalizationForm form);

// Where the extended grapheme cluster (UAX 29) that starts at `pos` ends. REQUIRES: pos < text.size().
size_t grapheme_end(std::string_view text, size_t pos);

// GPT-2's mapping of bytes to printable characters. char_to_byte: -1 for a character outside it.
char32_t byte_level_char(uint8_t byte);
int byte_level_byte(char32_t c);

}  // namespace llmb
