// Beam search against its rules written down once more, over whole vocabularies and without lists of candidates; and
// which sequence computes which beam.
#include "engine/beam_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "engine/active_beams.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

using Tokens = std::vector<TokenId>;
using NextLogprobs = std::function<std::vector<float>(const Tokens&)>;  // [vocab] after these

struct Settings {
  BeamParams params;
  int32_t max_tokens = 1;
  std::set<TokenId> ending;
};

// transformers' _beam_search, step by step: all continuations in one sorted list, K of which are looked at.
std::vector<BeamAnswer> plain_search(const Settings& settings, const NextLogprobs& next_logprobs) {
  struct Row {
    float score;
    Tokens tokens;
    bool is_finished;
  };
  const auto by_score = [](const Row& a, const Row& b) { return a.score > b.score; };
  const auto width = static_cast<size_t>(settings.params.width);
  const size_t beams_to_keep = std::max<size_t>(2, 1 + settings.ending.size()) * width;
  const auto power = [&](size_t length) {
    return static_cast<float>(std::pow(static_cast<double>(length), double{settings.params.length_penalty}));
  };
  std::vector<Row> running = {{0, {}, false}}, finished;
  for (int32_t length = 1;; ++length) {
    std::vector<Row> all;
    for (const Row& beam : running) {
      const std::vector<float> logprobs = next_logprobs(beam.tokens);
      // Within a beam the more likely token goes first where sums are equal.
      std::vector<TokenId> order(logprobs.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<TokenId>(i);
      std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return logprobs[a] > logprobs[b]; });
      for (const TokenId token : order) {
        Tokens tokens = beam.tokens;
        tokens.push_back(token);
        const bool ends = settings.ending.contains(token) || length == settings.max_tokens;
        all.push_back({logprobs[token] + beam.score, tokens, ends});
      }
    }
    std::stable_sort(all.begin(), all.end(), by_score);
    if (all.size() > beams_to_keep) all.resize(beams_to_keep);
    running.clear();
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].is_finished && running.size() < width) running.push_back(all[i]);
      if (!all[i].is_finished || i >= width) continue;
      finished.push_back({all[i].score / power(all[i].tokens.size()), all[i].tokens, true});
    }
    std::stable_sort(finished.begin(), finished.end(), by_score);
    if (finished.size() > width) finished.resize(width);
    const bool is_full = finished.size() == width;
    const bool may_grow = settings.params.early_stopping == EarlyStopping::kNever && settings.params.length_penalty > 0;
    bool goes_on = !running.empty();
    if (goes_on && is_full && settings.params.early_stopping == EarlyStopping::kTrue) goes_on = false;
    if (goes_on && is_full)
      goes_on = running[0].score / power(may_grow ? settings.max_tokens : length) > finished.back().score;
    if (goes_on) continue;
    std::vector<BeamAnswer> answers;
    for (const Row& row : finished)
      answers.push_back({row.tokens, row.score, settings.ending.contains(row.tokens.back())});
    return answers;
  }
}

std::vector<BeamCandidate> best_candidates(const Settings& settings, const std::vector<float>& logprobs) {
  std::vector<BeamCandidate> candidates;
  for (size_t i = 0; i < logprobs.size(); ++i)
    candidates.push_back({static_cast<TokenId>(i), logprobs[i], settings.ending.contains(static_cast<TokenId>(i))});
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const BeamCandidate& a, const BeamCandidate& b) { return a.logprob > b.logprob; });
  const size_t enough = static_cast<size_t>(settings.params.width) + settings.ending.size();
  if (candidates.size() > enough) candidates.resize(enough);
  return candidates;
}

std::vector<BeamAnswer> search(const Settings& settings, const NextLogprobs& next_logprobs) {
  BeamSearch search(settings.params, settings.max_tokens);
  while (true) {
    std::vector<std::vector<BeamCandidate>> candidates;
    for (const Beam& beam : search.beams()) candidates.push_back(best_candidates(settings, next_logprobs(beam.tokens)));
    if (!search.advance(candidates)) return search.answers();
  }
}

