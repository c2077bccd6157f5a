// The prefixes that prompts share, against a comparison of each with all before it.
#include "planner/prefix_index.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

using Tokens = std::vector<TokenId>;

int32_t common(const Tokens& a, const Tokens& b) {
  return static_cast<int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

std::vector<Tokens> random_prompts(TestRng* rng, int32_t count, int32_t longest) {
  std::vector<Tokens> prompts;
  for (int32_t i = 0; i < count; ++i) {
    Tokens prompt;
    if (!prompts.empty() && rng->chance(0.8)) {
      prompt = prompts[rng->between(0, static_cast<int32_t>(prompts.size()) - 1)];
      if (rng->chance(0.8)) prompt.resize(rng->between(0, static_cast<int32_t>(prompt.size())));
    }
    const auto room = longest - static_cast<int32_t>(prompt.size());
    for (int32_t more = rng->between(0, room); more > 0; --more) prompt.push_back(rng->between(0, 2));
    prompts.push_back(prompt);
  }
  return prompts;
}

}  // namespace

TEST_CASE("the longest prefix that an earlier prompt has, and the first that has it") {
  int64_t num_shared = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    TestRng rng(seed);
    const std::vector<Tokens> prompts = random_prompts(&rng, 40, 60);
    PrefixIndex index(1 << 20);
    for (size_t i = 0; i < prompts.size(); ++i) {
      int32_t most = 0, first = -1;
      for (size_t j = 0; j < i; ++j)
        if (const int32_t n = common(prompts[i], prompts[j]); n > most) most = n, first = static_cast<int32_t>(j);
      const PrefixIndex::Shared shared = index.add(prompts[i]);
      REQUIRE(shared.num_tokens == most);
      REQUIRE(shared.prompt == first);
      num_shared += most;
    }
    REQUIRE(index.granularity() == 1);
  }
  CHECK(num_shared > 100000);
}

TEST_CASE("in little memory it rounds down, to a power of two that grows, and never says too much") {
  for (const size_t max_bytes : {1024, 4096, 16384}) {
    CAPTURE(max_bytes);
    TestRng rng(max_bytes);
    const std::vector<Tokens> prompts = random_prompts(&rng, 500, 200);
    PrefixIndex index(max_bytes);
    int64_t num_found = 0, num_there = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      int32_t most = 0;
      for (size_t j = 0; j < i; ++j) most = std::max(most, common(prompts[i], prompts[j]));
      const int32_t before = index.granularity();
      const PrefixIndex::Shared shared = index.add(prompts[i]);
      REQUIRE(shared.num_tokens == most / before * before);
      if (shared.num_tokens > 0) REQUIRE(common(prompts[i], prompts[shared.prompt]) >= shared.num_tokens);
      num_found += shared.num_tokens;
      num_there += most;
    }
    CHECK(index.granularity() > 1);
    CHECK(num_found < num_there);
    CHECK(index.num_prompts() == 500);
  }
}

TEST_CASE("nothing is shared by nobody, by an empty prompt, or behind another beginning") {
  PrefixIndex index(1024);
  CHECK(index.add({}).num_tokens == 0);
  CHECK(index.add(Tokens{1, 2, 3}).prompt == -1);
  CHECK(index.add(Tokens{1, 2, 3}).num_tokens == 3);
  CHECK(index.add(Tokens{1, 2}).num_tokens == 2);
  const PrefixIndex::Shared shared = index.add(Tokens{2, 2, 3});
  CHECK(shared.num_tokens == 0);
  CHECK(shared.prompt == -1);
  CHECK(index.add({}).num_tokens == 0);
}

}  // namespace llmb::test
