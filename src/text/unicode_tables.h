// Character properties as Hugging Face tokenizers has them, where the system's libraries differ. The tables are made by
// tools/golden/make_unicode_tables.py; unicode.h is what the tokenizer uses.
#pragma once

#include <cstddef>

namespace llmb {

struct CharRange {
  char32_t first, last;
};
struct CharPair {
  char32_t from, to;
};
struct CategoryRange {
  char32_t first, last;
  char name[12];  // of a general category or a script
};

extern const CharRange kNumeric[], kPunctuation[], kWordChars[], kMarks[], kNonspacingMarks[], kControl[],
    kNotNormalized[];
extern const size_t kNumNumeric, kNumPunctuation, kNumWordChars, kNumMarks, kNumNonspacingMarks, kNumControl,
    kNumNotNormalized;
extern const CharPair kNewLowercase[];
extern const size_t kNumNewLowercase;
extern const CategoryRange kNewCharacters[], kNewScriptCharacters[];
extern const size_t kNumNewCharacters, kNumNewScriptCharacters;

}  // namespace llmb
