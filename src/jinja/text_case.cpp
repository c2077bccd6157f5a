// Classes of characters and case mapping, after Unicode as Python's str methods use it.
#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "jinja/text.h"

namespace llmb::jinja {

namespace {

// Characters whose upper or title case is more than one character (Unicode 14, SpecialCasing.txt, the rules without
// conditions). Unused places are 0.
struct Special {
  uint32_t c;
  std::array<uint32_t, 3> upper, title;
};
constexpr Special kSpecial[] = {
    // clang-format off
    {0x00DF, {0x0053, 0x0053}, {0x0053, 0x0073}}, {0x0149, {0x02BC, 0x004E}, {0x02BC, 0x004E}},
    {0x01F0, {0x004A, 0x030C}, {0x004A, 0x030C}}, {0x0390, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}},
    {0x03B0, {0x03A5, 0x0308, 0x0301}, {0x03A5, 0x0308, 0x0301}}, {0x0587, {0x0535, 0x0552}, {0x0535, 0x0582}},
    {0x1E96, {0x0048, 0x0331}, {0x0048, 0x0331}}, {0x1E97, {0x0054, 0x0308}, {0x0054, 0x0308}},
    {0x1E98, {0x0057, 0x030A}, {0x0057, 0x030A}}, {0x1E99, {0x0059, 0x030A}, {0x0059, 0x030A}},
    {0x1E9A, {0x0041, 0x02BE}, {0x0041, 0x02BE}}, {0x1F50, {0x03A5, 0x0313}, {0x03A5, 0x0313}},
    {0x1F52, {0x03A5, 0x0313, 0x0300}, {0x03A5, 0x0313, 0x0300}},
    {0x1F54, {0x03A5, 0x0313, 0x0301}, {0x03A5, 0x0313, 0x0301}},
    {0x1F56, {0x03A5, 0x0313, 0x0342}, {0x03A5, 0x0313, 0x0342}}, {0x1F80, {0x1F08, 0x0399}, {0x1F88}},
    {0x1F81, {0x1F09, 0x0399}, {0x1F89}}, {0x1F82, {0x1F0A, 0x0399}, {0x1F8A}}, {0x1F83, {0x1F0B, 0x0399}, {0x1F8B}},
    {0x1F84, {0x1F0C, 0x0399}, {0x1F8C}}, {0x1F85, {0x1F0D, 0x0399}, {0x1F8D}}, {0x1F86, {0x1F0E, 0x0399}, {0x1F8E}},
    {0x1F87, {0x1F0F, 0x0399}, {0x1F8F}}, {0x1F88, {0x1F08, 0x0399}, {0x1F88}}, {0x1F89, {0x1F09, 0x0399}, {0x1F89}},
    {0x1F8A, {0x1F0A, 0x0399}, {0x1F8A}}, {0x1F8B, {0x1F0B, 0x0399}, {0x1F8B}}, {0x1F8C, {0x1F0C, 0x0399}, {0x1F8C}},
    {0x1F8D, {0x1F0D, 0x0399}, {0x1F8D}}, {0x1F8E, {0x1F0E, 0x0399}, {0x1F8E}}, {0x1F8F, {0x1F0F, 0x0399}, {0x1F8F}},
    {0x1F90, {0x1F28, 0x0399}, {0x1F98}}, {0x1F91, {0x1F29, 0x0399}, {0x1F99}}, {0x1F92, {0x1F2A, 0x0399}, {0x1F9A}},
    {0x1F93, {0x1F2B, 0x0399}, {0x1F9B}}, {0x1F94, {0x1F2C, 0x0399}, {0x1F9C}}, {0x1F95, {0x1F2D, 0x0399}, {0x1F9D}},
    {0x1F96, {0x1F2E, 0x0399}, {0x1F9E}}, {0x1F97, {0x1F2F, 0x0399}, {0x1F9F}}, {0x1F98, {0x1F28, 0x0399}, {0x1F98}},
    {0x1F99, {0x1F29, 0x0399}, {0x1F99}}, {0x1F9A, {0x1F2A, 0x0399}, {0x1F9A}}, {0x1F9B, {0x1F2B, 0x0399}, {0x1F9B}},
    {0x1F9C, {0x1F2C, 0x0399}, {0x1F9C}}, {0x1F9D, {0x1F2D, 0x0399}, {0x1F9D}}, {0x1F9E, {0x1F2E, 0x0399}, {0x1F9E}},
    {0x1F9F, {0x1F2F, 0x0399}, {0x1F9F}}, {0x1FA0, {0x1F68, 0x0399}, {0x1FA8}}, {0x1FA1, {0x1F69, 0x0399}, {0x1FA9}},
    {0x1FA2, {0x1F6A, 0x0399}, {0x1FAA}}, {0x1FA3, {0x1F6B, 0x0399}, {0x1FAB}}, {0x1FA4, {0x1F6C, 0x0399}, {0x1FAC}},
    {0x1FA5, {0x1F6D, 0x0399}, {0x1FAD}}, {0x1FA6, {0x1F6E, 0x0399}, {0x1FAE}}, {0x1FA7, {0x1F6F, 0x0399}, {0x1FAF}},
    {0x1FA8, {0x1F68, 0x0399}, {0x1FA8}}, {0x1FA9, {0x1F69, 0x0399}, {0x1FA9}}, {0x1FAA, {0x1F6A, 0x0399}, {0x1FAA}},
    {0x1FAB, {0x1F6B, 0x0399}, {0x1FAB}}, {0x1FAC, {0x1F6C, 0x0399}, {0x1FAC}}, {0x1FAD, {0x1F6D, 0x0399}, {0x1FAD}},
    {0x1FAE, {0x1F6E, 0x0399}, {0x1FAE}}, {0x1FAF, {0x1F6F, 0x0399}, {0x1FAF}},
    {0x1FB2, {0x1FBA, 0x0399}, {0x1FBA, 0x0345}}, {0x1FB3, {0x0391, 0x0399}, {0x1FBC}},
    {0x1FB4, {0x0386, 0x0399}, {0x0386, 0x0345}}, {0x1FB6, {0x0391, 0x0342}, {0x0391, 0x0342}},
    {0x1FB7, {0x0391, 0x0342, 0x0399}, {0x0391, 0x0342, 0x0345}}, {0x1FBC, {0x0391, 0x0399}, {0x1FBC}},
    {0x1FC2, {0x1FCA, 0x0399}, {0x1FCA, 0x0345}}, {0x1FC3, {0x0397, 0x0399}, {0x1FCC}},
    {0x1FC4, {0x0389, 0x0399}, {0x0389, 0x0345}}, {0x1FC6, {0x0397, 0x0342}, {0x0397, 0x0342}},
    {0x1FC7, {0x0397, 0x0342, 0x0399}, {0x0397, 0x0342, 0x0345}}, {0x1FCC, {0x0397, 0x0399}, {0x1FCC}},
    {0x1FD2, {0x0399, 0x0308, 0x0300}, {0x0399, 0x0308, 0x0300}},
    {0x1FD3, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}}, {0x1FD6, {0x0399, 0x0342}, {0x0399, 0x0342}},
    {0x1FD7, {0x0399, 0x0308, 0x0342}, {0x0399, 0x0308, 0x0342}},
    {0x1FE2, {0x03A5, 0x0308, 0x0300}, {0x03A5, 0x0308, 0x0300}},
    {0x1FE3, {0x03A5, 0x0308, 0x0301}, {0x03A5, 0x0308, 0x0301}}, {0x1FE4, {0x03A1, 0x0313}, {0x03A1, 0x0313}},
    {0x1FE6, {0x03A5, 0x0342}, {0x03A5, 0x0342}}, {0x1FE7, {0x03A5, 0x0308, 0x0342}, {0x03A5, 0x0308, 0x0342}},
    {0x1FF2, {0x1FFA, 0x0399}, {0x1FFA, 0x0345}}, {0x1FF3, {0x03A9, 0x0399}, {0x1FFC}},
    {0x1FF4, {0x038F, 0x0399}, {0x038F, 0x0345}}, {0x1FF6, {0x03A9, 0x0342}, {0x03A9, 0x0342}},
    {0x1FF7, {0x03A9, 0x0342, 0x0399}, {0x03A9, 0x0342, 0x0345}}, {0x1FFC, {0x03A9, 0x0399}, {0x1FFC}},
    {0xFB00, {0x0046, 0x0046}, {0x0046, 0x0066}}, {0xFB01, {0x0046, 0x0049}, {0x0046, 0x0069}},
    {0xFB02, {0x0046, 0x004C}, {0x0046, 0x006C}}, {0xFB03, {0x0046, 0x0046, 0x0049}, {0x0046, 0x0066, 0x0069}},
    {0xFB04, {0x0046, 0x0046, 0x004C}, {0x0046, 0x0066, 0x006C}}, {0xFB05, {0x0053, 0x0054}, {0x0053, 0x0074}},
    {0xFB06, {0x0053, 0x0054}, {0x0053, 0x0074}}, {0xFB13, {0x0544, 0x0546}, {0x0544, 0x0576}},
    {0xFB14, {0x0544, 0x0535}, {0x0544, 0x0565}}, {0xFB15, {0x0544, 0x053B}, {0x0544, 0x056B}},
    {0xFB16, {0x054E, 0x0546}, {0x054E, 0x0576}}, {0xFB17, {0x0544, 0x053D}, {0x0544, 0x056D}},
    // clang-format on
};

