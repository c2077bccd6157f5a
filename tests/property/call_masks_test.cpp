// Masks of arguments in Gemma's notation, brute force: every token of the bundled vocabulary at every step; and whole ones
// as the reader of calls reads them. LLMB_NUM_GRAMMARS as in grammar_masks_test.cpp.
#include <doctest/doctest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "chat/tool_calls.h"
#include "grammar/call_forms.h"
#include "tests/support/mask_check.h"
#include "tests/support/random_schema.h"

namespace llmb::test {

TEST_CASE("masks of random arguments in Gemma's notation are those of a naive search, and whole ones are read") {
  const char* const count = std::getenv("LLMB_NUM_GRAMMARS");
  const int64_t num_schemas = count ? std::strtoll(count, nullptr, 10) : 16;
  const auto vocabulary = bundled_vocabulary();
  int64_t num_steps = 0, num_tokens = 0, num_read = 0;
  for (int64_t seed = 0; seed < num_schemas; ++seed) {
    TestRng rng(static_cast<uint64_t>(seed) + 5'000'000);
    const GemmaTags tags = gemma_tags(seed % 2 == 0 ? ToolCallFormat::kGemma4 : ToolCallFormat::kFunctionGemma);
    const std::string quote(tags.quote);
    const RandomSchema random = random_arguments(rng, quote);
    auto rules = grammar::call_rules({{"f", random.schema, ""}}, "", false, quote);
    REQUIRE_MESSAGE(rules.ok(), random.schema << rules.status().message());
    const auto constraint = grammar::make_constraint(std::move(*rules), vocabulary);
    REQUIRE_MESSAGE(constraint.ok(), constraint.status().message());
    NaiveLanguage naive(Naive::sequence({Naive::text("f"), random.naive}), random.rules);
    for (int answer = 0; answer < 4; ++answer) {
      const MaskCheck check = check_masks(**constraint, *vocabulary, naive, 1, 10, rng);
      REQUIRE_MESSAGE(check.difference.empty(), "seed " << seed << "\n" << random.schema << "\n" << check.difference);
      num_steps += check.num_steps, num_tokens += check.num_tokens;
      if (!naive.judge(check.text).is_complete) continue;
      size_t end = 0;
      const auto call = read_gemma_call(check.text, 0, quote, &end);
      REQUIRE_MESSAGE(call, random.schema << "\n" << check.text);
      REQUIRE(end == check.text.size());
      const auto arguments = nlohmann::json::parse(call->arguments, nullptr, /*allow_exceptions=*/false);
      REQUIRE_MESSAGE(arguments.contains("v"), check.text << "\n" << call->arguments);
      ++num_read;
    }
  }
  CHECK(num_read > num_schemas / 2);
  MESSAGE(num_steps << " steps, " << num_tokens << " tokens, " << num_read << " whole ones read");
}

}  // namespace llmb::test
