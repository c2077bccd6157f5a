// Masks over a vocabulary of characters of several bytes, whole and broken, brute force: every token at every step. The
// expressions go on with nearly every character, so that walks of the vocabulary take its parts as a whole, or find
// what an expression allows by what another one does. LLMB_NUM_GRAMMARS raises the count.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "grammar/answer_forms.h"
#include "tests/support/mask_check.h"

namespace llmb::test {

namespace {

const std::vector<std::string> kPieces = {"a", "b", "z",  "G",  "7",  "/",  "-",  " ",      "\n",     "\t",
                                          "é", "ü", "½",  "ế",  "か", "キ", "、", "\u3000", "\u1680", "\u2003",
                                          "—", "€", "中", "文", "가", "ﬁ",  "😀",  "\u00a0", "\u2028", "ก"};

std::string random_piece(TestRng& rng) { return kPieces[rng.between(0, static_cast<int32_t>(kPieces.size()) - 1)]; }

// Every byte, and texts of up to five pieces, some of which are cut at either end.
std::shared_ptr<const grammar::Vocabulary> wide_vocabulary() {
  TestRng rng(7);
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  while (texts.size() < 800) {
    std::string text;
    for (int i = rng.between(1, 5); i > 0; --i) text += random_piece(rng);
    if (rng.chance(0.2)) text = text.substr(static_cast<size_t>(rng.between(0, static_cast<int32_t>(text.size()) - 1)));
    if (rng.chance(0.2)) text.resize(static_cast<size_t>(rng.between(1, static_cast<int32_t>(text.size()))));
    texts.push_back(text);
  }
  const auto end = static_cast<TokenId>(texts.size());
  return std::make_shared<const grammar::Vocabulary>(
      end + 1, [&texts, end](TokenId token) { return token < end ? texts[token] : ""; }, std::vector<TokenId>{end});
}

// How many bytes the character at the place has; 0: there is none, -1: the text breaks off inside of it.
int scan_char(const std::string& text, size_t at) {
  if (at == text.size()) return -1;
  const auto byte = [&text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const int size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (int i = 1; i < size; ++i) {
    if (at + static_cast<size_t>(i) == text.size()) return -1;
    const uint8_t next = byte(at + static_cast<size_t>(i));
    const uint8_t least = i > 1 ? 0x80 : first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const uint8_t most = i > 1 ? 0xBF : first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (next < least || next > most) return 0;
  }
  return size;
}

struct Written {
  Naive naive;
  std::string text;
};

// A character, or nearly any.
Written random_leaf(TestRng& rng) {
  std::vector<std::string> members;
  std::string text;
  for (int i = rng.between(1, 4); i > 0; --i) members.push_back(random_piece(rng)), text += members.back();
  std::string escaped;
  for (const char c : text) escaped += c == '-' || c == '/' ? std::string("\\") + c : std::string(1, c);
  if (rng.chance(0.35)) return {Naive::one_of(members), "[" + escaped + "]"};
  return {Naive::scanned([members](const std::string& all, size_t at) {
            const int size = scan_char(all, at);
            const bool is_out = size > 0 && std::find(members.begin(), members.end(),
                                                      all.substr(at, static_cast<size_t>(size))) != members.end();
            return is_out ? 0 : size;
          }),
          "[^" + escaped + "]"};
}

Written random_expression(TestRng& rng, int depth) {
  Written out{Naive::sequence({}), ""};
  for (int i = rng.between(1, 3); i > 0; --i) {
    Written part = random_leaf(rng);
    if (depth > 0 && rng.chance(0.25)) part = random_expression(rng, depth - 1);
    part.text = "(?:" + part.text + ")";
    const int min = rng.chance(0.15) ? rng.between(15, 30) : rng.between(0, 2);  // tokens have up to 20 bytes
    const int max = std::max(min, rng.between(2, 40));
    const int kind = rng.between(0, 4);
    if (kind < 4) {
      const int least = kind == 0 ? 0 : kind == 1 ? 1 : min, most = kind == 2 ? max : -1;
      part.naive = Naive::repeat(part.naive, least, most);
      part.text += kind == 0   ? "*"
                   : kind == 1 ? "+"
                               : "{" + std::to_string(min) + "," + (kind == 2 ? std::to_string(max) : "") + "}";
    }
    out.naive.parts.push_back(part.naive);
    out.text += part.text;
  }
  return out;
}

}  // namespace

TEST_CASE("masks over characters of several bytes are those of a naive search, token by token") {
  const auto vocabulary = wide_vocabulary();
  const char* count = std::getenv("LLMB_NUM_GRAMMARS");
  const int64_t num_expressions = count ? std::strtoll(count, nullptr, 10) : 15;
  for (int64_t seed = 0; seed < num_expressions; ++seed) {
    TestRng rng(static_cast<uint64_t>(seed) + 1);
    const Written written = random_expression(rng, 1);
    auto rules = grammar::regex_rules(written.text);
    REQUIRE_MESSAGE(rules.ok(), written.text << rules.status().message());
    const auto constraint = grammar::make_constraint(std::move(*rules), vocabulary);
    if (!constraint.ok()) continue;  // too much for one form
    NaiveLanguage naive(written.naive, {});
    const MaskCheck check = check_masks(**constraint, *vocabulary, naive, 2, 5, rng);
    REQUIRE_MESSAGE(check.difference.empty(), "seed " << seed << ", " << written.text << ": " << check.difference);
  }
}

}  // namespace llmb::test
