#include <doctest/doctest.h>

#include <memory>

#include "core/draft_counts.h"
#include "tests/scheduler/harness.h"
#include "tests/support/toy_constraint.h"

namespace llmb::test {

namespace {

// Allows the tokens of a script, a set a step, and behind it all of the vocabulary of 40.
class ScriptedConstraint : public TokenConstraint {
 public:
  explicit ScriptedConstraint(std::vector<std::vector<TokenId>> script) : script_(std::move(script)) {}
  std::unique_ptr<ConstraintState> start() const override { return std::make_unique<State>(script_); }
  size_t num_bytes() const override { return 0; }

 private:
  struct State : ConstraintState {
    explicit State(const std::vector<std::vector<TokenId>>& script_) : script(script_) {}
    std::span<const uint32_t> allowed() override {
      mask = {at < script.size() ? 0u : ~0u, at < script.size() ? 0u : 0xFFu};
      for (const TokenId token : at < script.size() ? script[at] : std::vector<TokenId>())
        mask[token / 32] |= 1u << token % 32;
      return mask;
    }
    void advance(TokenId token) override {
      CHECK(is_allowed(allowed(), token));
      ++at;
    }
    std::unique_ptr<ConstraintState> clone() const override { return std::make_unique<State>(*this); }

    const std::vector<std::vector<TokenId>>& script;
    size_t at = 0;
    std::vector<uint32_t> mask;
  };

