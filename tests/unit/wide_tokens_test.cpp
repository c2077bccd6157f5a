// Tokens of characters that have several bytes, whole and cut anywhere: allowed where their bytes are one by one.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/step_plan.h"
#include "grammar/answer_forms.h"
#include "grammar/json_schema.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

using grammar::Vocabulary;

constexpr TokenId kEnd = 256;  // tokens below it are the bytes

std::shared_ptr<const Vocabulary> vocabulary_of(const std::vector<std::string>& texts) {
  return std::make_shared<Vocabulary>(
      kEnd + 1 + static_cast<int32_t>(texts.size()),
      [&](TokenId token) {
        return token < kEnd ? std::string(1, static_cast<char>(token)) : texts[static_cast<size_t>(token - kEnd - 1)];
      },
      std::vector<TokenId>{kEnd});
}

// Texts of characters at the ends of what UTF-8's first bytes have, some of them cut, some no UTF-8.
std::vector<std::string> random_texts(TestRng* rng, int32_t count) {
  const std::vector<std::string> characters = {"a",
                                               "b",
                                               "z",
                                               "Q",
                                               "7",
                                               " ",
                                               "\n",
                                               "\"",
                                               "/",
                                               "\\",
                                               "\xC2\x80",
                                               "\xC2\xA0",
                                               "\xC3\xA9",
                                               "\xDF\xBF",
                                               "\xE0\xA0\x80",
                                               "\xE1\x9A\x80",
                                               "\xE2\x80\xA8",
                                               "\xE2\x82\xAC",
                                               "\xE3\x80\x80",
                                               "\xE4\xB8\xAD",
                                               "\xED\x9F\xBF",
                                               "\xEE\x80\x80",
                                               "\xEF\xBB\xBF",
                                               "\xEF\xBF\xBF",
                                               "\xF0\x90\x80\x80",
                                               "\xF0\x9F\x98\x80",
                                               "\xF4\x8F\xBF\xBF"};
  std::set<std::string> texts;
  while (static_cast<int32_t>(texts.size()) < count) {
    std::string text;
    for (int32_t i = rng->between(1, 4); i > 0; --i)
      text += characters[rng->between(rng->chance(0.6) ? 10 : 0, static_cast<int32_t>(characters.size()) - 1)];
    if (rng->chance(0.2)) text = text.substr(0, rng->between(1, static_cast<int32_t>(text.size())));
    if (rng->chance(0.1)) text = text.substr(rng->between(0, static_cast<int32_t>(text.size()) - 1));
    if (rng->chance(0.05)) text[rng->between(0, static_cast<int32_t>(text.size()) - 1)] = '\xC0';
    if (text.size() > 1) texts.insert(text);
  }
  return {texts.begin(), texts.end()};
}

bool is_allowed_by_bytes(const ConstraintState& from, const std::string& text) {
  const auto state = from.clone();
  for (const char c : text) {
    const auto byte = static_cast<TokenId>(static_cast<uint8_t>(c));
    if (!is_allowed(state->allowed(), byte)) return false;
    state->advance(byte);
  }
  return true;
}

}  // namespace

TEST_CASE("a token is allowed where its bytes are, one by one") {
  TestRng rng(22);
  const std::vector<std::string> texts = random_texts(&rng, 3000);
  const auto whole = vocabulary_of(texts), bytes = vocabulary_of({});
  const std::vector<std::function<Result<grammar::Rules>()>> forms = {
      [] { return grammar::regex_rules(".*"); },
      [] { return grammar::regex_rules("[^\\s/]+(/[^\\s/]*)*"); },
      [] { return grammar::regex_rules("([^a]|ab){3,}"); },
      [] { return grammar::regex_rules("(\\S\\s?){1,40}"); },
      [] { return grammar::regex_rules(".{1,200}\\."); },
      [] { return grammar::regex_rules("[^Q\\n]*(Q([^z\\n]*|zQ)*7?)*"); },
      [] { return grammar::regex_rules("- .+(\\n- .+){2,9}|(/.*)*"); },
      [] { return grammar::regex_rules("([^\\u00e9]|\\u00e9a)*"); },
      [] { return grammar::regex_rules("[^\\u4e00-\\u9fff]*[\\u4e00-\\u9fff]{2}.{0,200}"); },
      [] { return grammar::json_schema_rules(R"({"type":"string","pattern":"^[^0-9]*$","maxLength":9})"); },
      [] { return grammar::json_schema_rules(R"({"additionalProperties":{"not":{"const":"\u00e9"}}})"); }};
  int64_t num_allowed = 0;
  for (size_t form = 0; form < forms.size(); ++form) {
    CAPTURE(form);
    auto rules = forms[form](), same_rules = forms[form]();
    REQUIRE(rules.ok());
    const auto by_tokens = grammar::make_constraint(std::move(*rules), whole);
    const auto by_bytes = grammar::make_constraint(std::move(*same_rules), bytes);
    REQUIRE(by_tokens.ok());
    REQUIRE(by_bytes.ok());
    for (int answer = 0; answer < 8; ++answer) {
      const auto state = (*by_tokens)->start(), judge = (*by_bytes)->start();
      for (int step = 0; step < 8; ++step) {
        const auto allowed = state->allowed();
        std::vector<size_t> going_on;
        for (size_t i = 0; i < texts.size(); ++i) {
          const bool is_there = is_allowed(allowed, kEnd + 1 + static_cast<TokenId>(i));
          REQUIRE_MESSAGE(is_there == is_allowed_by_bytes(*judge, texts[i]), "token " << i << " " << texts[i]);
          if (is_there) going_on.push_back(i);
        }
        CHECK(is_allowed(allowed, kEnd) == is_allowed(judge->allowed(), kEnd));
        num_allowed += static_cast<int64_t>(going_on.size());
        if (going_on.empty()) break;
        const size_t next = going_on[rng.between(0, static_cast<int32_t>(going_on.size()) - 1)];
        state->advance(kEnd + 1 + static_cast<TokenId>(next));
        for (const char c : texts[next]) judge->advance(static_cast<TokenId>(static_cast<uint8_t>(c)));
      }
    }
  }
  CHECK(num_allowed > 100'000);
}

}  // namespace llmb::test
