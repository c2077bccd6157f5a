// Several answers to a prompt: computed once, shared by reference, copied where they part.
#include <doctest/doctest.h>

#include "tests/scheduler/harness.h"

namespace llmb::test {

namespace {

std::shared_ptr<Request> request_for(int32_t num_choices, int32_t num_prompt_tokens, int32_t max_tokens) {
  auto request = make_request(num_prompt_tokens, max_tokens);
  request->params.sampling.num_choices = num_choices;
  return request;
}

// "from>to from>to"
std::string copies(const StepPlan& plan) {
  std::string text;
  for (const BlockCopy& copy : plan.block_copies)
    text += (text.empty() ? "" : " ") + std::to_string(copy.from) + ">" + std::to_string(copy.to);
  return text;
}

}  // namespace

TEST_CASE("choices join in the step that computes the prompt's end and sample the same row, each as itself") {
  Harness h(small_config());
  CHECK(h.add(request_for(3, 6, 9)) == 0);
  CHECK(h.add(2, 9) == 3);
  REQUIRE(h.schedule());
  CHECK(h.shape() == "0:6 3:2");
  REQUIRE(h.plan.num_groups() == 4);
  for (int32_t i = 0; i < 3; ++i) {
    CHECK(h.plan.groups[i].seq == i);
    CHECK(h.plan.groups[i].entry == 0);
    CHECK(h.plan.sample_rows[i].token_row == 5);
    CHECK(h.plan.sample_rows[i].choice == static_cast<uint32_t>(i));
  }
  CHECK(h.scheduler.num_free_blocks() == 61);
  h.apply_given({{20}, {21}, {22}, {7}});
  CHECK(h.updates[2].seq == 2);
  CHECK(h.updates[2].choice == 2);
  REQUIRE(h.schedule());
  CHECK(h.shape() == "0:1 1:1 2:1 3:1");
  CHECK(h.plan.tokens == std::vector<TokenId>{20, 21, 22, 7});
  // Two copies of the half block for three: the last one that holds it writes to it.
  CHECK(copies(h.plan) == "1>3 1>4");
  CHECK(h.plan.block_ids == std::vector<BlockId>{0, 3, 0, 4, 0, 1, 2});
  h.apply();
  REQUIRE(h.schedule());
  CHECK(h.plan.block_copies.empty());
}

TEST_CASE("a preempted choice shares the prompt again and computes only its output") {
  SchedulerConfig config = small_config();
  config.num_blocks = 9;
  Harness h(config);
  h.add(request_for(3, 6, 15));
  while (h.scheduler.num_preemptions_total() == 0) REQUIRE(h.step());
  CHECK(h.scheduler.num_preemptions(2) == 1);
  h.scheduler.finish(1);
  REQUIRE(h.schedule());
  CHECK(h.plan.entries.at(1).seq == 2);
  CHECK(h.plan.entries[1].base == 6);
  CHECK(h.plan.num_rows(1) > 1);
  CHECK(h.plan.block_copies.size() == 1);
  h.apply();
  while (h.step()) {
  }
  CHECK(h.scheduler.num_free_blocks() == 9);
}

TEST_CASE("a preempted choice goes on behind its own answer where the cache has it, though another holds the prompt") {
  SchedulerConfig config = small_config();
  config.num_blocks = 10;
  config.enable_prefix_caching = true;
  Harness h(config);
  h.add(request_for(3, 6, 15));
  while (h.scheduler.num_preemptions_total() == 0) {
    REQUIRE(h.schedule());
    std::vector<std::vector<TokenId>> own;  // equal answers would share blocks
    for (const SampleGroup& group : h.plan.groups) own.push_back({static_cast<TokenId>(20 + group.seq)});
    h.apply_given(own);
  }
  CHECK(h.scheduler.num_preemptions(2) == 1);
  h.scheduler.finish(1);
  REQUIRE(h.schedule());
  CHECK(h.plan.entries.at(1).seq == 2);
  CHECK(h.plan.entries[1].base >= 8);
}

TEST_CASE("a chunk that ends before the prompt's last token: the next step computes that token once, for all choices") {
  for (const bool is_cached : {false, true}) {
    CAPTURE(is_cached);
    SchedulerConfig config = small_config();
    config.max_num_batched_tokens = 5;
    config.enable_prefix_caching = is_cached;
    Harness h(config);
    h.add(request_for(2, 6, 9));
    REQUIRE(h.schedule());
    CHECK(h.shape() == "0:5");
    h.apply();
    REQUIRE(h.schedule());
    CHECK(h.shape() == "0:1");
    CHECK(h.plan.num_groups() == 2);
    h.apply();
  }
}

TEST_CASE("a choice that gets a seat in the step behind the prompt computes the prompt's last token only") {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 2;
  Harness h(config);
  h.add(2, 1);
  h.add(request_for(2, 6, 9));
  REQUIRE(h.schedule());
  CHECK(h.shape() == "0:2 1:6");
  h.apply();
  REQUIRE(h.schedule());
  CHECK(h.shape() == "1:1 2:1");
  CHECK(h.plan.entries.at(1).base == 5);
}

TEST_CASE("a preempted choice waits for the one before it that computes the prompt again, with a cache and without") {
  for (const bool is_cached : {false, true}) {
    CAPTURE(is_cached);
    SchedulerConfig config = small_config();
    config.num_blocks = 14;
    config.enable_prefix_caching = is_cached;
    Harness h(config);
    for (TokenId i = 0; i < 4; ++i) {
      auto other = request_for(1, 4, 40);
      other->prompt_tokens.assign(4, 30 + i);
      h.add(other);
    }
    CHECK(h.add(request_for(2, 6, 30)) == 4);
    while (h.scheduler.num_preemptions_total() < 2) REQUIRE(h.step());
    REQUIRE(h.scheduler.num_preemptions(4) == 1);
    REQUIRE(h.scheduler.num_preemptions(5) == 1);
    while (h.scheduler.num_free_blocks() > 0) REQUIRE(h.step());  // until nothing of theirs is in the cache
    for (SeqId seq = 0; seq < 4; ++seq) h.scheduler.finish(seq);
    REQUIRE(h.schedule());
    REQUIRE(h.plan.num_entries() == 1);
    CHECK(h.plan.entries[0].seq == 4);
    CHECK(h.plan.entries[0].base == 0);
    h.apply();
    REQUIRE(h.schedule());
    REQUIRE(h.plan.num_entries() == 2);
    CHECK(h.plan.entries[1].seq == 5);
    CHECK(h.plan.entries[1].base >= 6);
  }
}

TEST_CASE(
    "16 choices of a prompt of 1,000 tokens: it is computed once, and blocks are its own and those of 16 answers") {
  for (const int32_t num_prompt_tokens :
       {992, 1000, 1007, 1008}) {  // a border of blocks, in one, one before, on the next
    for (const bool is_cached : {true, false}) {
      CAPTURE(num_prompt_tokens);
      CAPTURE(is_cached);
      SchedulerConfig config = small_config();
      config.max_num_seqs = 16;
      config.max_num_batched_tokens = 256;
      config.block_size = 16;
      config.num_blocks = 200;
      config.max_model_len = 1200;
      config.enable_prefix_caching = is_cached;
      Harness h(config);
      h.add(request_for(16, num_prompt_tokens, 50));
      const auto num_prompt_blocks = static_cast<int32_t>(ceil_div(num_prompt_tokens, config.block_size));
      const auto num_own_blocks = static_cast<int32_t>(ceil_div(49 + config.block_size - 1, config.block_size));
      int64_t num_rows = 0, num_copies = 0;
      while (h.schedule()) {
        num_rows += h.plan.num_tokens();
        num_copies += static_cast<int64_t>(h.plan.block_copies.size());
        CHECK(config.num_blocks - h.scheduler.num_free_blocks() <= num_prompt_blocks + 16 * num_own_blocks);
        h.apply();
      }
      CHECK(num_rows == num_prompt_tokens + 16 * 49);
      CHECK(h.scheduler.prompt_tokens().num_computed == num_prompt_tokens);
      CHECK(num_copies == (num_prompt_tokens % config.block_size == 0 ? 0 : 15));
      CHECK(h.scheduler.num_preemptions_total() == 0);
    }
  }
}

TEST_CASE("beams for which the device gives too few tokens are refused, those that it can do are not") {
  SchedulerConfig config = small_config();
  config.max_best_tokens = 6;
  Scheduler scheduler(config);
  auto request = make_request(5, 5);
  request->params.sampling.beams = BeamParams{.width = 4};
  request->params.sampling.count_choices();
  request->eos_token_ids = {1, 2, 3};
  CHECK(std::holds_alternative<SeqId>(scheduler.add(request, 0)));
  request = std::make_shared<Request>(*request);
  request->params.stop.ignore_eos = false;
  const auto refused = scheduler.add(request, 0);
  REQUIRE(std::holds_alternative<RequestError>(refused));
  CHECK(std::get<RequestError>(refused).param == "beam_width");
  request = std::make_shared<Request>(*request);
  request->eos_token_ids = {1, 2};
  CHECK(std::holds_alternative<SeqId>(scheduler.add(request, 0)));
}

}  // namespace llmb::test
