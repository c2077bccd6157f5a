// Published tokenizers in GGUF files against published encodings: ../shared/data.
#include <doctest/doctest.h>

#include <filesystem>
#include <sstream>

#include "tests/support/gguf_from_hf.h"
#include "tests/support/skip.h"
#include "tests/support/source_dir.h"
#include "tests/unit/load_gguf_tokenizer.h"

namespace llmb::test {

namespace {

const std::string kShared = source_dir() + "/../shared/data";

}  // namespace

TEST_CASE("published tokenizers: the expected encodings") {
  if (!std::filesystem::exists(kShared + "/tokenizers")) return skip("no ../shared/data/tokenizers");
  struct Case {
    std::string encoding, folder, pre;
  };
  for (const Case& c : {Case{"gpt-2", "gpt2", "gpt-2"},
                        {"qwen2", "qwen2.5", "qwen2"},
                        {"falcon", "falcon", "falcon"},
                        {"llama-spm", "llama2-hf", ""}}) {
    const std::string &encoding = c.encoding, &folder = c.folder, &pre = c.pre;
    CAPTURE(encoding);
    GgufWriter w;
    const HfTokenizer files = read_hf_tokenizer(kShared + "/tokenizers/" + folder);
    if (pre.empty()) add_spm_tokenizer(&w, files);
    else add_byte_level_tokenizer(&w, files, pre);
    const auto tokenizer = load(w), original = load_tokenizer(kShared + "/tokenizers/" + folder);
    std::string texts = read_file(kShared + "/encodings/ggml-vocab-" + encoding + ".gguf.inp");
    std::stringstream lines(read_file(kShared + "/encodings/ggml-vocab-" + encoding + ".gguf.out"));
    const std::string separator = "\n__ggml_vocab_test__\n";
    int num_texts = 0;
    for (size_t end = texts.find(separator); !texts.empty(); end = texts.find(separator)) {
      const std::string text = texts.substr(0, end);
      texts.erase(0, end == std::string::npos ? end : end + separator.size());
      std::string line;
      std::getline(lines, line);
      std::stringstream numbers(line);
      std::vector<TokenId> expected;
      for (TokenId id; numbers >> id;) expected.push_back(id);
      CAPTURE(text);
      CHECK(tokenizer->encode(text, false) == expected);
      CHECK(tokenizer->decode(expected, true) == original->decode(expected, true));
      ++num_texts;
    }
    CHECK(num_texts >= 46);
  }
}

TEST_CASE("without a name of the splitting it is recognised from the tokens") {
  if (!std::filesystem::exists(kShared + "/tokenizers")) return skip("no ../shared/data/tokenizers");
  for (const auto& c : {std::pair("gpt2", "gpt-2"), {"qwen2.5", "qwen2"}, {"falcon", "falcon"}}) {
    CAPTURE(c.first);
    const HfTokenizer files = read_hf_tokenizer(kShared + "/tokenizers/" + c.first);
    GgufWriter named, unnamed, unknown;
    add_byte_level_tokenizer(&named, files, c.second);
    add_byte_level_tokenizer(&unnamed, files, "");
    add_byte_level_tokenizer(&unknown, files, "default");
    const auto expected = load(named), without = load(unnamed), as_default = load(unknown);
    for (const char* text : {"It's 12345 naïve cafés,\n\n 日本語 über-GROSS  x", "e\u0301 == {\n\tgetText(1990);\n} I'LL"}) {
      CHECK(without->encode(text, true) == expected->encode(text, true));
      CHECK(as_default->encode(text, true) == expected->encode(text, true));
    }
  }
}

}  // namespace llmb::test
