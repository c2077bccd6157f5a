// Snapshots of recurrent states in the prefix cache, against the fewest prompt tokens that rows need if a snapshot
// stands wherever two of them part.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "tests/support/test_rng.h"
#include "tests/support/workload.h"

namespace llmb::test {

namespace {

using Tokens = std::vector<TokenId>;
using Requests = std::vector<std::shared_ptr<const Request>>;

// Requests whose prompts are paths of a random tree.
Requests random_requests(uint64_t seed, bool has_choices) {
  TestRng rng(seed);
  std::vector<Tokens> prompts;
  Requests requests;
  for (int32_t i = rng.between(2, 24); i > 0; --i) {
    Tokens prompt;
    if (!prompts.empty() && rng.chance(0.8)) {
      prompt = prompts[rng.between(0, static_cast<int32_t>(prompts.size()) - 1)];
      if (rng.chance(0.7)) prompt.resize(rng.between(0, static_cast<int32_t>(prompt.size())));
    }
    const auto room = 100 - static_cast<int32_t>(prompt.size());
    const int32_t num_more = prompt.empty() ? rng.log_between(1, room) : rng.between(0, std::min(room, 30));
    for (int32_t more = num_more; more > 0; --more) prompt.push_back(rng.between(1, 3));
    if (prompt.empty()) prompt.push_back(1);
    prompts.push_back(prompt);
    auto request = make_request(1, rng.between(1, 20));
    request->prompt_tokens = prompt;
    if (has_choices && rng.chance(0.15)) request->params.sampling.num_choices = rng.between(2, 4);
    requests.push_back(request);
  }
  return requests;
}

SchedulerConfig random_config(uint64_t seed) {
  TestRng rng(seed ^ 0x636f6e66);
  SchedulerConfig config;
  config.batching = static_cast<BatchingMode>(rng.chance(0.7) ? 3 : rng.between(0, 3));
  config.max_num_seqs = rng.log_between(1, 16);
  config.max_num_batched_tokens = rng.log_between(config.max_num_seqs, 200);
  config.block_size = rng.log_between(1, 16);
  config.max_model_len = 128;
  config.num_blocks = 24 * 5 * static_cast<int32_t>(ceil_div(config.max_model_len, config.block_size));  // holds all
  config.enable_prefix_caching = true;
  return config;
}

struct Outcome {
  int64_t num_computed = 0;  // prompt tokens
  int64_t fewest = 0;        // of those, that rows need in the order in which they joined
  int64_t num_rows = 0, num_exact = 0;  // rows that joined, and those that began behind what they share
};

Outcome run(const Requests& requests, SchedulerConfig config, int32_t num_snapshots, double ahead_rate) {
  ModelConfig model;
  model.vocab_size = 4;
  model.state = {StateKind::kGatedDelta, 1, 1, 2, 2, 2};
  model.layers.resize(1);
  LedgerOptions options;
  options.check_every_slot = true;
  const auto backend = make_ledger_backend(options);
  LoadOptions load;
  load.block_size = config.block_size;
  load.num_blocks_override = config.num_blocks;
  load.max_num_seqs = config.max_num_seqs;
  load.max_model_len = config.max_model_len;
  REQUIRE(backend->load(model, load).ok());
  config.num_state_slots = backend->info().num_state_slots;
  config.num_snapshots = num_snapshots;
  config.max_drafts_per_group = 0;
  Scheduler scheduler(config);
  std::map<SeqId, Tokens> answers;
  for (const auto& request : requests) REQUIRE(std::holds_alternative<SeqId>(scheduler.add(request, 0)));

  Outcome outcome;
  TestRng rng(7);
  std::vector<Tokens> joined;
  std::map<SeqId, bool> has_joined;
  StepPlan plans[2];
  StepOutput output;
  std::vector<SequenceUpdate> updates;
  int64_t num_submitted = 0, num_finished = 0;
  const auto submit = [&] {
    StepPlan& plan = plans[num_submitted % 2];
    if (!scheduler.schedule(0, false, &plan)) return false;
    const Status status = scheduler.check_integrity();
    REQUIRE_MESSAGE(status.ok(), status.message());
    for (const StepEntry& entry : plan.entries) {
      if (std::exchange(has_joined[entry.seq], true)) continue;
      const Sequence& sequence = *scheduler.find(entry.seq);
      const Tokens& prompt = sequence.request->prompt_tokens;
      int32_t begin = 0;
      for (const Tokens& other : joined)
        begin = std::max<int32_t>(
            begin, std::mismatch(prompt.begin(), prompt.end(), other.begin(), other.end()).first - prompt.begin());
      begin = std::min(begin, sequence.num_prompt_tokens() - 1) / config.block_size * config.block_size;
      ++outcome.num_rows;
      outcome.num_exact += entry.base == begin;
      outcome.fewest += sequence.num_prompt_tokens() - begin;
      joined.push_back(prompt);
    }
    for (const SampleGroup& group : plan.groups) has_joined[group.seq] = true;  // choices that share a row
    const Status submitted = backend->submit(plan);
    REQUIRE_MESSAGE(submitted.ok(), submitted.message());
    ++num_submitted;
    return true;
  };
  while (true) {
    if (num_submitted == num_finished && !submit()) break;
    if (num_submitted - num_finished == 1 && rng.chance(ahead_rate)) submit();
    REQUIRE(backend->wait(&output).ok());
    scheduler.apply(plans[num_finished++ % 2], output, &updates);
    const Status status = scheduler.check_integrity();
    REQUIRE_MESSAGE(status.ok(), status.message());
    for (const SequenceUpdate& update : updates) answers[update.seq].push_back(update.token);
  }
  REQUIRE(!scheduler.has_work());
  const LedgerModel reference = make_ledger_model(model, {});
  SeqId id = 0;
  for (const auto& request : requests)
    for (int32_t choice = 0; choice < request->params.sampling.num_choices; ++choice, ++id)
      REQUIRE(answers[id] == ledger_reference(reference, *request, config.max_model_len, choice).tokens);
  outcome.num_computed = scheduler.prompt_tokens().num_computed;
  return outcome;
}

}  // namespace

TEST_CASE("a row begins behind the longest prefix in whole blocks that it shares with an earlier one") {
  Outcome sum;
  int64_t num_tokens = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    const Requests requests = random_requests(seed, false);
    const Outcome outcome = run(requests, random_config(seed), 256, seed % 3 / 2.0);
    for (const auto& request : requests) num_tokens += static_cast<int64_t>(request->prompt_tokens.size());
    sum.num_computed += outcome.num_computed;
    sum.fewest += outcome.fewest;
    sum.num_rows += outcome.num_rows;
    sum.num_exact += outcome.num_exact;
  }
  MESSAGE(num_tokens << " prompt tokens, " << sum.num_computed << " computed, " << sum.fewest << " at least; "
                     << sum.num_exact << " of " << sum.num_rows << " rows begin exactly there");
  // Where an answer happened to go on as a prompt does, some of the prompt's nodes are that answer's at first.
  CHECK(100 * sum.num_computed <= 101 * sum.fewest);
  CHECK(100 * sum.num_exact >= 99 * sum.num_rows);
  CHECK(5 * num_tokens > 6 * sum.num_computed);
}

TEST_CASE("rows in the order of their prefixes need a few snapshots only") {
  Outcome sum;
  int64_t num_without = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    Requests requests = random_requests(seed, true);
    std::sort(requests.begin(), requests.end(),
              [](const auto& a, const auto& b) { return a->prompt_tokens < b->prompt_tokens; });
    const Outcome outcome = run(requests, random_config(seed), 8, 1);
    num_without += run(requests, random_config(seed), 0, 1).num_computed;
    sum.num_computed += outcome.num_computed;
    sum.fewest += outcome.fewest;
  }
  MESSAGE(sum.num_computed << " prompt tokens computed, " << sum.fewest << " at least, " << num_without
                           << " without snapshots");
  CHECK(100 * sum.num_computed <= 102 * sum.fewest);
  CHECK(num_without > 3 * sum.num_computed / 2);
}

}  // namespace llmb::test
