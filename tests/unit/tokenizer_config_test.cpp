// Effects of tokenizer_config.json and special_tokens_map.json, and damaged files of the older formats.
#include <doctest/doctest.h>

#include <random>
#include <sstream>

#include "base/utf8.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tokenizer_fixtures.h"

namespace llmb {

namespace {

using nlohmann::json;

const std::string kDir = test::source_dir() + "/data/fixtures/tokenizers/";

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), path);
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}

// The llama2 fixture (which puts <s> before the text by its post-processor) with other files beside it.
Result<std::unique_ptr<Tokenizer>> load_with(const json& config, const json& special_tokens_map = nullptr) {
  const test::TempDir dir;
  write_file(dir / "tokenizer.json", read_file(kDir + "llama2/tokenizer.json"));
  if (!config.is_null()) write_file(dir / "tokenizer_config.json", config.dump());
  if (!special_tokens_map.is_null()) write_file(dir / "special_tokens_map.json", special_tokens_map.dump());
  return Tokenizer::load(dir.path());
}

std::vector<TokenId> ids_with(const json& config) {
  const auto tokenizer = load_with(config);
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
  auto ids = (*tokenizer)->encode("the", true);
  CHECK((*tokenizer)->encode("the", false).size() == 1);
  return ids;
}

}  // namespace

TEST_CASE("add_bos_token and add_eos_token decide over the post-processor where they are given") {
  const TokenId the = load_tokenizer(kDir + "llama2")->encode("the", false)[0];
  const json names = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const auto with = [&](const json& flags) {
    json config = names;
    config.update(flags);
    return config;
  };
  CHECK(ids_with(nullptr) == std::vector<TokenId>{1, the});
  CHECK(ids_with(names) == std::vector<TokenId>{1, the});
  CHECK(ids_with(with({{"add_bos_token", true}})) == std::vector<TokenId>{1, the});
  CHECK(ids_with(with({{"add_bos_token", false}})) == std::vector<TokenId>{the});
  CHECK(ids_with(with({{"add_eos_token", true}})) == std::vector<TokenId>{1, the, 2});
  CHECK(ids_with(with({{"add_bos_token", false}, {"add_eos_token", true}})) == std::vector<TokenId>{the, 2});
  CHECK(ids_with({{"add_bos_token", true}}) == std::vector<TokenId>{the});  // wanted, but no token is named
}

