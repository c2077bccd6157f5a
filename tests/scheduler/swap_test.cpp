// Preempted sequences whose blocks move to the host's pool and back.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/scheduler/harness.h"

namespace llmb::test {

namespace {

SchedulerConfig swap_config(int32_t num_blocks, int32_t num_host_blocks) {
  SchedulerConfig config = small_config();
  config.num_blocks = num_blocks;
  config.enable_prefix_caching = true;
  config.preemption = PreemptionMode::kSwap;
  config.num_host_blocks = num_host_blocks;
  return config;
}

std::shared_ptr<const Request> request_with(TokenId first, int32_t num_prompt_tokens, int32_t max_tokens) {
  auto request = make_request(num_prompt_tokens, max_tokens);
  for (int32_t i = 0; i < num_prompt_tokens; ++i) request->prompt_tokens[i] = first + i;
  return request;
}

// Steps until the plan swaps blocks; REQUIRES that it does within 100.
void step_until_swap(Harness* h, std::vector<BlockCopy> StepPlan::*swaps) {
  for (int i = 0; i < 100; ++i) {
    REQUIRE(h->schedule());
    if (!(h->plan.*swaps).empty()) return;
    h->apply();
  }
  FAIL("nothing is swapped");
}

// Two sequences of which the second is preempted, as the first takes a block after the other.
struct Preempted : Harness {
  explicit Preempted(const SchedulerConfig& config, int32_t num_prompt_tokens = 15) : Harness(config) {
    first = add(request_with(100, 12, 28));
    second = add(request_with(200, num_prompt_tokens, 20));
  }
  SeqId first = 0, second = 0;
};

}  // namespace

TEST_CASE("blocks of a preempted sequence move when others take them, and come back before it goes on") {
  Preempted h(swap_config(10, 10));
  step_until_swap(&h, &StepPlan::swaps_out);
  CHECK(h.scheduler.num_preemptions_total() == 1);
  std::set<BlockId> on_host;
  int32_t num_out = 0;
  while (h.scheduler.contains(h.first)) {
    for (const BlockCopy& swap : h.plan.swaps_out) on_host.insert(swap.to), ++num_out;
    h.apply();
    CHECK(h.scheduler.num_free_host_blocks() == 10 - num_out);
    REQUIRE(h.schedule());
    if (!h.plan.swaps_in.empty()) break;
  }
  CHECK(static_cast<int32_t>(on_host.size()) == num_out);
  REQUIRE(!h.plan.swaps_in.empty());
  std::set<BlockId> back;
  for (const BlockCopy& swap : h.plan.swaps_in) back.insert(swap.from);
  CHECK(back == on_host);
  h.apply();
  CHECK(h.scheduler.num_free_host_blocks() == 10);
  while (h.step()) {
  }
  CHECK(h.scheduler.num_free_blocks() == 10);
}

TEST_CASE("wherever in a block a sequence is preempted, it goes on behind all that it had computed") {
  using Windows = std::vector<int32_t>;
  const std::pair<Windows, int32_t> pools[] = {{{0}, 10}, {{0}, 12}, {{0, 6}, 14}, {{0, 6}, 17}};
  for (const auto& [windows, num_blocks] : pools) {
    std::set<int32_t> cuts;
    int64_t num_swaps_in = 0;
    for (int32_t num_prompt_tokens = 5; num_prompt_tokens <= 20; ++num_prompt_tokens) {
      SchedulerConfig config = swap_config(num_blocks, 40);
      config.windows = windows;
      config.max_num_batched_tokens = 8;
      Preempted h(config, num_prompt_tokens);
      int32_t num_had = 0, num_preemptions = 0;
      while (h.scheduler.has_work()) {
        const bool is_there = h.scheduler.contains(h.second);
        const int32_t num_computed = is_there ? h.scheduler.find(h.second)->num_computed_tokens : 0;
        REQUIRE(h.schedule());
        if (is_there && h.scheduler.num_preemptions(h.second) > num_preemptions) {
          ++num_preemptions;
          num_had = num_computed;
          cuts.insert(num_had % 4);
        }
        num_swaps_in += static_cast<int64_t>(h.plan.swaps_in.size());
        for (int32_t e = 0; e < h.plan.num_entries(); ++e)
          if (h.plan.entries[e].seq == h.second && num_preemptions > 0) CHECK(h.plan.entries[e].base >= num_had);
        h.apply();
      }
    }
    CHECK(cuts == std::set<int32_t>{0, 1, 2, 3});
    CHECK(num_swaps_in > 0);
  }
}

TEST_CASE("without room on the host, and where it does not pay, the tokens are computed again") {
  SchedulerConfig config = swap_config(10, 1);
  Preempted little(config);
  step_until_swap(&little, &StepPlan::swaps_out);
  CHECK(little.plan.swaps_out.size() == 1);
  little.apply();
  while (little.step()) CHECK(little.plan.swaps_out.size() <= 1);
  config.preemption = PreemptionMode::kAuto;
  Preempted unpaid(config);
  while (unpaid.step()) CHECK(unpaid.plan.swaps_out.empty());
  CHECK(unpaid.scheduler.num_preemptions_total() == 1);
  Preempted paid(config);
  paid.scheduler.set_swap_pays(true);
  step_until_swap(&paid, &StepPlan::swaps_out);
  config.preemption = PreemptionMode::kSwap;
  Preempted told(config);
  told.scheduler.set_swap_pays(false);  // what pays is nobody's question here
  step_until_swap(&told, &StepPlan::swaps_out);
}

TEST_CASE("a sequence that ends while it waits gives the host's blocks back") {
  Preempted h(swap_config(10, 10));
  step_until_swap(&h, &StepPlan::swaps_out);
  h.apply();
  CHECK(h.scheduler.num_free_host_blocks() < 10);
  h.scheduler.finish(h.second);
  h.check();
  CHECK(h.scheduler.num_free_host_blocks() == 10);
  while (h.step()) CHECK(h.plan.swaps_in.empty());
}

TEST_CASE("blocks that another sequence holds stay where they are") {
  // Both begin with the same 8 tokens; the second is preempted.
  Harness h(swap_config(9, 9));
  const SeqId first = h.add(request_with(100, 9, 28));
  h.add(request_with(100, 10, 26));
  step_until_swap(&h, &StepPlan::swaps_out);
  const std::vector<BlockId> shared(h.scheduler.find(first)->blocks.blocks().begin(),
                                    h.scheduler.find(first)->blocks.blocks().begin() + 2);
  const auto count_shared = [&](const std::vector<BlockCopy>& swaps, BlockId BlockCopy::*pool_block) {
    for (const BlockCopy& swap : swaps)
      CHECK(std::find(shared.begin(), shared.end(), swap.*pool_block) == shared.end());
  };
  while (h.scheduler.contains(first)) {
    count_shared(h.plan.swaps_out, &BlockCopy::from);
    count_shared(h.plan.swaps_in, &BlockCopy::to);
    h.apply();
    if (!h.schedule()) break;
  }
}

}  // namespace llmb::test
