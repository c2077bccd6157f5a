#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "text/unicode_tables.h"

namespace llmb {

namespace {

bool contains(const CharRange* ranges, size_t num_ranges, char32_t c) {
  const CharRange* end = ranges + num_ranges;
  const CharRange* it = std::lower_bound(ranges, end, c, [](const CharRange& r, char32_t x) { return r.last < x; });
  return it != end && it->first <= c;
}

struct ByteLevelTable {
  std::array<char32_t, 256> chars{};
  std::array<int16_t, 512> bytes{};

  ByteLevelTable() {
    bytes.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      chars[b] = printable ? static_cast<char32_t>(b) : next++;
      bytes[chars[b]] = static_cast<int16_t>(b);
    }
  }
};

const ByteLevelTable& byte_level_table() {
  static const ByteLevelTable table;
  return table;
}

}  // namespace

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Step step = utf8_step(bytes.substr(i));
    out += step.kind == Utf8Step::kValid ? bytes.substr(i, step.length) : kReplacementUtf8;
    i += step.length;
  }
  return out;
}

bool is_whitespace(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) { return c < 0x80 ? c >= '0' && c <= '9' : contains(kNumeric, kNumNumeric, c); }

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  return contains(kPunctuation, kNumPunctuation, c);
}

bool is_mark(char32_t c) { return c >= 0x300 && contains(kMarks, kNumMarks, c); }
bool is_nonspacing_mark(char32_t c) { return c >= 0x300 && contains(kNonspacingMarks, kNumNonspacingMarks, c); }
bool is_control_or_format(char32_t c) { return c == 0 || contains(kControl, kNumControl, c); }

bool is_word_char(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  return contains(kWordChars, kNumWordChars, c);
}

void append_lowercase(std::string* out, char32_t c) {
  if (c == 0x130) {  // the one character whose full lower case is two
    append_utf8(out, 'i');
    append_utf8(out, 0x307);
    return;
  }
  const CharPair* end = kNewLowercase + kNumNewLowercase;
  const CharPair* it =
      std::lower_bound(kNewLowercase, end, c, [](const CharPair& p, char32_t x) { return p.from < x; });
  const bool is_new = it != end && it->from == c;
  append_utf8(out, is_new ? it->to : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

namespace {

// Appends the normal form of a stretch in which utf8proc and Hugging Face agree on every character.
void append_normalized(std::string_view text, utf8proc_option_t flags, std::string* out) {
  if (text.empty()) return;
  const auto* in = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  std::vector<utf8proc_int32_t> buffer(text.size() + 16);
  utf8proc_ssize_t n = utf8proc_decompose(in, size, buffer.data(), static_cast<utf8proc_ssize_t>(buffer.size()), flags);
  if (n > static_cast<utf8proc_ssize_t>(buffer.size())) {
    buffer.resize(static_cast<size_t>(n));
    n = utf8proc_decompose(in, size, buffer.data(), n, flags);
  }
  LLMB_CHECK_MSG(n >= 0, "text is not valid UTF-8");
  n = utf8proc_normalize_utf32(buffer.data(), n, flags);
  LLMB_CHECK(n >= 0);
  for (utf8proc_ssize_t i = 0; i < n; ++i) append_utf8(out, static_cast<char32_t>(buffer[i]));
}

}  // namespace

std::string normalize_unicode(std::string_view text, NormalizationForm form) {
  int options = UTF8PROC_STABLE;
  if (form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc) options |= UTF8PROC_COMPOSE;
  else options |= UTF8PROC_DECOMPOSE;
  if (form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd) options |= UTF8PROC_COMPAT;
  const auto flags = static_cast<utf8proc_option_t>(options);
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = next_char(text, &pos);
    if (c < 0x300 || !contains(kNotNormalized, kNumNotNormalized, c)) continue;
    append_normalized(text.substr(done, begin - done), flags, &out);
    out += text.substr(begin, pos - begin);
    done = pos;
  }
  append_normalized(text.substr(done), flags, &out);
  return out;
}

size_t grapheme_end(std::string_view text, size_t pos) {
  utf8proc_int32_t state = 0;
  char32_t previous = next_char(text, &pos);
  while (pos < text.size()) {
    size_t next = pos;
    const char32_t c = next_char(text, &next);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(previous), static_cast<utf8proc_int32_t>(c),
                                         &state)) {
      break;
    }
    previous = c;
    pos = next;
  }
  return pos;
}

char32_t byte_level_char(uint8_t byte) { return byte_level_table().chars[byte]; }

int byte_level_byte(char32_t c) { return c < 512 ? byte_level_table().bytes[c] : -1; }

}  // namespace llmb
