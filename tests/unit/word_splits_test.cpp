// Which split a vocabulary was made with: recognised where its tokens tell, and only there.
#include "tokenizer/word_splits.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "tokenizer/pre_tokenizer.h"

namespace llmb {

namespace {

// Has something for every rule: digits in numbers of all lengths, letters of either case, marks before and after words,
// line ends after marks, white space, Han, typographic quotes.
const char* const kText =
    "It's 7 or 42, 365 days; 1990 and 12345678. Don't, I'll, we've, they're, she'd, I'm; DON'T x² ①②\n"
    "getElementById(value).setText(\"a_b\");\n\n\t\tif (x!=y) {\r\n\treturn -1;\n}\n//comment\n/// doc\n  \n"
    "camelCase HTTPServer McDonald's naïve Größe l'eau d'un “it’s” — ‘don’t’ $5 +7 a+b==c <br/> ^_^ |x| `code` ~ "
    "你好，世界。 今日 は天気 がいい。こんにちは カタカナ 한국어 문장 Привет, мир! 50% #tag @user C++ ...\n"
    "  four    spaces \t tabs\t\tend  \n-- (parens) [x]() \\n 3.14 1,000,000 v2.0 A1B2 x86_64 ?! ,\" .\"  ";

std::set<std::string> pieces_of(std::string_view name) {
  const auto pre_tokenizer = PreTokenizer::make(pre_tokenizer_of(*find_word_split(name)));
  REQUIRE(pre_tokenizer.ok());
  PreTokenizerScratch scratch;
  std::set<std::string> pieces;
  pre_tokenizer->run(kText, true, scratch, [&](std::string_view piece) { pieces.emplace(piece); });
  return pieces;
}

std::string recognised(const std::set<std::string>& tokens) {
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const auto name = recognise_word_split(views);
  REQUIRE(name.ok());
  return std::string((*name).value_or("none"));
}

}  // namespace

TEST_CASE("a vocabulary of the words that a split makes is recognised as that split's") {
  for (const std::string name : {"deepseek-llm", "deepseek-coder", "deepseek-v3", "smollm", "falcon", "gpt-2", "kimi-k2", "bloom",
                           "llama-bpe", "qwen2", "gpt-4o", "tekken"}) {
    CAPTURE(name);
    CHECK(recognised(pieces_of(name)) == name);
  }
}

TEST_CASE("Llama 4's split is not taken for Llama 3's, which differs by capital letters, contractions and line ends") {
  CHECK(recognised(pieces_of("llama4")) == "gpt-4o");
  CHECK(recognised(pieces_of("llama3")) == "llama-bpe");
}

TEST_CASE("tokens that tell nothing, contradict each other or are no text are not recognised") {
  CHECK(recognised({}) == "none");
  CHECK(recognised({"hello", "\u0120world", "ab", "the"}) == "none");
  std::set<std::string> mixed = pieces_of("gpt-4o");
  mixed.merge(pieces_of("gpt-2"));
  CHECK(recognised(mixed) == "none");
  CHECK(recognised({"\u00e4\u00bd", "日本", "\u00e4"}) == "none");  // half a character, and no bytes at all
}

}  // namespace llmb
