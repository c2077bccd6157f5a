// Shared by the tokenizer targets: the small tokenizers under data/, and properties of any loaded tokenizer.
#pragma once

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

inline constexpr std::array kFixtureNames = {
    "llama3",  "o200k",   "gpt2",          "falcon", "llama2",    "llama2_partial_bytes",
    "affixes", "unigram", "unigram_bytes", "bert",   "word_level"};
inline constexpr size_t kNumLossless = 2;  // the first ones know every byte and add nothing: they give every text back

// The same for all calls with equal `number`.
inline const Tokenizer& fixture_tokenizer(size_t number) {
  static std::array<std::unique_ptr<Tokenizer>, kFixtureNames.size()> all;
  auto& tokenizer = all[number];
  if (!tokenizer) {
    auto loaded = Tokenizer::load(source_dir() + "/data/fixtures/tokenizers/" + std::string(kFixtureNames[number]));
    tokenizer = std::move(*loaded);
  }
  return *tokenizer;
}

// Decoding in steps is decoding at once; every step and the whole are valid UTF-8.
inline void check_decoding(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  for (const bool skip : {false, true}) {
    Detokenizer detokenizer(tokenizer, skip);
    std::string text;
    for (const TokenId id : ids) {
      const std::string part = detokenizer.push(id);
      LLMB_CHECK(is_valid_utf8(part));
      text += part;
    }
    text += detokenizer.finish();
    LLMB_CHECK(text == tokenizer.decode(ids, skip));
    LLMB_CHECK(is_valid_utf8(text));
    // The second half after the first one is the end of the whole.
    const std::span<const TokenId> all(ids), context = all.first(ids.size() / 2);
    Detokenizer following(tokenizer, skip, context);
    std::string rest;
    for (const TokenId id : all.subspan(context.size())) rest += following.push(id);
    rest += following.finish();
    LLMB_CHECK(is_valid_utf8(rest) && text.ends_with(rest));
  }
}

inline std::vector<TokenId> check_encoding(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<TokenId> ids = tokenizer.encode(text, false);
  for (const TokenId id : ids) LLMB_CHECK(id >= 0 && id < tokenizer.vocab_size());
  const std::vector<TokenId> with_special = tokenizer.encode(text, true);
  for (const TokenId id : with_special) LLMB_CHECK(id >= 0 && id < tokenizer.vocab_size());
  return ids;
}

// Nothing to write: no file.
inline void write_or_remove(const std::string& path, std::string_view content) {
  if (content.empty()) std::remove(path.c_str());
  else std::ofstream(path, std::ios::binary) << content;
}

// A directory with hostile files either does not load, or its tokenizer keeps its promises.
inline void check_tokenizer_directory(const std::string& dir) {
  const auto tokenizer = Tokenizer::load(dir);
  if (!tokenizer.ok()) {
    LLMB_CHECK(is_valid_utf8(tokenizer.status().message()));
    return;
  }
  for (const char* text :
       {"", "Hello world, it's 2024!\n\n  x", "caf\u00e9 \u4f60\u597d \U0001F600 e\u0301 </s><s> \u0130",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"})
    check_decoding(**tokenizer, check_encoding(**tokenizer, text));
  for (const auto& [name, text] : (*tokenizer)->special_tokens())
    LLMB_CHECK(is_valid_utf8(name) && is_valid_utf8(text));
}

}  // namespace llmb::test
