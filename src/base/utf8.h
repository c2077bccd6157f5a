// The one place that knows which byte sequences are UTF-8 (RFC 3629): no overlong forms, no surrogates, at most
// U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace llmb {

// The first character of possibly broken UTF-8.
struct Utf8Step {
  enum Kind { kValid, kInvalid, kIncomplete } kind;
  // kValid: of the character; kInvalid: of the maximal subpart that becomes one U+FFFD (Unicode ch. 3.9); kIncomplete:
  // all that is there.
  size_t length;
};

// REQUIRES: not empty.
inline Utf8Step utf8_step(std::string_view bytes) {
  const auto byte = [bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8Step::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Step::kInvalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and everything past U+10FFFF (Unicode, table 3-7).
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i >= bytes.size()) return {Utf8Step::kIncomplete, i};
    const bool ok = i == 1 ? (byte(1) >= low && byte(1) <= high) : (byte(i) & 0xC0) == 0x80;
    if (!ok) return {Utf8Step::kInvalid, i};
  }
  return {Utf8Step::kValid, length};
}

// Length in bytes of the well-formed character at `p` (1 to 4), or 0 where there is none. REQUIRES: p < end.
inline size_t utf8_length(const char* p, const char* end) {
  const Utf8Step step = utf8_step({p, static_cast<size_t>(end - p)});
  return step.kind == Utf8Step::kValid ? step.length : 0;
}

inline bool is_valid_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    if (static_cast<unsigned char>(bytes[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Step step = utf8_step(bytes.substr(i));
    if (step.kind != Utf8Step::kValid) return false;
    i += step.length;
  }
  return true;
}

// The text may begin or end within a character: counts those that begin in it.
inline int64_t num_characters(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

// REQUIRES: c <= 0x1FFFFF.
inline void append_utf8(std::string* out, char32_t c) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

}  // namespace llmb
