// Requests with several choices through the engine: one completion each, whose choices are those of a request with
// fewer.
#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/ledger/ledger_backend.h"
#include "engine/engine.h"
#include "model/config_loader.h"
#include "tests/support/listed_requests.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scripted_backend.h"
#include "tests/support/source_dir.h"
#include "tests/support/workload.h"
#include "tokenizer/tokenizer.h"

namespace llmb::test {
namespace {

struct Setup {
  std::shared_ptr<const Tokenizer> tokenizer;
  ModelConfig config;
  SchedulerConfig scheduler;
  int interrupts_after_step = 0;  // 0: none
  int num_interrupts = 0;
};

Setup bundled_model() {
  Setup setup;
  const std::string dir = source_dir() + "/data/model";
  setup.config = load_model_config(dir).value();
  auto tokenizer = Tokenizer::load(dir);
  REQUIRE(tokenizer.ok());
  setup.tokenizer = std::move(*tokenizer);
  setup.scheduler.max_num_seqs = 8;
  setup.scheduler.max_num_batched_tokens = 32;
  setup.scheduler.max_model_len = 96;
  setup.scheduler.num_blocks = 60;
  return setup;
}

LoadOptions load_options(const Setup& setup) {
  LoadOptions load;
  load.model_dir = source_dir() + "/data/model";
  load.block_size = setup.scheduler.block_size;
  load.num_blocks_override = setup.scheduler.num_blocks;
  load.max_num_seqs = setup.scheduler.max_num_seqs;
  load.max_num_batched_tokens = setup.scheduler.max_num_batched_tokens;
  load.max_model_len = setup.scheduler.max_model_len;
  load.num_threads = 2;
  return load;
}

struct Outcome {
  std::map<int64_t, FinishedItem> items;
  int64_t num_left = 0, num_input_tokens = 0, num_output_tokens = 0;
};

Outcome run(const Setup& setup, Backend& backend, const std::vector<std::shared_ptr<Request>>& requests) {
  ListSource source(requests);
  ListSink sink;
  SteadyClock clock;
  std::atomic<int> interrupted{0};
  Outcome outcome;
  int step = 0;
  const auto on_progress = [&](const EngineProgress& progress) {
    if (++step == setup.interrupts_after_step) interrupted = setup.num_interrupts;
    outcome.num_input_tokens = progress.num_input_tokens;
    outcome.num_output_tokens = progress.num_output_tokens;
  };
  Engine engine({.scheduler = setup.scheduler, .model = setup.config}, backend, setup.tokenizer.get(), clock, source,
                sink, interrupted, on_progress);
  const Status status = engine.run();
  REQUIRE_MESSAGE(status.ok(), status.message());
  outcome.items = std::move(sink.items);
  outcome.num_left = engine.num_left();
  return outcome;
}

std::vector<std::shared_ptr<Request>> mixed_requests(int32_t num_choices) {
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 8; ++i) {
    auto request = make_request(i == 0 ? 1 : 5 * i, i == 3 ? 1 : 20);
    request->line.index = i;
    request->rng = {3, static_cast<uint64_t>(i)};
    request->params.sampling.temperature = 1.1f;
    request->params.sampling.num_choices = i == 5 ? 1 : num_choices;
    if (i % 3 == 1) request->params.sampling.num_logprobs = 2;
    if (i % 3 == 2) request->params.stop.stop = {"a", "e"};
    if (i % 4 == 2) request->params.sampling.frequency_penalty = 0.8f;
    requests.push_back(std::move(request));
  }
  return requests;
}

bool is_same(const Choice& a, const Choice& b) {
  const auto is_same_detail = [](const TokenDetail& x, const TokenDetail& y) {
    if (x.chosen.token != y.chosen.token || x.chosen.logprob != y.chosen.logprob || x.top.size() != y.top.size())
      return false;
    for (size_t i = 0; i < x.top.size(); ++i)
      if (x.top[i].token != y.top[i].token || x.top[i].logprob != y.top[i].logprob) return false;
    return true;
  };
  return a.text == b.text && a.token_ids == b.token_ids && a.num_output_tokens == b.num_output_tokens &&
         a.logprob_texts == b.logprob_texts && a.finish_reason == b.finish_reason && a.stop_string == b.stop_string &&
         std::equal(a.logprobs.begin(), a.logprobs.end(), b.logprobs.begin(), b.logprobs.end(), is_same_detail);
}

}  // namespace

