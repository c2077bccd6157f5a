// Text to text, before it is split: the `normalizer` of a tokenizer file. Immutable and thread-safe once built.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/regex.h"

namespace llmb {

inline constexpr size_t kMaxReplacementBytes = 256;  // that take the place of a match

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Changes *text (valid UTF-8 before and after). Returns true where characters at the very beginning were dropped: a
  // Metaspace with prepend_scheme "first" needs to know.
  virtual bool apply(std::string* text, RegexScratch& scratch) const = 0;
};

// nullptr where `spec` is null. unsupported names a type that is not built.
Result<std::unique_ptr<Normalizer>> make_normalizer(const nlohmann::json& spec);

// sentencepiece's compiled character map: base64 in tokenizer.json. Hugging Face's Precompiled looks up whole grapheme
// clusters; sentencepiece takes the longest match at each place.
enum class CharacterMapUse { kGraphemes, kLongestMatch };
Result<std::unique_ptr<Normalizer>> make_precompiled_normalizer(std::string_view base64, CharacterMapUse use);

// Types beside those of Hugging Face, for tokenizer.model: the character map used as sentencepiece does, and its
// remove_extra_whitespaces, which takes spaces alone: none at the beginning, one between words, and at the end neither
// these nor ▁.
inline constexpr const char* kSentencepieceMapType = "SentencepieceMap";
inline constexpr const char* kSentencepieceSpacesType = "SentencepieceSpaces";

// The pattern of a Replace or Split component: {"String": …} or {"Regex": …}.
Result<Regex> make_pattern(const nlohmann::json& pattern);

}  // namespace llmb
