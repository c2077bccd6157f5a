// Prefill and decode apart, as two engines with a backend each: answers are those of one engine, bit by bit, and the
// second one computes of each prompt what lies behind its whole blocks.
#include <doctest/doctest.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/ledger/ledger_backend.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/prompt_transfer.h"
#include "model/config_loader.h"
#include "tests/support/delayed_calls.h"
#include "tests/support/golden.h"
#include "tests/support/listed_requests.h"
#include "tests/support/plan_builder.h"
#include "tests/support/source_dir.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tiny_model.h"
#include "tests/support/window_requests.h"
#include "tests/support/workload.h"

namespace llmb::test {
namespace {

class ItemSource final : public RequestSource {
 public:
  explicit ItemSource(std::deque<WorkItem> items) : items_(std::move(items)) {}
  std::optional<WorkItem> next(double) override {
    if (items_.empty()) return std::nullopt;
    WorkItem item = std::move(items_.front());
    items_.pop_front();
    return item;
  }
  bool at_end() const override { return items_.empty(); }
  void stop() override { items_.clear(); }

 private:
  std::deque<WorkItem> items_;
};

using Items = std::map<int64_t, FinishedItem>;
using Requests = std::vector<std::shared_ptr<const Request>>;

Items run_engine(Backend& backend, SchedulerConfig config, std::deque<WorkItem> items, bool gives_blocks,
                 StepMetrics* metrics) {
  EngineOptions options;
  options.scheduler = std::move(config);
  options.scheduler.block_size = backend.info().kv.block_size;
  options.scheduler.num_blocks = backend.info().kv.num_blocks;
  options.scheduler.windows = backend.info().kv.groups.windows;
  options.gives_blocks = gives_blocks;
  ItemSource source(std::move(items));
  ListSink sink;
  VirtualClock clock;
  const std::atomic<int> interrupted{0};
  Engine engine(options, backend, nullptr, clock, source, sink, interrupted, {});
  const Status status = engine.run();
  REQUIRE_MESSAGE(status.ok(), status.message());
  *metrics = engine.metrics();
  return std::move(sink.items);
}

std::deque<WorkItem> items_of(const Requests& requests) {
  std::deque<WorkItem> items;
  for (const auto& request : requests)
    items.push_back({static_cast<int64_t>(items.size()), std::make_shared<Request>(*request), 0, false, ""});
  return items;
}

struct ApartRun {
  Items items;
  StepMetrics prefill, decode;
  int64_t num_movable = 0;  // tokens
};

ApartRun run_apart(Backend& prefill, Backend& decode, const SchedulerConfig& prefill_config,
                   const SchedulerConfig& decode_config, const Requests& requests) {
  ApartRun run;
  const int32_t block_size = decode.info().kv.block_size;
  std::deque<WorkItem> items = items_of(requests), prompts;
  for (const WorkItem& item : items) {
    const int32_t num_movable = num_movable_tokens(*item.request, block_size);
    run.num_movable += num_movable;
    if (num_movable > 0) prompts.push_back({item.ordinal, prompt_request(*item.request, block_size), 0, false, ""});
  }
  Items computed = run_engine(prefill, prefill_config, std::move(prompts), true, &run.prefill);
  for (WorkItem& item : items)
    if (const auto at = computed.find(item.ordinal); at != computed.end()) item.blocks = at->second.blocks;
  run.items = run_engine(decode, decode_config, std::move(items), false, &run.decode);
  return run;
}

void check_equal(const Items& items, const Items& expected) {
  REQUIRE(items.size() == expected.size());
  for (const auto& [ordinal, item] : expected) {
    CAPTURE(ordinal);
    const Completion &a = items.at(ordinal).completion, &b = item.completion;
    REQUIRE(a.error.has_value() == b.error.has_value());
    if (a.error) {
      CHECK(a.error->code == b.error->code);
      continue;
    }
    REQUIRE(a.choices.size() == b.choices.size());
    for (size_t i = 0; i < b.choices.size(); ++i) {
      CHECK(a.choices[i].token_ids == b.choices[i].token_ids);
      CHECK(a.choices[i].finish_reason == b.choices[i].finish_reason);
      REQUIRE(a.choices[i].logprobs.size() == b.choices[i].logprobs.size());
      for (size_t t = 0; t < b.choices[i].logprobs.size(); ++t)
        CHECK(a.choices[i].logprobs[t].chosen.logprob == b.choices[i].logprobs[t].chosen.logprob);
    }
  }
}

LoadOptions load_options(int32_t num_blocks, double swap_space_gib) {
  LoadOptions o;
  o.receives_prompts = swap_space_gib > 0;
  o.groups_layers = true;
  o.block_size = 4;
  o.num_blocks_override = num_blocks;
  o.swap_space_gib = swap_space_gib;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 100;
  o.num_threads = 2;
  return o;
}

std::unique_ptr<Backend> load_cpu(const std::string& model, DType kv_dtype, int32_t num_blocks, double swap_space_gib) {
  const std::string dir = source_dir() + "/data/fixtures/models/" + model;
  LoadOptions o = load_options(num_blocks, swap_space_gib);
  o.model_dir = dir;
  o.kv_cache_dtype = kv_dtype;
  return loaded(make_cpu_backend(), load_model_config(dir).value(), o);
}

SchedulerConfig scheduler_config(int32_t max_num_batched_tokens) {
  SchedulerConfig config;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = max_num_batched_tokens;
  config.max_model_len = 100;
  config.enable_prefix_caching = true;
  config.preemption = PreemptionMode::kAuto;
  return config;
}

}  // namespace

TEST_CASE("answers of two engines are one engine's, bit by bit, with any KV type, windows, states and choices") {
  for (const char* model : {"llama-gqa", "qwen2-window", "mistral-window", "gemma4", "qwen3_5"})
    for (const DType kv_dtype : {DType::kF32, DType::kBF16, DType::kI8})
      for (const int32_t num_choices : {1, 3}) {
        CAPTURE(model);
        CAPTURE(dtype_name(kv_dtype));
        CAPTURE(num_choices);
        const Requests requests = window_requests({33, 11, 42, 4, 30, 47, 60, 1, 5, 16}, 24, num_choices);
        StepMetrics alone;
        const Items expected = run_engine(*load_cpu(model, kv_dtype, 800, 0), scheduler_config(9), items_of(requests),
                                          false, &alone);
        const auto prefill = load_cpu(model, kv_dtype, 300, 0), decode = load_cpu(model, kv_dtype, 800, 1);
        const ApartRun run = run_apart(*prefill, *decode, scheduler_config(64), scheduler_config(16), requests);
        check_equal(run.items, expected);
        CHECK(run.num_movable == 32 + 8 + 40 + 28 + 44 + 56 + 4 + 12);
        CHECK(run.prefill.prompt_tokens.num_computed == run.num_movable);
        CHECK(run.decode.num_swapped_in > 0);
        // A state is that behind the newest token: choices that join later begin behind the snapshot, too.
        const int32_t num_per_row = decode->info().state_bytes > 0 ? num_choices : 1;
        CHECK(run.decode.prompt_tokens.num_computed <= 4 * num_per_row * static_cast<int64_t>(requests.size()));
      }
}

TEST_CASE("every golden model with recurrent states, also with drafts; nothing of what was moved is computed again") {
  int num_models = 0;
  for (const std::string& dir : golden_model_dirs()) {
    const ModelConfig config = load_model_config(dir).value();
    if (!config.has_states()) continue;
    ++num_models;
    for (const int32_t num_drafts : {0, 5}) {
      if (num_drafts > 0 && num_models % 3 != 1) continue;
      CAPTURE(dir);
      CAPTURE(num_drafts);
      const auto load = [&](int32_t num_blocks, double swap_space_gib) {
        LoadOptions o = load_options(num_blocks, swap_space_gib);
        o.model_dir = dir;
        o.max_num_drafts = num_drafts;
        return loaded(make_cpu_backend(), config, o);
      };
      // Some are equal: what one has computed others compute again, and take the blocks that are there.
      Requests requests = window_requests({33, 11, 33, 4, 33, 47, 60, 1, 47, 16}, 24, 2);
      const auto greedy = window_requests({20, 21, 22}, 9);
      for (const auto& request : greedy) {
        auto own = std::make_shared<Request>(*request);
        own->params.sampling.temperature = 0;
        own->params.stop.max_tokens = requests.size() % 2 == 0 ? 1 : 9;
        requests.push_back(own);
      }
      StepMetrics alone;
      const Items expected =
          run_engine(*load(800, 0), scheduler_config(9), items_of(requests), false, &alone);
      const auto prefill = load(300, 0), decode = load(800, 1);
      REQUIRE(decode->info().state_bytes > 0);
      REQUIRE(decode->info().state_bytes == prefill->info().state_bytes);
      const ApartRun run = run_apart(*prefill, *decode, scheduler_config(64), scheduler_config(16), requests);
      check_equal(run.items, expected);
      CHECK(run.decode.num_swapped_in > 0);
      CHECK(run.decode.prompt_tokens.num_computed <= 8 * static_cast<int64_t>(requests.size()));
    }
  }
  CHECK(num_models >= 8);
}

TEST_CASE("between ranks that divide a model or its rows: the answers of such ranks without a move") {
  struct Case {
    const char* model;
    int32_t tensor_size, num_stages, context_size;
  };
  for (const auto& [model, tensor_size, num_stages, context_size] :
       {Case{"llama-gqa", 2, 1, 1}, Case{"gpt_oss", 2, 2, 1}, Case{"qwen3_5", 2, 1, 1}, Case{"nemotron_h", 1, 2, 1},
        Case{"mistral-window", 1, 1, 2}}) {
    CAPTURE(model);
    const std::string dir = source_dir() + "/data/fixtures/models/" + model;
    const ModelConfig config = load_model_config(dir).value();
    const auto load = [&](int32_t num_blocks, double swap_space_gib, uint64_t seed) {
      LoadOptions o = load_options(num_blocks, swap_space_gib);
      o.model_dir = dir;
      o.num_threads = 1;
      const PrepareRank delays = [seed](RankContext& context) { delay_calls(&context, seed); };
      return loaded(make_thread_ranks(tensor_size, num_stages, 0, delays, context_size), config, o);
    };
    const Requests requests = window_requests({33, 11, 42, 4, 60, 1, 5, 16}, 12, 2);
    StepMetrics alone;
    const auto config_of = [num_stages](int32_t max_num_batched_tokens) {
      SchedulerConfig scheduler = scheduler_config(max_num_batched_tokens);
      scheduler.num_alternating = num_stages;
      return scheduler;
    };
    const Items expected = run_engine(*load(800, 0, 1), config_of(9), items_of(requests), false, &alone);
    const auto prefill = load(300, 0, 2), decode = load(800, 1, 3);
    const ApartRun run = run_apart(*prefill, *decode, config_of(64), config_of(16), requests);
    check_equal(run.items, expected);
    CHECK(run.decode.num_swapped_in > 0);
    CHECK(run.decode.prompt_tokens.num_computed <= 8 * static_cast<int64_t>(requests.size()));
  }
}

TEST_CASE("where the second pools are small, what there is no room for is computed again, and nothing changes") {
  for (const char* model : {"llama-gqa", "mistral-window", "qwen3_next"}) {
    CAPTURE(model);
    const Requests requests = window_requests({33, 11, 42, 30, 47, 60, 59, 58, 12, 34}, 24);
    StepMetrics alone;
    const Items expected =
        run_engine(*load_cpu(model, DType::kF32, 800, 0), scheduler_config(9), items_of(requests), false, &alone);
    const auto prefill = load_cpu(model, DType::kF32, 300, 0);
    const int64_t block_bytes = prefill->info().block_bytes;
    for (const int64_t num_host_blocks : {0, 3, 14, 30}) {
      CAPTURE(num_host_blocks);
      const double gib = static_cast<double>(num_host_blocks * block_bytes) / (1 << 30);
      const auto decode = load_cpu(model, DType::kF32, 60, gib);
      const ApartRun run = run_apart(*prefill, *decode, scheduler_config(64), scheduler_config(16), requests);
      check_equal(run.items, expected);
    }
  }
}

TEST_CASE("random workloads on the ledger, which finds every block that is not what its sequence computed") {
  int64_t num_swapped_in[2] = {0, 0}, num_preempted[2] = {0, 0};  // without states and with them
  for (uint64_t seed = 0; seed < 700; ++seed) {
    CAPTURE(seed);
    const bool has_states = seed >= 400;
    const std::vector<int32_t> windows = seed % 3 == 0 ? random_layer_windows(seed) : std::vector<int32_t>();
    Workload workload = random_workload(seed, 5000, windows);
    if (has_states) give_states(&workload);
    workload.config.enable_prefix_caching = true;
    workload.config.max_num_drafts = 0;
    LoadOptions load = load_options(workload.config.num_blocks, seed % 2 == 0 ? 1 : 1e-5);
    load.block_size = workload.config.block_size;
    load.max_num_seqs = workload.config.max_num_seqs;
    load.max_model_len = workload.config.max_model_len;
    load.max_num_batched_tokens = workload.config.max_num_batched_tokens;
    LedgerOptions ledger;
    ledger.seed = seed;
    ledger.eos_rate = workload.eos_rate;
    ledger.check_every_slot = true;
    ledger.max_num_snapshots = workload.config.num_snapshots;
    const auto make = [&](int32_t num_blocks) {
      LoadOptions options = load;
      options.num_blocks_override = num_blocks;
      return loaded(make_ledger_backend(ledger), workload.model, options);
    };
    StepMetrics alone;
    const auto one = make(workload.config.num_blocks), prefill = make(4000), decode = make(workload.config.num_blocks);
    const Items expected = run_engine(*one, workload.config, items_of(workload.requests), false, &alone);
    SchedulerConfig prompts = scheduler_config(static_cast<int32_t>(8 + seed % 100));
    prompts.max_num_seqs = workload.config.max_num_seqs;
    prompts.max_model_len = workload.config.max_model_len;
    const ApartRun run = run_apart(*prefill, *decode, prompts, workload.config, workload.requests);
    check_equal(run.items, expected);
    num_swapped_in[has_states] += run.decode.num_swapped_in;
    for (const auto& [ordinal, item] : run.items)
      num_preempted[has_states] += item.completion.latency.num_preemptions > 0;
  }
  for (const bool has_states : {false, true}) {
    CHECK(num_swapped_in[has_states] > 500);
    CHECK(num_preempted[has_states] > 10);
  }
}

TEST_CASE("times and cached tokens are those of both engines") {
  const Requests requests = window_requests({33, 33}, 4);
  const auto prefill = load_cpu("llama-gqa", DType::kF32, 300, 0), decode = load_cpu("llama-gqa", DType::kF32, 300, 1);
  ApartRun run = run_apart(*prefill, *decode, scheduler_config(64), scheduler_config(16), requests);
  // The second prompt's blocks are the first one's, but for the last, which it computes for what is sampled behind it.
  CHECK(run.items.at(0).completion.latency.num_cached_tokens == 0);
  CHECK(run.items.at(1).completion.latency.num_cached_tokens >= 28);
  CHECK(run.items.at(1).completion.latency.num_cached_tokens <= 32);
  PromptBlocks blocks;
  blocks.scheduled_ms = 7;
  blocks.num_tokens = 32;
  blocks.num_cached_tokens = 5;
  ActiveRequest active(requests[0], 0, nullptr);
  active.take_over(blocks);
  active.mark_scheduled(11);
  CHECK(active.scheduled_ms() == 7);
}

TEST_CASE("prompts that are not moved: of one block, scored, encoded whole, or of choices with their own") {
  auto request = std::make_shared<Request>();
  request->prompt_tokens.assign(17, 1);
  request->params.stop.max_tokens = 1;
  CHECK(num_movable_tokens(*request, 16) == 16);
  CHECK(num_movable_tokens(*request, 17) == 0);
  CHECK(num_movable_tokens(*request, 4) == 16);
  Request scored = *request, whole = *request, embedded = *request, parts = *request, options = *request;
  scored.params.score.prompt_logprobs = 0;
  whole.is_indivisible = true;
  embedded.params.task = Task::kEmbed;
  parts.parts = {request};
  options.options.resize(1);
  for (const Request* other : {&scored, &whole, &embedded, &parts, &options}) CHECK(num_movable_tokens(*other, 4) == 0);
}

}  // namespace llmb::test