const Special* find_special(uint32_t c) {
  const auto* at = std::lower_bound(std::begin(kSpecial), std::end(kSpecial), c,
                                    [](const Special& s, uint32_t value) { return s.c < value; });
  return at != std::end(kSpecial) && at->c == c ? at : nullptr;
}

utf8proc_category_t category(uint32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

struct Span {
  uint32_t first, last;
};

template <size_t N>
bool in_any(const Span (&spans)[N], uint32_t c) {
  return std::any_of(std::begin(spans), std::end(spans), [c](Span s) { return c >= s.first && c <= s.last; });
}

// Unicode's Other_Lowercase and Other_Uppercase.
constexpr Span kOtherLower[] = {
    {0xAA, 0xAA},     {0xBA, 0xBA},     {0x2B0, 0x2B8},     {0x2C0, 0x2C1},     {0x2E0, 0x2E4},     {0x345, 0x345},
    {0x37A, 0x37A},   {0x1D2C, 0x1D6A}, {0x1D78, 0x1D78},   {0x1D9B, 0x1DBF},   {0x2071, 0x2071},   {0x207F, 0x207F},
    {0x2090, 0x209C}, {0x2170, 0x217F}, {0x24D0, 0x24E9},   {0x2C7C, 0x2C7D},   {0xA69C, 0xA69D},   {0xA770, 0xA770},
    {0xA7F8, 0xA7F9}, {0xAB5C, 0xAB5F}, {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}};
constexpr Span kOtherUpper[] = {
    {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
// Digits that are not decimal: superscripts, circled and bracketed digits and the like.
constexpr Span kOtherDigit[] = {{0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
                                {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
                                {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
                                {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
                                {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};

bool is_cased(uint32_t c) { return is_lower(c) || is_upper(c) || is_title(c); }

bool is_case_ignorable(uint32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  constexpr uint32_t kMid[] = {0x27,   0x2E,   0x3A,   0xB7,   0x387,  0x55F,  0x5F4,  0x2018, 0x2019,
                               0x2024, 0x2027, 0xFE13, 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
  return std::find(std::begin(kMid), std::end(kMid), c) != std::end(kMid);
}

// Whether the sigma at [begin, end) of `text` ends a word.
bool is_final_sigma(std::string_view text, size_t begin, size_t end) {
  uint32_t c = 0;
  for (size_t at = begin; at > 0;) {
    c = previous_char(text, &at);
    if (!is_case_ignorable(c)) break;
    c = 0;
  }
  if (c == 0 || !is_cased(c)) return false;
  for (size_t at = end; at < text.size();) {
    c = next_char(text, &at);
    if (!is_case_ignorable(c)) return !is_cased(c);
  }
  return true;
}

// The lower case of the character at [begin, end) of `text`.
void append_lower(std::string* out, std::string_view text, uint32_t c, size_t begin, size_t end) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (c == 0x130) {
    append_utf8(out, 'i');
    append_utf8(out, 0x307);
  } else if (c == 0x3A3) {
    append_utf8(out, is_final_sigma(text, begin, end) ? 0x3C2 : 0x3C3);
  } else {
    append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_all(std::string* out, const std::array<uint32_t, 3>& chars) {
  for (const uint32_t c : chars) {
    if (c != 0) append_utf8(out, c);
  }
}

void append_upper(std::string* out, uint32_t c) {
  if (c < 0x80) return out->push_back(static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
  if (const Special* s = find_special(c)) return append_all(out, s->upper);
  append_utf8(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string* out, uint32_t c) {
  if (const Special* s = find_special(c)) return append_all(out, s->title);
  append_utf8(out, static_cast<uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

// Calls visit(c, begin, end) for each character.
template <typename Visit>
void for_each_char(std::string_view text, const Visit& visit) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t c = next_char(text, &at);
    visit(c, begin, at);
  }
}

}  // namespace

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_alpha(uint32_t c) {
  if (c < 0x80) return (c | 32) >= 'a' && (c | 32) <= 'z';
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(uint32_t c) { return is_decimal(c) || in_any(kOtherDigit, c); }

bool is_numeric(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

bool is_printable(uint32_t c) {
  if (c < 0x7F) return c >= ' ';
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

bool is_upper(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LU || in_any(kOtherUpper, c); }
bool is_lower(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LL || in_any(kOtherLower, c); }
bool is_title(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](uint32_t c, size_t, size_t) { append_upper(&out, c); });
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](uint32_t c, size_t begin, size_t end) { append_lower(&out, text, c, begin, end); });
  return out;
}

std::string to_casefold(std::string_view text) {
  std::string out;
  for_each_char(text, [&](uint32_t c, size_t, size_t) {
    if (c < 0x80) return append_lower(&out, text, c, 0, 1);
    std::array<utf8proc_int32_t, 4> folded;
    int boundary = 0;
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded.data(), folded.size(),
                                           UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < std::min<utf8proc_ssize_t>(n, 4); ++i) {
      append_utf8(&out, static_cast<uint32_t>(folded[static_cast<size_t>(i)]));
    }
  });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for_each_char(text, [&](uint32_t c, size_t begin, size_t end) {
    if (begin == 0) append_title(&out, c);
    else append_lower(&out, text, c, begin, end);
  });
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for_each_char(text, [&](uint32_t c, size_t begin, size_t end) {
    if (in_word) append_lower(&out, text, c, begin, end);
    else append_title(&out, c);
    in_word = is_cased(c);
  });
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  for_each_char(text, [&](uint32_t c, size_t begin, size_t end) {
    if (is_upper(c)) append_lower(&out, text, c, begin, end);
    else if (is_lower(c)) append_upper(&out, c);
    else append_utf8(&out, c);
  });
  return out;
}

}  // namespace llmb::jinja
