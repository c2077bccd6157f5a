// The one place that knows which byte sequences are UTF-8 (RFC 3629): no overlong forms, no surrogates, at most
// U+10FFFF.
#pragma once

#include <cstddef>

namespace llmb {

// Length in bytes of the well-formed character at `p` (1 to 4), or 0 where there is none. REQUIRES: p < end.
inline size_t utf8_length(const char* p, const char* end) {
  const auto byte = [p](size_t i) { return static_cast<unsigned char>(p[i]); };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const auto left = static_cast<size_t>(end - p);
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return left >= 2 && continues(1) ? 2 : 0;
  if (lead < 0xF0) {
    if (left < 3 || !continues(1) || !continues(2)) return 0;
    if (lead == 0xE0 && byte(1) < 0xA0) return 0;
    if (lead == 0xED && byte(1) >= 0xA0) return 0;
    return 3;
  }
  if (lead > 0xF4 || left < 4 || !continues(1) || !continues(2) || !continues(3)) return 0;
  if (lead == 0xF0 && byte(1) < 0x90) return 0;
  if (lead == 0xF4 && byte(1) >= 0x90) return 0;
  return 4;
}

}  // namespace llmb
