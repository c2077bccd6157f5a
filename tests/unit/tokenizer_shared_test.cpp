// Published tokenizers against published encodings: ../shared/data, skipped where it is absent.
#include <doctest/doctest.h>

#include <filesystem>
#include <sstream>

#include "tests/support/skip.h"
#include "tests/support/source_dir.h"
#include "tests/support/tokenizer_fixtures.h"

namespace llmb {

namespace {

const std::string kShared = test::source_dir() + "/../shared/data";

// Says that the case is skipped where the folder is absent.
bool has_shared() {
  if (std::filesystem::exists(kShared + "/tokenizers")) return true;
  test::skip("no ../shared/data/tokenizers");
  return false;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), path);
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t done = 0;
  for (size_t found = text.find(separator); found != std::string::npos; found = text.find(separator, done)) {
    parts.push_back(text.substr(done, found - done));
    done = found + separator.size();
  }
  parts.push_back(text.substr(done));
  return parts;
}

}  // namespace

TEST_CASE("the expected encodings of gpt-2, qwen2, falcon, phi-3 and llama-spm hold") {
  if (!has_shared()) return;
  const std::pair<const char*, const char*> kCases[] = {{"gpt-2", "gpt2"},
                                                        {"qwen2", "qwen2.5"},
                                                        {"falcon", "falcon"},
                                                        {"phi-3", "phi-3-mini"},
                                                        {"llama-spm", "llama2-hf"}};
  for (const auto& c : kCases) {
    const std::string encoding = c.first, folder = c.second;
    CAPTURE(encoding);
    const auto tokenizer = load_tokenizer(kShared + "/tokenizers/" + folder);
    const std::string stem = kShared + "/encodings/ggml-vocab-" + encoding + ".gguf";
    const auto texts = split(read_file(stem + ".inp"), "\n__ggml_vocab_test__\n");
    const auto lines = split(read_file(stem + ".out"), "\n");
    REQUIRE(texts.size() >= 46);
    REQUIRE(lines.size() >= texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(texts[i]);
      std::istringstream line(lines[i]);
      std::vector<TokenId> expected;
      for (TokenId id; line >> id;) expected.push_back(id);
      CHECK(tokenizer->encode(texts[i], false) ==
            expected);  // the files were made without the beginning-of-sequence token
    }
  }
}

TEST_CASE("stories260K's prompts give the reference's ids") {
  if (!has_shared()) return;
  const auto tokenizer = load_tokenizer(kShared + "/models/stories260K-hf");
  CHECK(tokenizer->bos_token_id() == 1);
  CHECK(tokenizer->eos_token_id() == 2);
  for (const auto& row : read_jsonl(kShared + "/models/stories260K-hf/reference_greedy_llama2c.jsonl")) {
    CHECK(tokenizer->encode(row["prompt"].get<std::string>(), true) == row["prompt_ids"].get<std::vector<TokenId>>());
  }
}

TEST_CASE("every published tokenizer gives its text back") {
  if (!has_shared()) return;
  const std::string text =
      "Hello, world! It's 12:45; naïve café — 日本語, Привет, \U0001F600\n\n\tint x = 10;  // two  spaces";
  for (const char* name : {"gpt2", "qwen2.5", "falcon", "phi-3-mini", "llama2-hf"}) {
    CAPTURE(name);
    const auto tokenizer = load_tokenizer(kShared + "/tokenizers/" + name);
    CHECK(tokenizer->decode(tokenizer->encode(text, false), true) == text);
    CHECK(decode_in_steps(*tokenizer, tokenizer->encode(text, true), true) == text);
  }
}

}  // namespace llmb
