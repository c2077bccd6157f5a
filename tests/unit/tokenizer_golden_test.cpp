// Every kind of tokenizer against what Hugging Face tokenizers made of the same file: data/fixtures/tokenizers.
#include <doctest/doctest.h>

#include "tests/support/source_dir.h"
#include "tests/support/tokenizer_fixtures.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/word_splits.h"

namespace llmb {

namespace {

const std::string kDir = test::source_dir() + "/data/fixtures/tokenizers/";

class Sink final : public DecoderStep {
 public:
  void push(std::string_view fragment, bool) override { text += fragment; }
  std::string text;
};

}  // namespace

TEST_CASE("small tokenizers of every kind give Hugging Face's ids and text, at once and in steps") {
  for (const char* name :
       {"gpt2", "llama3", "o200k", "falcon", "llama2", "llama2_partial_bytes", "affixes", "unigram", "unigram_bytes",
        "bert", "word_level", "spm_bpe", "spm_unigram", "spm_unigram_bytes", "tiktoken", "gpt2_files", "qwen2_files"}) {
    CAPTURE(name);
    const auto tokenizer = load_tokenizer(kDir + name);
    int num_texts = 0;
    for (const auto& row : read_jsonl(kDir + name + "/golden.jsonl")) {
      const auto ids = row["ids"].get<std::vector<TokenId>>();
      if (row.contains("text")) {
        const auto text = row["text"].get<std::string>();
        CAPTURE(text);
        CHECK(tokenizer->encode(text, true) == ids);
        CHECK(tokenizer->encode(text, false) == row["ids_no_special"].get<std::vector<TokenId>>());
        CHECK(tokenizer->encode(text, true) == ids);  // the second time from the cache
        ++num_texts;
      }
      CAPTURE(row["ids"].dump());
      CHECK(tokenizer->decode(ids, false) == row["decoded"].get<std::string>());
      CHECK(tokenizer->decode(ids, true) == row["decoded_skip"].get<std::string>());
      CHECK(decode_in_steps(*tokenizer, ids, false) == row["decoded"].get<std::string>());
      CHECK(decode_in_steps(*tokenizer, ids, true) == row["decoded_skip"].get<std::string>());
    }
    CHECK(num_texts > 50);
  }
}

TEST_CASE("sentencepiece models give sentencepiece's ids: extra white space removed or kept, with and without prefix") {
  for (const char* kind : {"bpe", "unigram"}) {
    for (const char* rest : {"", "_extra", "_dummy", "_extra_dummy"}) {
      const std::string dir = kDir + "sentencepiece/" + kind + rest;
      CAPTURE(dir);
      const auto tokenizer = load_tokenizer(dir);
      for (const auto& row : read_jsonl(dir + "/golden.jsonl")) {
        CAPTURE(row.dump());
        CHECK(tokenizer->encode(row["text"].get<std::string>(), false) == row["ids"].get<std::vector<TokenId>>());
      }
    }
  }
}

TEST_CASE("normalizers give Hugging Face's text") {
  for (const auto& row : read_jsonl(kDir + "normalizers.jsonl")) {
    CAPTURE(row["spec"].dump());
    auto normalizer = make_normalizer(row["spec"]);
    REQUIRE_MESSAGE(normalizer.ok(), normalizer.status().message());
    RegexScratch scratch;
    for (const auto& c : row["cases"]) {
      auto text = c[0].get<std::string>();
      CAPTURE(text);
      (*normalizer)->apply(&text, scratch);
      CHECK(text == c[1].get<std::string>());
    }
  }
}

// spec: of a pre-tokenizer; cases: texts with their pieces.
void check_pieces(const nlohmann::json& spec, const nlohmann::json& cases) {
  auto pre_tokenizer = PreTokenizer::make(spec);
  REQUIRE_MESSAGE(pre_tokenizer.ok(), pre_tokenizer.status().message());
  PreTokenizerScratch scratch;
  for (const auto& c : cases) {
    const auto text = c[0].get<std::string>();
    CAPTURE(text);
    std::vector<std::string> pieces;
    pre_tokenizer->run(text, true, scratch, [&](std::string_view piece) { pieces.emplace_back(piece); });
    CHECK(pieces == c[1].get<std::vector<std::string>>());
  }
}

TEST_CASE("pre-tokenizers give Hugging Face's pieces") {
  for (const auto& row : read_jsonl(kDir + "pre_tokenizers.jsonl")) {
    CAPTURE(row["spec"].dump());
    check_pieces(row["spec"], row["cases"]);
  }
}

TEST_CASE("splits that GGUF files name give the pieces of the tokenizers that have them") {
  size_t num_names = 0;
  for (const auto& row : read_jsonl(kDir + "word_splits.jsonl"))
    for (const auto& name : row["names"]) {
      CAPTURE(name.dump());
      const auto split = find_word_split(name.get<std::string>());
      REQUIRE(split.has_value());
      check_pieces(pre_tokenizer_of(*split), row["cases"]);
      ++num_names;
    }
  CHECK(num_names >= 45);
}

TEST_CASE("decoders give Hugging Face's text") {
  for (const auto& row : read_jsonl(kDir + "decoders.jsonl")) {
    CAPTURE(row["spec"].dump());
    auto decoder = Decoder::make(row["spec"]);
    REQUIRE_MESSAGE(decoder.ok(), decoder.status().message());
    for (const auto& c : row["cases"]) {
      CAPTURE(c[0].dump());
      Sink sink;
      const auto chain = decoder->make_chain(&sink);
      for (const auto& token : c[0]) chain.front()->push(token.get<std::string>(), true);
      chain.front()->finish();
      CHECK(sink.text == c[1].get<std::string>());
    }
  }
}

}  // namespace llmb
