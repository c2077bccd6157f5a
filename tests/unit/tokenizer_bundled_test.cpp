// The bundled model's tokenizer against golden files from Hugging Face transformers.
#include <doctest/doctest.h>

#include <thread>

#include "tests/support/source_dir.h"
#include "tests/support/tokenizer_fixtures.h"

namespace llmb {

namespace {

const std::string kRoot = test::source_dir();

}  // namespace

TEST_CASE("the bundled tokenizer gives Hugging Face's ids and text") {
  const auto tokenizer = load_tokenizer(kRoot + "/data/model");
  const auto rows = read_jsonl(kRoot + "/data/fixtures/tokenizer-bundled.jsonl");
  CHECK(rows.size() > 100);
  for (const auto& row : rows) {
    const auto text = row["text"].get<std::string>();
    const auto ids = row["ids"].get<std::vector<TokenId>>();
    CAPTURE(text);
    CHECK(tokenizer->encode(text, true) == ids);
    CHECK(tokenizer->decode(ids, false) == row["decoded"].get<std::string>());
    CHECK(tokenizer->decode(ids, true) == row["decoded_skip_special"].get<std::string>());
    CHECK(decode_in_steps(*tokenizer, ids, false) == row["decoded"].get<std::string>());
    CHECK(decode_in_steps(*tokenizer, ids, true) == row["decoded_skip_special"].get<std::string>());
  }
}

TEST_CASE("ids that cut characters decode to Hugging Face's replacement characters, at once and in steps") {
  const auto tokenizer = load_tokenizer(kRoot + "/data/model");
  for (const auto& row : read_jsonl(kRoot + "/data/fixtures/tokenizer-bundled-decode.jsonl")) {
    const auto ids = row["ids"].get<std::vector<TokenId>>();
    CAPTURE(row["ids"].dump());
    CHECK(tokenizer->decode(ids, false) == row["decoded"].get<std::string>());
    CHECK(tokenizer->decode(ids, true) == row["decoded_skip_special"].get<std::string>());
    CHECK(decode_in_steps(*tokenizer, ids, false) == row["decoded"].get<std::string>());
    CHECK(decode_in_steps(*tokenizer, ids, true) == row["decoded_skip_special"].get<std::string>());
  }
}

TEST_CASE("special tokens of the bundled model") {
  const auto tokenizer = load_tokenizer(kRoot + "/data/model");
  CHECK(tokenizer->vocab_size() == 1536);
  CHECK_FALSE(tokenizer->bos_token_id().has_value());
  CHECK(tokenizer->bos_token() == "");
  CHECK(tokenizer->eos_token() == "<|end|>");
  REQUIRE(tokenizer->eos_token_id().has_value());
  CHECK(tokenizer->is_special(*tokenizer->eos_token_id()));
  CHECK(tokenizer->token_to_id("<|end|>") == tokenizer->eos_token_id());
  CHECK(tokenizer->special_tokens().at("pad_token") == "<|endoftext|>");
  CHECK(tokenizer->special_tokens().count("bos_token") == 0);
  CHECK(tokenizer->encode("<|user|>", false) == std::vector<TokenId>{*tokenizer->token_to_id("<|user|>")});
}

TEST_CASE("the text and bytes of single tokens") {
  const auto tokenizer = load_tokenizer(kRoot + "/data/model");
  const TokenId the = *tokenizer->token_to_id("\u0120the");
  CHECK(tokenizer->token_text(the) == " the");
  CHECK(tokenizer->token_bytes(the) == " the");
  CHECK(tokenizer->token_piece(the) == "\u0120the");
  CHECK_FALSE(tokenizer->is_special(the));
  const TokenId half = *tokenizer->token_to_id("\u00c3");  // the byte 0xC3
  CHECK(tokenizer->token_bytes(half) == "\xC3");
  CHECK(tokenizer->token_text(half) == "\uFFFD");
  for (const TokenId id : {-1, 1536, INT32_MAX}) {
    CHECK(tokenizer->token_text(id) == "");
    CHECK(tokenizer->token_bytes(id) == "");
    CHECK_FALSE(tokenizer->is_special(id));
    CHECK(tokenizer->decode(std::vector<TokenId>{id}, false) == "");
  }
}

TEST_CASE("one tokenizer serves several threads at once") {
  const auto tokenizer = load_tokenizer(kRoot + "/data/model");
  const auto rows = read_jsonl(kRoot + "/data/fixtures/tokenizer-bundled.jsonl");
  std::vector<int> num_wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& wrong : num_wrong) {
    threads.emplace_back([&] {
      for (const auto& row : rows) {
        const auto ids = row["ids"].get<std::vector<TokenId>>();
        wrong += tokenizer->encode(row["text"].get<std::string>(), true) != ids;
        wrong += tokenizer->decode(ids, false) != row["decoded"].get<std::string>();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(num_wrong == std::vector<int>(4, 0));
}

}  // namespace llmb
