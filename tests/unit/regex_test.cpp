#include "text/regex.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace llmb {
namespace {

using Strings = std::vector<std::string>;

Strings matches(std::string_view pattern, std::string_view text) {
  const Result<Regex> regex = Regex::compile(pattern);
  if (!regex.ok()) return {regex.status().message()};
  RegexScratch scratch;
  std::vector<Span> spans;
  regex->find_all(text, scratch, &spans);
  Strings found;
  size_t at = 0;
  for (const Span& span : spans) {
    CHECK(span.begin == at);  // nothing is left out
    at = span.end;
    if (span.is_match && span.end > span.begin) found.emplace_back(text.substr(span.begin, span.end - span.begin));
  }
  CHECK(at == text.size());
  return found;
}

}  // namespace

// Expected matches: those of Hugging Face's tokenizers 0.23 (Oniguruma).
TEST_CASE("escapes, sets and properties match what they match in Oniguruma") {
  CHECK(matches(R"(\W)", "a-b c") == Strings{"-", " "});
  CHECK(matches(R"(\W)", "\u00e9-\u4e2d") == Strings{"-"});
  CHECK(matches(R"(\D+)", "12ab3") == Strings{"ab"});
  CHECK(matches(R"(\h+)", "xf09z") == Strings{"f09"});
  CHECK(matches(R"(\H+)", "a-zg9") == Strings{"-zg"});
  CHECK(matches(R"(\t\f)", "x\t\fy") == Strings{"\t\f"});
  CHECK(matches(R"(\v\a)", "x\v\ay") == Strings{"\v\a"});
  CHECK(matches(R"(\e)", "x\x1by") == Strings{"\x1b"});
  CHECK(matches(R"(\0)", std::string("x\0y", 3)) == Strings{std::string(1, '\0')});
  CHECK(matches(R"(\s+)", "a\u00a0\u2003b") == Strings{"\u00a0\u2003"});
  CHECK(matches(R"(\S+)", "a\u00a0b") == Strings{"a", "b"});
  CHECK(matches(R"(\p{^L}+)", "ab12c") == Strings{"12"});
  CHECK(matches(R"(\P{^L}+)", "12ab3") == Strings{"ab"});
  CHECK(matches(R"([\W\d]+)", "ab-12_c") == Strings{"-12"});
  CHECK(matches(R"([^\W\d]+)", "ab-12_c") == Strings{"ab", "_c"});
  CHECK(matches(R"([\D]+)", "12ab") == Strings{"ab"});
  CHECK(matches(R"([\H])", "ag") == Strings{"g"});
  CHECK(matches(R"([\t\e\0])", std::string("a\tb\x1b"
                                           "c\0",
                                           6)) == Strings{"\t", "\x1b", std::string(1, '\0')});
  CHECK(matches(R"(\x41)", "A") == Strings{"A"});
  CHECK(matches(R"(\x{1F600})", "x\U0001F600") == Strings{"\U0001F600"});
  CHECK(matches(R"(\u00e9)", "caf\u00e9") == Strings{"\u00e9"});
}

TEST_CASE("a p without braces is a letter") {
  CHECK(matches(R"(\pN)", "xpNy1") == Strings{"pN"});
  CHECK(matches(R"(\PL)", "xPLy1") == Strings{"PL"});
  CHECK(matches(R"([\pN])", "p N1") == Strings{"p", "N"});
}

TEST_CASE("anchors, line breaks and clusters") {
  CHECK(matches(R"(\Aa)", "aab") == Strings{"a"});
  CHECK(matches(R"(b\z)", "ab\nb") == Strings{"b"});
  CHECK(matches(R"(b\z)", "ab\n") == Strings{});
  CHECK(matches(R"(b\Z)", "ab\n") == Strings{"b"});
  CHECK(matches(R"(\Ga)", "aaba") == Strings{"a", "a"});
  CHECK(matches(R"(\R)", "a\r\nb\nc") == Strings{"\r\n", "\n"});
  CHECK(matches(R"(\X)", "e\u0301x") == Strings{"e\u0301", "x"});
  CHECK(matches(R"(\bfoo\B)", "foobar foo") == Strings{"foo"});
}

TEST_CASE("quantifiers: of intervals, ? means or nothing where the number is exact, + repeats") {
  CHECK(matches(R"(a{2}?)", "aaaa") == Strings{"aa", "aa"});
  CHECK(matches(R"(xa{2}?y)", "xy xaay xay") == Strings{"xy", "xaay"});
  CHECK(matches(R"(xa{1,2}?y)", "xy xay") == Strings{"xay"});
  CHECK(matches(R"(xa{2,}?y)", "xaaay") == Strings{"xaaay"});
  CHECK(matches(R"(a{1,3}?)", "aaaa") == Strings{"a", "a", "a", "a"});
  CHECK(matches(R"(a{2}+)", "aaaaab") == Strings{"aaaa"});
  CHECK(matches(R"(a{,2}b)", "aaab") == Strings{"aab"});
  CHECK(matches(R"(a{1,2)", "xa{1,2y") == Strings{"a{1,2"});
  CHECK(matches(R"(a??b)", "aab") == Strings{"ab"});
  CHECK(matches(R"(a++b)", "aaab") == Strings{"aaab"});
}

TEST_CASE("what cannot be run is refused by name") {
  for (const char* pattern :
       {R"((a+)+)", R"((a)\1)", R"(\k<n>)", R"(\p{L)", R"(\p{Nonsense})", R"(a\)", R"((a)", R"(a))"}) {
    CAPTURE(pattern);
    CHECK(!Regex::compile(pattern).ok());
  }
}

}  // namespace llmb
