// Drafts on the CUDA backend: they change how many steps an answer takes, and no bit of it.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "tests/support/all_schedules.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#ifdef LLMB_SIMT
#include "kernels/simt/settings.h"
#endif

namespace llmb::test {
namespace {

constexpr int32_t kMaxModelLen = 80, kMaxDrafts = 14;

struct Schedule {
  int32_t max_num_seqs, max_num_batched_tokens, num_blocks;
};
constexpr Schedule kWide = {8, 96, 100}, kChunked = {3, 9, 100}, kSmallPool = {6, 40, 10};  // of 8 tokens; it preempts

// Counts what the plans of a run have in them; the rest is another backend's.
class Watched final : public Backend {
 public:
  explicit Watched(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}
  Status load(const ModelConfig& config, const LoadOptions& options) override {
    return backend_->load(config, options);
  }
  const BackendInfo& info() const override { return backend_->info(); }
  Status submit(const StepPlan& plan) override {
    for (const StepEntry& entry : plan.entries) num_behind_drafts += entry.max_ahead > 1;
    const uint64_t before = num_kernels_run();
    const Status status = backend_->submit(plan);
    ++num_submitted_;
    num_ahead += num_submitted_ - num_fetched_ == 2 && num_kernels_run() == before;
    return status;
  }
  Status wait(StepOutput* output) override {
    ++num_fetched_;
    return backend_->wait(output);
  }

  int64_t num_behind_drafts = 0;  // entries that go on from a verified group in flight
  int64_t num_ahead = 0;          // plans submitted while the one before them had not run, which stayed so

 private:
  static uint64_t num_kernels_run() {
#ifdef LLMB_SIMT
    return simt::num_runs("");
#else
    return 0;
#endif
  }

  const std::unique_ptr<Backend> backend_;
  int64_t num_submitted_ = 0, num_fetched_ = 0;
};

// Every way in which a row's sampling can depend on the tokens before it, and on a sequence's end.
std::vector<std::shared_ptr<const Request>> mixed_requests() {
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : {1, 7, 8, 17, 30, 3, 15}) {
    auto request = std::make_shared<Request>();
    for (int32_t i = 0; i < length; ++i) request->prompt_tokens.push_back((11 * i + 5 * length) % 96);
    request->rng = {3, requests.size()};
    request->params.stop.max_tokens = 15;
    request->params.stop.ignore_eos = true;
    requests.push_back(request);
    SamplingParams& s = request->params.sampling;
    s.temperature = requests.size() % 2 == 0 ? 0.9f : 0.0f;
    switch (requests.size()) {
      case 2:
        s.top_p = 0.9f, s.num_logprobs = 2;
        break;
      case 3:
        s.frequency_penalty = 0.6f, s.presence_penalty = -0.3f;
        break;
      case 4:
        s.repetition_penalty = 1.4f, s.num_logprobs = 0;
        break;
      case 5:
        s.num_logprobs = 3;
        break;
      case 6:
        s.top_k = 30, s.frequency_penalty = -0.2f;
        for (TokenId token = 0; token < 24; ++token) request->params.stop.stop_token_ids.push_back(4 * token);
        request->params.stop.min_tokens = 7;
        break;
    }
  }
  return requests;
}

class Drafted {
 public:
  explicit Drafted(DType dtype, bool deterministic = true) : dtype_(dtype), deterministic_(deterministic) {
    config_.dtype = DType::kBF16;
    write_model(dir_.path(), config_, random_tensors(config_, 21));
    expected = run(kWide, nullptr).answers;
  }

  ScheduledRun run(const Schedule& schedule, Proposer* proposer, bool allows_trees = false) {
    LoadOptions o;
    o.model_dir = dir_.path();
    o.block_size = 8;
    o.num_blocks_override = schedule.num_blocks;
    o.max_num_seqs = schedule.max_num_seqs;
    o.max_num_batched_tokens = schedule.max_num_batched_tokens;
    o.max_num_drafts = proposer != nullptr ? kMaxDrafts : 0;
    o.max_model_len = kMaxModelLen;
    o.num_threads = 1;
    o.dtype = dtype_;
    o.cuda.deterministic = deterministic_;
    SchedulerConfig config;
    config.max_num_seqs = o.max_num_seqs;
    config.max_num_batched_tokens = o.max_num_batched_tokens;
    config.max_model_len = kMaxModelLen;
    config.max_num_drafts = o.max_num_drafts;
    config.max_drafts_per_group = 6;
    config.allows_trees = allows_trees;
    Watched backend(loaded(make_cuda_backend(0), config_, o));
    const ScheduledRun run = run_scheduled(backend, config, proposer, requests);
    num_behind_drafts = backend.num_behind_drafts;
    num_ahead = backend.num_ahead;
    return run;
  }
  ScheduledRun run_drafted(const Schedule& schedule, const ProposerScript& script) {
    const auto answer = [this](const Request& request, int32_t choice) {
      for (size_t i = 0; i < requests.size(); ++i)
        if (requests[i].get() == &request) return expected[i][choice].out.tokens;
      return std::vector<TokenId>();
    };
    ScriptedProposer proposer(answer, config_.vocab_size, script, 7);
    return run(schedule, &proposer, script.tree_rate > 0);
  }

