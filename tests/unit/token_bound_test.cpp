// How few tokens a text can have: never more than encoding it gives, whatever the tokenizer.
#include <doctest/doctest.h>

#include <map>
#include <random>

#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tokenizer_fixtures.h"
#include "text/unicode.h"

namespace llmb {

namespace {

const std::string kDir = test::source_dir() + "/data/fixtures/tokenizers/";

std::string repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

}  // namespace

TEST_CASE("the bound is never above the number of tokens: every kind of tokenizer, awkward and random texts") {
  std::mt19937 rng(3);
  const std::vector<std::string> units = {"a", " ", "\n", "the ", "\u0301", "e\u0301", "\u212a", "中", "\U0001F600", "</s>", "</s>   ",
                                          "<mask>", "\u1100\u1161\u11a8", "=", "\u3000", "hello world ", "\xff", "\x00"};
  for (const char* name : {"gpt2", "llama3", "o200k", "falcon", "llama2", "llama2_partial_bytes", "affixes", "unigram",
                           "unigram_bytes", "bert", "word_level", "spm_bpe", "spm_unigram", "spm_unigram_bytes", "tiktoken",
                           "gpt2_files", "qwen2_files", "sentencepiece/bpe_extra", "sentencepiece/unigram_dummy"}) {
    CAPTURE(name);
    const auto tokenizer = load_tokenizer(kDir + name);
    for (const std::string& unit : units) {
      for (const int count : {1, 7, 500}) {
        const std::string text = repeat(unit, count);
        CHECK(tokenizer->num_tokens_at_least(text) <= tokenizer->encode(text, false).size());
      }
    }
    for (int trial = 0; trial < 200; ++trial) {
      std::string text;
      for (size_t i = rng() % 40; i > 0; --i) text += repeat(units[rng() % units.size()], 1 + rng() % 9);
      CHECK(tokenizer->num_tokens_at_least(text) <= tokenizer->encode(text, false).size());
    }
    CHECK(tokenizer->num_tokens_at_least("") == 0);
  }
}

TEST_CASE("the bound is known where every byte ends in a token, and grows with the text") {
  for (const char* name : {"gpt2", "llama3", "o200k", "llama2", "gpt2_files", "qwen2_files", "tiktoken", "spm_bpe"}) {
    CAPTURE(name);
    const auto tokenizer = load_tokenizer(kDir + name);
    const size_t one = tokenizer->num_tokens_at_least(repeat("word", 10'000));
    CHECK(one >= 100);
    CHECK(tokenizer->num_tokens_at_least(repeat("word", 20'000)) >= 2 * one - 1);
  }
  // No bound is known where unknown characters fuse into one token, unknown words are one, or white space is dropped.
  for (const char* name : {"unigram", "bert", "word_level", "llama2_partial_bytes"}) {
    CAPTURE(name);
    CHECK(load_tokenizer(kDir + name)->num_tokens_at_least(repeat("word ", 100'000)) == 0);
  }
}

TEST_CASE("NFC makes a text less than four times shorter: every character, decomposed, and after its longest other form") {
  std::map<std::string, size_t> longest;  // bytes of a character that stands for a single other one
  for (char32_t c = 1; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text, decomposed;
    append_utf8(&text, c);
    const std::string composed = normalize_unicode(text, NormalizationForm::kNfc);
    decomposed = normalize_unicode(text, NormalizationForm::kNfd);
    CHECK(text.size() < 4 * composed.size());
    CHECK(decomposed.size() < 4 * composed.size());
    size_t first = 0;
    next_char(decomposed, &first);
    if (first == decomposed.size()) longest[decomposed] = std::max(longest[decomposed], text.size());
  }
  // Each character of a decomposition in its longest form.
  for (char32_t c = 1; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(&text, c);
    const std::string composed = normalize_unicode(text, NormalizationForm::kNfc);
    const std::string decomposed = normalize_unicode(text, NormalizationForm::kNfd);
    size_t num_bytes = 0;
    for (size_t pos = 0; pos < decomposed.size();) {
      const size_t begin = pos;
      next_char(decomposed, &pos);
      num_bytes += longest[decomposed.substr(begin, pos - begin)];
    }
    CHECK(num_bytes < 4 * composed.size());
  }
}

TEST_CASE("added tokens that take white space with them make it count for nothing") {
  const test::TempDir dir;
  std::ifstream in(kDir + "llama3/tokenizer.json");
  auto file = nlohmann::json::parse(in);
  for (auto& token : file["added_tokens"]) token["rstrip"] = true;
  write_file(dir / "tokenizer.json", file.dump());
  const auto tokenizer = load_tokenizer(dir.path());
  const std::string text = "</s>" + repeat(" ", 100'000);
  CHECK(tokenizer->encode(text, false).size() == 1);
  CHECK(tokenizer->num_tokens_at_least(text) <= 1);
  CHECK(tokenizer->num_tokens_at_least(repeat("word", 10'000)) > 100);
}

}  // namespace llmb