TEST_CASE("special tokens are strings or objects, null is none, special_tokens_map.json fills what is missing") {
  const auto tokenizer =
      load_with({{"bos_token", {{"content", "<s>"}, {"lstrip", false}}}, {"eos_token", "</s>"}, {"pad_token", nullptr}},
                {{"eos_token", "<s>"}, {"unk_token", "<unk>"}});
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
  const std::map<std::string, std::string> expected = {
      {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  CHECK((*tokenizer)->special_tokens() == expected);
  CHECK((*tokenizer)->bos_token_id() == 1);
  CHECK((*tokenizer)->eos_token_id() == 2);
  CHECK((*tokenizer)->bos_token() == "<s>");
}

TEST_CASE("a special token that is an entry but not an added token becomes one; one that is no entry adds no id") {
  const auto plain = load_with(nullptr);
  REQUIRE(plain.ok());
  const auto tokenizer = load_with({{"eos_token", "▁the"}, {"pad_token", "<pad>"}});
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
  const TokenId the = *(*tokenizer)->token_to_id("▁the");
  CHECK_FALSE((*plain)->is_special(the));
  CHECK((*tokenizer)->is_special(the));
  CHECK((*tokenizer)->eos_token_id() == the);
  CHECK((*tokenizer)->vocab_size() == (*plain)->vocab_size());
  CHECK_FALSE((*tokenizer)->token_to_id("<pad>").has_value());
  CHECK((*tokenizer)->special_tokens().at("pad_token") == "<pad>");  // the chat template still sees its text
}

TEST_CASE("added_tokens_decoder adds the next id, changes flags, and a token past a gap is left out") {
  const auto plain = load_with(nullptr);
  REQUIRE(plain.ok());
  const TokenId size = (*plain)->vocab_size();
  const json decoder = {{"2", {{"content", "</s>"}, {"special", false}, {"normalized", false}}},
                        {std::to_string(size), {{"content", "<new>"}, {"special", true}, {"normalized", false}}},
                        {std::to_string(size + 5), {{"content", "<far>"}, {"special", true}, {"normalized", false}}}};
  const auto tokenizer = load_with({{"added_tokens_decoder", decoder}});
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
  CHECK((*tokenizer)->vocab_size() == size + 1);
  CHECK((*tokenizer)->encode("<new>", false) == std::vector<TokenId>{size});
  CHECK((*plain)->is_special(2));
  CHECK_FALSE((*tokenizer)->is_special(2));
  CHECK_FALSE((*tokenizer)->token_to_id("<far>").has_value());
}

TEST_CASE("damaged configuration files are refused by name") {
  const auto check_refused = [](const std::string& name, const std::string& content, const std::string& expected) {
    const test::TempDir dir;
    write_file(dir / "tokenizer.json", read_file(kDir + "llama2/tokenizer.json"));
    write_file(dir / name, content);
    const auto tokenizer = Tokenizer::load(dir.path());
    REQUIRE_FALSE(tokenizer.ok());
    CAPTURE(tokenizer.status().message());
    CHECK(tokenizer.status().message().find(name) != std::string::npos);
    CHECK(tokenizer.status().message().find(expected) != std::string::npos);
  };
  check_refused("tokenizer_config.json", "{", "JSON");
  check_refused("tokenizer_config.json", "[]", "object");
  check_refused("tokenizer_config.json", R"({"added_tokens_decoder":{"x":{"content":"a"}}})", "not a token id");
  check_refused("tokenizer_config.json", R"({"added_tokens_decoder":{"99999999999":{"content":"a"}}})",
                "not a token id");
  check_refused("tokenizer_config.json", R"({"added_tokens_decoder":{"1":7}})", "object");
  check_refused("tokenizer_config.json", R"({"bos_token":{"content":7}})", "content");
  check_refused("special_tokens_map.json", "x", "JSON");
}

TEST_CASE("vocab.json with merges.txt of a class that is not built is refused by its name") {
  const test::TempDir dir;
  for (const char* name : {"vocab.json", "merges.txt"}) write_file(dir / name, read_file(kDir + "gpt2_files/" + name));
  write_file(dir / "tokenizer_config.json", R"({"tokenizer_class": "PhobertTokenizer"})");
  const auto refused = Tokenizer::load(dir.path());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().message().find("PhobertTokenizer") != std::string::npos);
  write_file(dir / "tokenizer_config.json", "{}");  // no class: GPT-2's
  CHECK(Tokenizer::load(dir.path()).ok());
  write_file(dir / "merges.txt", "#version: 0.2\nonly-one-part\n");
  const auto damaged = Tokenizer::load(dir.path());
  REQUIRE_FALSE(damaged.ok());
  CHECK(damaged.status().message().find("merges.txt") != std::string::npos);
}

TEST_CASE(
    "cut or damaged sentencepiece models and tiktoken ranks are refused or give a tokenizer that keeps its promises") {
  std::mt19937 rng(9);
  for (const char* name : {"spm_bpe", "spm_unigram", "tiktoken"}) {
    const std::string good = read_file(kDir + name + "/tokenizer.model");
    const test::TempDir dir;
    for (int trial = 0; trial < 150; ++trial) {
      std::string bad = good.substr(0, trial % 2 == 0 ? rng() % good.size() : good.size());
      for (int i = 0; i < trial % 4 && !bad.empty(); ++i) bad[rng() % bad.size()] = static_cast<char>(rng());
      write_file(dir / "tokenizer.model", bad);
      const auto tokenizer = Tokenizer::load(dir.path());
      if (!tokenizer.ok()) {
        CHECK(tokenizer.status().message().find(dir.path()) != std::string::npos);
        continue;
      }
      const auto ids = (*tokenizer)->encode("The quick 日本語 12 <s> don't\n", true);
      for (const TokenId id : ids) CHECK((id >= 0 && id < (*tokenizer)->vocab_size()));
      CHECK(is_valid_utf8((*tokenizer)->decode(ids, false)));
    }
  }
  const test::TempDir dir;
  for (const std::string& content :
       {std::string(), std::string("\x0a\xff\xff\xff\xff\x0f", 6), std::string(100, '\xff'),
        std::string("AAAA 0\nAAAB x\n"), std::string("AAAA 0\nAAAA 1\n"), std::string("AAAA 9999999999\n")}) {
    write_file(dir / "tokenizer.model", content);
    CHECK_FALSE(Tokenizer::load(dir.path()).ok());
  }
}

}  // namespace llmb