// Log-probabilities as good as random, a quarter of them from few values, so that ties happen.
NextLogprobs random_model(uint64_t seed, int32_t vocab, bool has_ties) {
  return [=](const Tokens& tokens) {
    uint64_t hash = seed;
    for (const TokenId token : tokens)
      hash = hash * 6364136223846793005u + static_cast<uint64_t>(token) + 1442695040888963407u;
    TestRng rng(hash);
    std::vector<float> logprobs(static_cast<size_t>(vocab));
    for (float& logprob : logprobs)
      logprob = has_ties ? -0.5f * static_cast<float>(rng.between(0, 5))
                         : -static_cast<float>(rng.between(0, 1 << 20)) * 1e-5f;
    return logprobs;
  };
}

bool is_same(const BeamAnswer& a, const BeamAnswer& b) {
  return a.tokens == b.tokens && a.score == b.score && a.is_ended == b.is_ended;
}

}  // namespace

TEST_CASE("beam search gives the answers of its rules written plainly, for random models, widths and settings") {
  TestRng rng(5);
  int64_t num_ended = 0, num_at_limit = 0, num_early = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Settings settings;
    settings.params.width = rng.log_between(1, 9);
    settings.params.length_penalty = 0.5f * static_cast<float>(rng.between(-2, 4));
    settings.params.early_stopping = static_cast<EarlyStopping>(rng.between(0, 2));
    settings.max_tokens = rng.log_between(1, 12);
    const int32_t vocab = rng.log_between(std::max(2, settings.params.width), 30);
    for (int32_t i = rng.between(0, 3); i > 0; --i) settings.ending.insert(rng.between(0, vocab - 1));
    CAPTURE(seed);
    const NextLogprobs model = random_model(seed, vocab, seed % 4 == 0);
    const std::vector<BeamAnswer> expected = plain_search(settings, model), actual = search(settings, model);
    REQUIRE(actual.size() == expected.size());
    REQUIRE(!actual.empty());
    for (size_t i = 0; i < actual.size(); ++i) {
      REQUIRE(is_same(actual[i], expected[i]));
      num_ended += actual[i].is_ended;
      num_at_limit += !actual[i].is_ended;
      num_early += actual[i].tokens.size() < static_cast<size_t>(settings.max_tokens);
    }
  }
  CHECK(num_ended > 1000);
  CHECK(num_at_limit > 1000);
  CHECK(num_early > 1000);
}

TEST_CASE("one beam is greedy, and 256 beams of a small vocabulary are all continuations") {
  Settings settings;
  settings.max_tokens = 6;
  const NextLogprobs model = random_model(9, 20, false);
  Tokens greedy;
  for (int i = 0; i < 6; ++i) {
    const std::vector<float> logprobs = model(greedy);
    greedy.push_back(static_cast<TokenId>(std::max_element(logprobs.begin(), logprobs.end()) - logprobs.begin()));
  }
  CHECK(search(settings, model).at(0).tokens == greedy);
  settings.params.width = 256;
  settings.max_tokens = 2;
  const NextLogprobs small = random_model(9, 4, false);
  CHECK(search(settings, small).size() == 16);
}

TEST_CASE("a beam stays with the choice that has computed it; who has no child takes over another's") {
  Request request;
  request.params.sampling.n = 3;
  request.params.sampling.beams = BeamParams{.width = 3};
  request.params.sampling.count_choices();
  request.params.stop.max_tokens = 9;
  ActiveBeams beams(request);
  const auto give = [&](int32_t choice, std::vector<float> logprobs) {
    StepOutput output;
    for (size_t i = 0; i < logprobs.size(); ++i) output.tokens.push_back(10 * (choice + 1) + static_cast<TokenId>(i));
    output.logprobs = std::move(logprobs);
    return beams.add(choice, output, 0, static_cast<int32_t>(output.tokens.size()));
  };
  const auto check = [&](std::vector<BeamFork> expected) {
    REQUIRE(beams.advance(0));
    REQUIRE(beams.forks().size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      CHECK(beams.forks()[i].choice == expected[i].choice);
      CHECK(beams.forks()[i].parent == expected[i].parent);
      CHECK(beams.forks()[i].token == expected[i].token);
    }
  };
  CHECK(give(0, {-1, -1.5f, -2}));
  check({{0, 0, 10}, {1, 0, 11}, {2, 0, 12}});
  CHECK_FALSE(give(2, {-5, -6, -7}));
  CHECK_FALSE(give(0, {-3, -4, -5}));
  CHECK(give(1, {-0.5f, -0.6f, -4}));
  check({{1, 1, 20}, {2, 1, 21}, {0, 0, 10}});
}

}  // namespace llmb::test
