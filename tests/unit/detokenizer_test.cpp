// Incremental decoding: the same text as at once, as early as it is final, never half a character.
#include <doctest/doctest.h>

#include <random>

#include "tests/support/source_dir.h"
#include "tests/support/tokenizer_fixtures.h"
#include "text/unicode.h"

namespace llmb {

namespace {

const std::string kDir = test::source_dir() + "/data/fixtures/tokenizers/";
const char* const kAll[] = {"gpt2",    "llama3",  "o200k",         "falcon", "llama2",    "llama2_partial_bytes",
                            "affixes", "unigram", "unigram_bytes", "bert",   "word_level"};

// decode(context + ids) after what it shares, in whole characters, with decode(context).
std::string rest_after(const Tokenizer& tokenizer, std::vector<TokenId> context, const std::vector<TokenId>& ids,
                       bool skip) {
  const std::string before = tokenizer.decode(context, skip);
  context.insert(context.end(), ids.begin(), ids.end());
  const std::string whole = tokenizer.decode(context, skip);
  size_t shared = 0;
  while (shared < whole.size()) {
    const size_t length = utf8_length(whole[shared]);
    if (before.compare(shared, length, whole, shared, length) != 0) break;
    shared += length;
  }
  return whole.substr(shared);
}

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

TEST_CASE("ids that follow others give the text that Hugging Face's decoding gives in addition") {
  for (const auto& row : read_jsonl(kDir + "continuations.jsonl")) {
    CAPTURE(row.dump());
    const auto tokenizer = load_tokenizer(kDir + row["tokenizer"].get<std::string>());
    const auto context = row["context"].get<std::vector<TokenId>>(), ids = row["ids"].get<std::vector<TokenId>>();
    CHECK(decode_in_steps(*tokenizer, ids, false, context) == row["text"].get<std::string>());
    CHECK(decode_in_steps(*tokenizer, ids, true, context) == row["text_skip"].get<std::string>());
  }
}

TEST_CASE("ids after any context, short or long, give what decoding all of it gives in addition") {
  std::mt19937 rng(12);
  for (const char* name : kAll) {
    CAPTURE(name);
    const auto tokenizer = load_tokenizer(kDir + name);
    std::uniform_int_distribution<TokenId> any_id(-1, tokenizer->vocab_size());
    for (int trial = 0; trial < 400; ++trial) {
      // Some contexts are of a few ids only: they end in long runs of special tokens, bytes or spaces.
      const TokenId few[] = {any_id(rng), any_id(rng), static_cast<TokenId>(rng() % 8)};
      std::vector<TokenId> context(rng() % (trial % 4 == 0 ? 200 : 20)), ids(1 + rng() % 10);
      for (TokenId& id : context) id = trial % 2 ? few[rng() % 3] : any_id(rng);
      for (TokenId& id : ids) id = trial % 3 ? few[rng() % 3] : any_id(rng);
      for (const bool skip : {false, true}) {
        const std::string text = decode_in_steps(*tokenizer, ids, skip, context);
        CHECK(text == rest_after(*tokenizer, context, ids, skip));
      }
    }
  }
}

TEST_CASE("a first space stays after text, and is dropped where nothing that shows came before") {
  for (const char* name : {"llama2", "unigram"}) {
    CAPTURE(name);
    const auto tokenizer = load_tokenizer(kDir + name);
    const TokenId the = *tokenizer->token_to_id("▁the"), eos = *tokenizer->token_to_id("</s>");
    CHECK(decode_in_steps(*tokenizer, {the, the}, true, {the}) == " the the");
    CHECK(decode_in_steps(*tokenizer, {the, the}, true, {the, eos}) == " the the");
    CHECK(decode_in_steps(*tokenizer, {the, the}, true, {eos}) == "the the");
    CHECK(decode_in_steps(*tokenizer, {the, the}, true, std::vector<TokenId>(100, eos)) == "the the");
    CHECK(decode_in_steps(*tokenizer, {the, the}, false, {eos}) == " the the");
    CHECK(decode_in_steps(*tokenizer, {the, the}, true) == "the the");
    Detokenizer detokenizer(*tokenizer, true, std::vector<TokenId>{eos});
    CHECK(detokenizer.at_start());
    detokenizer.push(eos);
    CHECK(detokenizer.at_start());
    detokenizer.push(the);
    CHECK_FALSE(detokenizer.at_start());
    CHECK(tokenizer->token_bytes(the) == " the");
    CHECK(tokenizer->token_bytes(the, /*is_first=*/true) == "the");
  }
}

TEST_CASE("FAULTS 28: a character that begins in the context appears whole, or the rest of what it is cut to") {
  const auto check = [](const Tokenizer& tokenizer, std::vector<TokenId> bytes, TokenId letter) {
    const std::vector<TokenId> begun(bytes.begin(), bytes.end() - 1);
    Detokenizer detokenizer(tokenizer, true, begun);
    std::string text = detokenizer.push(bytes.back());
    text += detokenizer.push(letter);
    text += detokenizer.finish();
    CHECK(text == "\u4f60a");
    CHECK(detokenizer.continues_character());
    CHECK(decode_in_steps(tokenizer, {letter}, true, begun) == "a");
    CHECK(decode_in_steps(tokenizer, {letter}, true, bytes) == "a");
    CHECK(decode_in_steps(tokenizer, {}, true, begun) == "");
    Detokenizer after_whole(tokenizer, true, bytes);
    after_whole.push(letter);
    CHECK_FALSE(after_whole.continues_character());
  };
  const auto llama2 = load_tokenizer(kDir + "llama2"), llama3 = load_tokenizer(kDir + "llama3");
  const auto id = [](const auto& tokenizer, const char* token) { return *tokenizer->token_to_id(token); };
  check(*llama2, {id(llama2, "<0xE4>"), id(llama2, "<0xBD>"), id(llama2, "<0xA0>")}, id(llama2, "a"));
  check(*llama3, {id(llama3, "\u00e4"), id(llama3, "\u00bd"), id(llama3, "\u0142")}, id(llama3, "a"));
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