TEST_CASE("choice i is the same whether a request asks for i + 1 choices or more: ledger and CPU, in every mode") {
  for (const bool on_cpu : {false, true}) {
    CAPTURE(on_cpu);
    Setup setup = bundled_model();
    Outcome most;
    for (const int32_t num_choices : {3, 1, 2}) {
      for (const BatchingMode mode : {BatchingMode::kContinuous, BatchingMode::kStatic, BatchingMode::kNone}) {
        if (num_choices == 3 && mode == BatchingMode::kNone) continue;
        CAPTURE(num_choices);
        CAPTURE(static_cast<int>(mode));
        setup.scheduler.batching = mode;
        const auto backend =
            loaded(on_cpu ? make_cpu_backend() : make_ledger_backend({}), setup.config, load_options(setup));
        const auto requests = mixed_requests(num_choices);
        Outcome outcome = run(setup, *backend, requests);
        REQUIRE(outcome.items.size() == requests.size());
        int64_t num_output_tokens = 0;
        for (const auto& [ordinal, item] : outcome.items) {
          const Completion& completion = item.completion;
          REQUIRE(!completion.error);
          REQUIRE(completion.choices.size() == static_cast<size_t>(requests[ordinal]->params.sampling.num_choices));
          CHECK(completion.latency.ttft_ms <= completion.latency.e2e_ms);
          CHECK(completion.latency.queue_ms <= completion.latency.ttft_ms);
          CHECK(static_cast<int64_t>(item.itl_ms.size() + completion.choices.size()) == completion.num_output_tokens());
          num_output_tokens += completion.num_output_tokens();
          if (most.items.empty()) continue;
          for (size_t i = 0; i < completion.choices.size(); ++i)
            CHECK(is_same(completion.choices[i], most.items.at(ordinal).completion.choices[i]));
        }
        CHECK(outcome.num_output_tokens == num_output_tokens);
        CHECK(outcome.num_input_tokens >= 0);
        if (most.items.empty()) most = std::move(outcome);
      }
    }
    const std::vector<Choice>& choices = most.items.at(1).completion.choices;
    CHECK(choices[0].token_ids != choices[1].token_ids);
  }
}

TEST_CASE("logits that are not finite in one choice: one error for the request, and the others are answered") {
  Setup setup = bundled_model();
  BackendScript script;
  script.nan_groups = {{0, 1}};  // the first request's second choice
  ScriptedBackend backend(make_ledger_backend({}), script);
  REQUIRE(backend.load(setup.config, load_options(setup)).ok());
  std::vector<std::shared_ptr<Request>> requests = {make_request(4, 10), make_request(5, 10)};
  for (const auto& request : requests) request->params.sampling.num_choices = 3;
  const Outcome outcome = run(setup, backend, requests);
  REQUIRE(outcome.items.size() == 2);
  REQUIRE(outcome.items.at(0).completion.error);
  CHECK(outcome.items.at(0).completion.error->code == "numeric_error");
  CHECK(outcome.items.at(0).completion.choices.empty());
  REQUIRE(!outcome.items.at(1).completion.error);
  CHECK(outcome.items.at(1).completion.num_output_tokens() == 30);
}

TEST_CASE("an interrupt: a request of which any choice ran is finished whole, or left and counted once") {
  for (const int num_interrupts : {1, 2}) {
    CAPTURE(num_interrupts);
    Setup setup = bundled_model();
    setup.scheduler.max_num_seqs = 2;  // so that a request's third choice waits
    setup.interrupts_after_step = 3;
    setup.num_interrupts = num_interrupts;
    const auto backend = loaded(make_ledger_backend({}), setup.config, load_options(setup));
    std::vector<std::shared_ptr<Request>> requests = {make_request(4, 10), make_request(5, 10), make_request(6, 10)};
    for (const auto& request : requests) request->params.sampling.num_choices = 3;
    const Outcome outcome = run(setup, *backend, requests);
    CHECK(outcome.items.size() == (num_interrupts == 1 ? 1 : 0));
    CHECK(outcome.num_left == (num_interrupts == 1 ? 2 : 3));
    if (num_interrupts == 1) CHECK(outcome.items.at(0).completion.num_output_tokens() == 30);
  }
}

}  // namespace llmb::test
