// Text to text, before it is split: the `normalizer` of a tokenizer file. Immutable and thread-safe once built.
#pragma once

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/regex.h"

namespace llmb {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Changes *text (valid UTF-8 before and after). Returns true where characters at the very beginning were dropped: a
  // Metaspace with prepend_scheme "first" needs to know.
  virtual bool apply(std::string* text, RegexScratch& scratch) const = 0;
};

// nullptr where `spec` is null. unsupported names a type that is not built.
Result<std::unique_ptr<Normalizer>> make_normalizer(const nlohmann::json& spec);

// sentencepiece's compiled character map: base64 in tokenizer.json.
Result<std::unique_ptr<Normalizer>> make_precompiled_normalizer(std::string_view base64);

// The pattern of a Replace or Split component: {"String": …} or {"Regex": …}.
Result<Regex> make_pattern(const nlohmann::json& pattern);

}  // namespace llmb