  const std::vector<std::shared_ptr<const Request>> requests = mixed_requests();
  ScheduledAnswers expected;
  int64_t num_behind_drafts = 0, num_ahead = 0;  // of the last run

 private:
  const DType dtype_;
  const bool deterministic_;
  ModelConfig config_ = tiny_config();
  const TempDir dir_;
};

const ProposerScript kRight = {1, 1, 0, 0}, kWrong = {1, 0, 0, 0}, kMixed = {0.8, 0.6, 0, 0}, kTrees = {1, 0.7, 0.8, 0},
                     kSeenTrees = {0.8, 0.6, 1, 0.5};

TEST_CASE("drafts right, wrong or both, in chains or trees: the bits of an answer without any") {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    CAPTURE(dtype_name(dtype));
    Drafted model(dtype);
    const int64_t num_plain_steps = model.run(kWide, nullptr).num_steps;
    const std::vector<ProposerScript> all = {kRight, kWrong, kMixed, kTrees, kSeenTrees}, some = {kMixed, kTrees};
    for (const ProposerScript& script : dtype == DType::kBF16 || runs_all_schedules() ? all : some) {
      CAPTURE(script.right_rate);
      CAPTURE(script.tree_rate);
      const ScheduledRun run = model.run_drafted(kWide, script);
      const bool same = run.answers == model.expected;
      CHECK(same);
      CHECK(run.num_drafts > 0);
      CHECK((run.num_trees > 0) == (script.tree_rate > 0));
      CHECK(model.num_behind_drafts > 0);
      if (script.right_rate == 1) CHECK(run.num_steps < num_plain_steps * 3 / 4);
    }
  }
}

TEST_CASE("prompts in chunks beside drafts, and a pool that preempts: the same bits") {
  Drafted model(DType::kBF16);
  int64_t num_preemptions = 0, num_pairs = 0;
  for (const Schedule& schedule : {kChunked, kSmallPool})
    for (const ProposerScript& script : {kRight, kMixed, kTrees}) {
      if (num_pairs++ % 2 == 1 && !runs_all_schedules()) continue;
      CAPTURE(schedule.num_blocks);
      CAPTURE(script.right_rate);
      const ScheduledRun run = model.run_drafted(schedule, script);
      const bool same = run.answers == model.expected;
      CHECK(same);
      CHECK(model.num_behind_drafts > 0);
      num_preemptions += run.num_preemptions;
    }
  CHECK(num_preemptions > 0);
}

TEST_CASE("not deterministic, in fp32: the same tokens") {
  Drafted model(DType::kF32, false);
  const auto tokens = [](const ScheduledAnswers& answers) {
    std::vector<std::vector<TokenId>> all;
    for (const auto& choices : answers) all.push_back(choices[0].out.tokens);
    return all;
  };
  for (const ProposerScript& script : {kMixed, kTrees}) {
    const bool same = tokens(model.run_drafted(kWide, script).answers) == tokens(model.expected);
    CHECK(same);
  }
}

#ifdef LLMB_SIMT
TEST_CASE("a step is submitted before the one in front of it has run, with drafts as without") {
  Drafted model(DType::kBF16);
  const ScheduledRun plain = model.run(kWide, nullptr);
  MESSAGE("without drafts: " << model.num_ahead << " of " << plain.num_steps << " steps");
  CHECK(model.num_ahead >= plain.num_steps - 3);
  const ScheduledRun drafted = model.run_drafted(kWide, kMixed);
  MESSAGE("with drafts: " << model.num_ahead << " of " << drafted.num_steps << " steps");
  CHECK(model.num_ahead >= drafted.num_steps * 3 / 4);
}
#endif

}  // namespace
}  // namespace llmb::test