  const std::vector<std::vector<TokenId>> script_;
};

struct FixedProposer final : Proposer {
  void propose(const Sequence&, int32_t, Drafts* out) override { *out = drafts; }
  bool must_see(const Sequence&) const override { return false; }
  void on_verified(const Sequence&, int32_t drafted, int32_t accepted) override {
    num_drafted += drafted, num_accepted += accepted;
  }
  Drafts drafts;
  int32_t num_drafted = 0, num_accepted = 0;
};

std::shared_ptr<Request> scripted_request(std::vector<std::vector<TokenId>> script, int32_t max_tokens = 20) {
  auto request = make_request(3, max_tokens);
  request->constraint = std::make_shared<ScriptedConstraint>(std::move(script));
  return request;
}

SchedulerConfig config_with_drafts() {
  SchedulerConfig config = small_config();
  config.max_num_drafts = 8;
  return config;
}

// The only token that the plan's mask of a sample row allows, or -1.
TokenId only_token(const StepPlan& plan, int32_t sample) {
  TokenId found = -1;
  const auto mask = mask_of(plan.sample_rows[sample], plan.masks, plan.mask_words);
  for (TokenId token = 0; token < 40; ++token)
    if (is_allowed(mask, token)) found = found < 0 ? token : -2;
  return found < 0 ? -1 : found;
}

std::shared_ptr<Request> constrained_request(int32_t max_tokens, uint32_t one_in = 1) {
  auto request = make_request(3, max_tokens);
  request->constraint = std::make_shared<ToyConstraint>(5, 40, one_in, std::vector<TokenId>());
  return request;
}

}  // namespace

TEST_CASE("a row with a constraint is sampled behind its own mask, others behind none") {
  Harness h(small_config());
  auto shared = constrained_request(5, 3);
  h.add(shared);
  h.add(3, 5);
  REQUIRE(h.schedule());
  REQUIRE(h.plan.num_samples() == 2);
  CHECK(h.plan.mask_words == 2);
  CHECK(h.plan.sample_rows[0].mask == 0);
  CHECK(h.plan.sample_rows[1].mask == -1);
  const auto state = shared->constraint->start();
  const auto holds = [&] {
    const auto expected = state->allowed();
    return std::equal(expected.begin(), expected.end(), h.plan.masks.begin(), h.plan.masks.end());
  };
  CHECK(holds());
  for (const TokenId token : {4, 9, 2}) {
    h.apply(token);
    state->advance(token);
    REQUIRE(h.schedule());
    CHECK(holds());
  }
}

TEST_CASE("a prompt that is computed in chunks needs a mask with its last chunk only") {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 2;
  Harness h(config);
  h.add(constrained_request(2));
  REQUIRE(h.schedule());
  CHECK(h.plan.num_masks() == 0);
  h.apply();
  REQUIRE(h.schedule());
  CHECK(h.plan.num_masks() == 1);
}

TEST_CASE("where fewer than half of the rows have constraints they alone sit out the plan ahead, else nobody has one") {
  for (const int32_t num_constrained : {0, 1, 2, 3, 4}) {
    CAPTURE(num_constrained);
    Harness h(small_config());
    for (int32_t i = 0; i < num_constrained; ++i) h.add(constrained_request(9));
    for (int32_t i = num_constrained; i < 4; ++i) h.add(3, 9);
    REQUIRE(h.schedule());
    CHECK(h.plan.num_entries() == 4);
    CHECK(h.schedule_ahead() == (num_constrained < 2));
    if (num_constrained < 2) CHECK(h.ahead.num_entries() == 4 - num_constrained);
    h.apply();
  }
}

TEST_CASE("tokens that a constraint leaves no choice of need no steps of their own, and are no drafts of anybody's") {
  Harness h(config_with_drafts());
  h.add(scripted_request({{1, 2}, {5}, {6}, {7, 8}, {9}}));
  REQUIRE(h.schedule());
  h.apply(1);
  REQUIRE(h.schedule());
  CHECK(h.plan.tokens == std::vector<TokenId>{1, 5, 6});
  REQUIRE(h.plan.num_samples() == 3);
  CHECK(h.plan.groups[0].mode == SampleMode::kVerify);
  CHECK((only_token(h.plan, 0) == 5 && only_token(h.plan, 1) == 6 && only_token(h.plan, 2) == -1));
  h.apply_given({{5, 6, 8}});
  REQUIRE(h.updates.size() == 3);
  CHECK(h.updates[2].drafted[0].num_drafted == 0);
  REQUIRE(h.schedule());
  CHECK(h.plan.tokens == std::vector<TokenId>{8, 9});
}

TEST_CASE("tokens without a choice are no guesses, of which there may be few or none") {
  FixedProposer proposer;
  for (const int32_t max_guesses : {0, 2}) {
    CAPTURE(max_guesses);
    SchedulerConfig config = config_with_drafts();
    config.max_drafts_per_group = max_guesses;
    Harness h(config, &proposer);
    h.add(scripted_request({{1, 2}, {5}, {6}, {4}, {7, 8}, {9}, {3}, {2}, {1, 2}}));
    REQUIRE(h.schedule());
    h.apply(1);
    REQUIRE(h.schedule());
    CHECK(h.plan.tokens == std::vector<TokenId>{1, 5, 6, 4});
    CHECK(num_guesses(h.plan, h.plan.groups[0]) == 0);
    h.apply_given({{5, 6, 4, 8}});
    proposer.drafts.tokens = {9, 3, 5};
    REQUIRE(h.schedule());
    // A right guess of a token without a choice is none; with guesses the limit is theirs.
    CHECK(h.plan.tokens == (max_guesses == 0 ? std::vector<TokenId>{8, 9, 3, 2} : std::vector<TokenId>{8, 9, 3}));
    CHECK(num_guesses(h.plan, h.plan.groups[0]) == 0);
    proposer.drafts.tokens.clear();
  }
  SchedulerConfig config = config_with_drafts();
  Harness h(config, &proposer);
  h.add(scripted_request({{1}, {5}, {6, 7}, {4}, {2, 3}}));
  REQUIRE(h.schedule());
  h.apply(1);
  proposer.drafts.tokens = {5, 7};
  REQUIRE(h.schedule());
  CHECK(h.plan.tokens == std::vector<TokenId>{1, 5, 7, 4});
  CHECK(num_guesses(h.plan, h.plan.groups[0]) == 2);  // 7, and 4 behind it
  std::vector<int32_t> num_drafts;
  count_drafts(h.plan, &num_drafts);
  CHECK(num_drafts == std::vector<int32_t>{2});
}

TEST_CASE("forced tokens end where the answer does, and where there is no room for drafts there are none") {
  Harness h(config_with_drafts());
  h.add(scripted_request({{1}, {2}, {3}, {4}, {5}}, 4));
  REQUIRE(h.schedule());
  h.apply(1);
  REQUIRE(h.schedule());
  CHECK(h.plan.tokens == std::vector<TokenId>{1, 2, 3});  // and one token more
  h.apply_given({{2, 3, 4}});
  CHECK(h.updates.back().finish == FinishReason::kLength);
  Harness without(small_config());
  without.add(scripted_request({{1}, {2}, {3}}));
  REQUIRE(without.schedule());
  without.apply(1);
  REQUIRE(without.schedule());
  CHECK(without.plan.num_tokens() == 1);
}

TEST_CASE("drafts are kept as far as the constraint allows them, each behind its own mask; forced tokens go on") {
  FixedProposer proposer;
  Harness h(config_with_drafts(), &proposer);
  h.add(scripted_request({{1}, {5, 6}, {7, 8}, {9}, {1, 2, 3}}));
  REQUIRE(h.schedule());
  h.apply(1);
  proposer.drafts.tokens = {6, 8, 9, 4, 4};
  REQUIRE(h.schedule());
  CHECK(h.plan.tokens == std::vector<TokenId>{1, 6, 8, 9});
  h.apply_given({{6, 7}});
  CHECK((proposer.num_drafted == 3 && proposer.num_accepted == 1));
  proposer.drafts.tokens = {8};
  REQUIRE(h.schedule());
  CHECK(h.plan.tokens == std::vector<TokenId>{7, 9});  // the draft is not allowed, the forced token is certain
  h.apply_given({{9, 3}});
  CHECK((proposer.num_drafted == 3 && proposer.num_accepted == 1));
  CHECK(h.updates.back().drafted[0].num_drafted == 3);
}

TEST_CASE("of a tree of drafts the allowed branches stay") {
  FixedProposer proposer;
  SchedulerConfig config = config_with_drafts();
  config.allows_trees = true;
  Harness h(config, &proposer);
  h.add(scripted_request({{1}, {5, 6}, {7, 8}, {9, 10}}));
  REQUIRE(h.schedule());
  h.apply(1);
  proposer.drafts.tokens = {4, 7, 6, 5, 8, 7};
  proposer.drafts.parents = {-1, 0, -1, -1, 2, 3};
  REQUIRE(h.schedule());
  CHECK(h.plan.tokens == std::vector<TokenId>{1, 6, 5, 8, 7});
  CHECK(h.plan.parent_rows == std::vector<int32_t>{-1, 0, 0, 1, 2});
  CHECK(h.plan.num_masks() == 5);
}

TEST_CASE("nothing is left to choose: the answer ends in an error that says so") {
  Harness h(small_config());
  auto request = constrained_request(9);
  for (TokenId token = 0; token < 40; ++token)
    request->params.sampling.logit_bias.emplace_back(token, -std::numeric_limits<float>::infinity());
  h.add(request);
  h.add(constrained_request(9));
  REQUIRE(h.schedule());
  h.output.clear();
  give(std::vector<TokenId>{}, &h.output);
  give(std::vector<TokenId>{}, &h.output);
  h.output.is_finite = {0, 0};
  h.apply_output();
  REQUIRE(h.updates.size() == 2);
  CHECK((h.updates[0].numeric_error && h.updates[0].has_no_choice));
  CHECK((h.updates[1].numeric_error && !h.updates[1].has_no_choice));
  CHECK(h.updates[0].finish == FinishReason::kError);
}

}  // namespace llmb::test
