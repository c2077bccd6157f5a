// Incremental decoding: the same text as at once, as early as it is final, never half a character.
#include <doctest/doctest.h>

#include <random>

#include "tests/support/tokenizer_fixtures.h"
#include "tokenizer/unicode.h"

namespace llmb {

namespace {

const std::string kDir = std::string(LLMB_SOURCE_DIR) + "/data/fixtures/tokenizers/";
const char* const kAll[] = {"gpt2",    "llama3",  "o200k",         "falcon", "llama2",    "llama2_partial_bytes",
                            "affixes", "unigram", "unigram_bytes", "bert",   "word_level"};

}  // namespace

TEST_CASE("FAULTS 28: random ids decode in steps to the text decoded at once, special tokens kept and skipped") {
  std::mt19937 rng(11);
  for (const char* name : kAll) {
    CAPTURE(name);
    const auto tokenizer = load_tokenizer(kDir + name);
    std::uniform_int_distribution<TokenId> any_id(-1, tokenizer->vocab_size());  // unknown ids at both ends included
    for (int trial = 0; trial < 300; ++trial) {
      std::vector<TokenId> ids(static_cast<size_t>(trial % 30));
      for (TokenId& id : ids) id = any_id(rng);
      for (const bool skip : {false, true}) {
        const std::string whole = tokenizer->decode(ids, skip);
        CHECK(is_valid_utf8(whole));
        CHECK(decode_in_steps(*tokenizer, ids, skip) == whole);
      }
    }
  }
}

TEST_CASE("a character of several byte-level tokens appears with its last byte, and not before") {
  const auto tokenizer = load_tokenizer(kDir + "llama3");
  std::vector<TokenId> ids;
  for (const char* byte : {"\u00f0", "\u0141", "\u013a", "\u0122"})
    ids.push_back(*tokenizer->token_to_id(byte));  // F0 9F 98 80
  Detokenizer detokenizer(*tokenizer, true);
  CHECK(detokenizer.push(ids[0]) == "");
  CHECK(detokenizer.push(ids[1]) == "");
  CHECK(detokenizer.push(ids[2]) == "");
  CHECK(detokenizer.push(ids[3]) == "\U0001F600");
  CHECK(detokenizer.finish() == "");
}

TEST_CASE("FAULTS 28: a cut character becomes U+FFFD at finish, or at the token that cuts it") {
  const auto tokenizer = load_tokenizer(kDir + "llama3");
  const TokenId f0 = *tokenizer->token_to_id("\u00f0"), nine_f = *tokenizer->token_to_id("\u0141"),
                a = *tokenizer->token_to_id("a");
  Detokenizer detokenizer(*tokenizer, true);
  CHECK(detokenizer.push(f0) == "");
  CHECK(detokenizer.push(nine_f) == "");
  CHECK(detokenizer.push(a) ==
        "\uFFFD"
        "a");
  CHECK(detokenizer.push(f0) == "");
  CHECK(detokenizer.finish() == "\uFFFD");
  CHECK(detokenizer.push(a) == "a");  // as new after finish
  CHECK(detokenizer.finish() == "");
}

TEST_CASE("FAULTS 28: byte-fallback tokens are held until the run of bytes ends, since one bad byte spoils all of it") {
  const auto tokenizer = load_tokenizer(kDir + "llama2");
  const auto id = [&](const char* token) { return *tokenizer->token_to_id(token); };
  Detokenizer detokenizer(*tokenizer, true);
  CHECK(detokenizer.push(id("▁the")) == "the");  // the decoder strips the first space
  CHECK(detokenizer.push(id("▁the")) == " the");
  CHECK(detokenizer.push(id("<0xE4>")) == "");
  CHECK(detokenizer.push(id("<0xBD>")) == "");
  CHECK(detokenizer.push(id("<0xA0>")) == "");
  CHECK(detokenizer.push(id("▁the")) == "\u4f60 the");
  CHECK(detokenizer.push(id("<0xE4>")) == "");
  CHECK(detokenizer.push(id("<0xBD>")) == "");
  CHECK(detokenizer.finish() == "\uFFFD\uFFFD");
}

TEST_CASE("special tokens are skipped or shown, and do not join what is around them") {
  const auto tokenizer = load_tokenizer(kDir + "llama3");
  const TokenId a = *tokenizer->token_to_id("a"), eos = *tokenizer->token_to_id("</s>"),
                c3 = *tokenizer->token_to_id("\u00c3"), a9 = *tokenizer->token_to_id("\u00a9");
  for (const bool skip : {false, true}) {
    CHECK(decode_in_steps(*tokenizer, {a, eos, a}, skip) == (skip ? "aa" : "a</s>a"));
    CHECK(decode_in_steps(*tokenizer, {c3, eos, a9}, skip) == (skip ? "\u00e9" : "\uFFFD</s>\uFFFD"));
  }
}

TEST_CASE("several detokenizers of one tokenizer do not disturb each other") {
  const auto tokenizer = load_tokenizer(kDir + "llama2");
  const auto ids = tokenizer->encode("The quick brown 日本語 fox \U0001F600!", false);
  std::vector<Detokenizer> detokenizers;
  std::vector<std::string> texts(5);
  for (size_t i = 0; i < texts.size(); ++i) detokenizers.emplace_back(*tokenizer, true);
  for (size_t step = 0; step < ids.size() + texts.size(); ++step) {
    for (size_t i = 0; i < texts.size(); ++i) {  // each starts one step after the one before it
      if (step >= i && step - i < ids.size()) texts[i] += detokenizers[i].push(ids[step - i]);
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i] += detokenizers[i].finish();
    CHECK(texts[i] == "The quick brown 日本語 fox \U0001F600!");
  }
}

}  // namespace llmb
