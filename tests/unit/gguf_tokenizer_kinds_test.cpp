// Tokenizers of encoders and of Gemma 4 in GGUF files. tests/unit/gguf_layers_test has those of whole models.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/unit/load_gguf_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace llmb::test {
namespace {

using Ids = std::vector<TokenId>;

// Why it is refused.
std::string refusal(const GgufWriter& writer) {
  const TempDir dir;
  write_file(dir / "m.gguf", writer.bytes());
  const auto tokenizer = Tokenizer::load(dir / "m.gguf");
  REQUIRE(!tokenizer.ok());
  return tokenizer.status().message();
}

bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

GgufWriter word_piece(std::vector<std::string> more = {}) {
  GgufWriter w;
  w.text("tokenizer.ggml.model", "bert");
  std::vector<std::string> tokens = {"[PAD]",  "[UNK]", "[CLS]",   "[SEP]",     "\u2581un",
                                     "afford", "able",  "\u2581,", "\u2581cafe"};
  std::vector<int32_t> types = {3, 3, 3, 3, 1, 1, 1, 1, 1};
  for (std::string& token : more) tokens.push_back(std::move(token)), types.push_back(1);
  w.texts("tokenizer.ggml.tokens", tokens);
  w.ints("tokenizer.ggml.token_type", types);
  return w;
}

TEST_CASE(
    "WordPiece: words begin with a space's sign, what goes on has none; a text and a pair stand between their tokens") {
  for (const char* first : {"tokenizer.ggml.cls_token_id", "tokenizer.ggml.bos_token_id"}) {
    GgufWriter w = word_piece();
    w.u32(first, 2);
    w.u32("tokenizer.ggml.seperator_token_id", 3);
    w.u32("tokenizer.ggml.unknown_token_id", 1);
    w.boolean("tokenizer.ggml.add_bos_token", true);
    const auto tokenizer = load(w);
    CHECK(tokenizer->encode("Unaffordable, Caf\u00e9", true) == Ids{2, 4, 5, 6, 7, 8, 3});
    CHECK(tokenizer->encode("unafford [SEP] xyz", false) == Ids{4, 5, 3, 1});
    CHECK(tokenizer->decode(Ids{4, 5, 6, 7, 8}, true) == "unaffordable, cafe");
  }
  GgufWriter cased = word_piece({"\u2581Un"});
  cased.u32("tokenizer.ggml.cls_token_id", 2);
  cased.u32("tokenizer.ggml.seperator_token_id", 3);
  cased.u32("tokenizer.ggml.unknown_token_id", 1);
  cased.boolean("tokenizer.ggml.normalizer.lowercase", false);
  CHECK(load(cased)->encode("Unafford", false) == Ids{9, 5});
}

TEST_CASE("WordPiece without its special tokens, or with tokens that are nothing or twice there, is refused") {
  GgufWriter none = word_piece();
  CHECK(says(refusal(none), "tokenizer.ggml.unknown_token_id"));
  GgufWriter unknown = word_piece();
  unknown.u32("tokenizer.ggml.unknown_token_id", 99);
  CHECK(says(refusal(unknown), "tokenizer.ggml.unknown_token_id"));
  GgufWriter no_sep = word_piece();
  no_sep.u32("tokenizer.ggml.unknown_token_id", 1);
  no_sep.u32("tokenizer.ggml.cls_token_id", 2);
  CHECK(says(refusal(no_sep), "seperator_token_id"));
  for (const char* token : {"\u2581", "\u2581un"}) {
    GgufWriter bad = word_piece({token});
    bad.u32("tokenizer.ggml.unknown_token_id", 1);
    bad.u32("tokenizer.ggml.cls_token_id", 2);
    bad.u32("tokenizer.ggml.seperator_token_id", 3);
    CHECK(!refusal(bad).empty());
  }
}

GgufWriter unigram() {
  GgufWriter w;
  w.text("tokenizer.ggml.model", "t5");
  w.texts("tokenizer.ggml.tokens", {"<s>", "<pad>", "</s>", "<unk>", "\u2581", "a", "b", "\u2581ab", "\u2581a"});
  w.floats("tokenizer.ggml.scores", {0, 0, 0, 0, -3, -4, -4, -2, -2});
  w.ints("tokenizer.ggml.token_type", {3, 3, 3, 2, 1, 1, 1, 1, 1});
  for (const auto& [key, id] : {std::pair("bos", 0), {"eos", 2}, {"seperator", 2}, {"unknown", 3}, {"padding", 1}})
    w.u32(std::string("tokenizer.ggml.") + key + "_token_id", static_cast<uint32_t>(id));
  return w;
}

TEST_CASE("Unigram: the likeliest pieces, between the tokens that the file asks for") {
  GgufWriter both = unigram();
  both.boolean("tokenizer.ggml.add_bos_token", true);
  both.boolean("tokenizer.ggml.add_eos_token", true);
  CHECK(load(both)->encode("ab  aa", true) == Ids{0, 7, 8, 5, 2});
  const auto plain = load(unigram());  // as T5, which puts a token behind texts only
  CHECK(plain->encode("ab", true) == Ids{7, 2});
  CHECK(plain->encode("aca", false) == Ids{8, 3, 5});
  GgufWriter bad = unigram();
  bad.text("tokenizer.ggml.precompiled_charsmap", "x");
  CHECK(says(refusal(bad), "precompiled_charsmap"));
}

TEST_CASE("Gemma 4: spaces become a sign, and the file's own rules join what stands beside each other") {
  const auto file = [](const std::vector<std::string>& merges) {
    GgufWriter w;
    w.text("tokenizer.ggml.model", "gemma4");
    w.texts("tokenizer.ggml.tokens",
            {"<pad>", "<eos>", "<bos>", "<unk>", "\u2581", "a", "b", "ab", "\u2581ab", "<0x0A>"});
    w.floats("tokenizer.ggml.scores", {0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
    w.ints("tokenizer.ggml.token_type", {3, 3, 3, 2, 1, 1, 1, 1, 1, 6});
    w.texts("tokenizer.ggml.merges", merges);
    for (const auto& [key, id] : {std::pair("bos", 2), {"eos", 1}, {"unknown", 3}, {"padding", 0}})
      w.u32(std::string("tokenizer.ggml.") + key + "_token_id", static_cast<uint32_t>(id));
    w.boolean("tokenizer.ggml.add_space_prefix", false);
    w.boolean("tokenizer.ggml.add_bos_token", true);
    return w;
  };
  const auto tokenizer = load(file({"a b", "\u2581 ab"}));
  CHECK(tokenizer->encode("ab ab\nb", true) == Ids{2, 7, 8, 9, 6});
  CHECK(tokenizer->decode(Ids{7, 8, 6}, true) == "ab abb");
  CHECK(load(file({"a b"}))->encode("ab ab", false) == Ids{7, 4, 7});
  CHECK(!refusal(file({"a c"})).empty());
}

}  // namespace
}  // namespace llmb::test
