// How published byte-level tokenizers prepare text, by the names that GGUF files have for them; and which of them a
// vocabulary was made with, where nothing says it.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace llmb {

struct WordSplit {
  std::vector<nlohmann::json> steps;  // members of a pre_tokenizer Sequence; the last one maps bytes
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};

// nullopt: the name is not known.
std::optional<WordSplit> find_word_split(std::string_view name);

nlohmann::json pre_tokenizer_of(const WordSplit& split);

// Training never joins what the split keeps apart, so a vocabulary has no token that its own split would cut. Returns
// the one name that fits so; of several that differ in how finely they cut, the finest. nullopt: none fits, or several
// do that say different things, as with small vocabularies. `tokens` are those that training made, their bytes spelled
// in GPT-2's characters.
Result<std::optional<std::string_view>> recognise_word_split(std::span<const std::string_view> tokens);

// For files that do not say how they split: the recognised name, else `fallback`. Warns, naming `file` and the guess.
Result<std::string> guess_word_split(std::span<const std::string_view> tokens, std::string_view file,
                                     std::string_view fallback);

}  // namespace llmb
