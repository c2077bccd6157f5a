// Steps that shrink to sampled rows behind the last layer with keys and values of its own, on the host layer, which
// counts them: the bytes of rows computed one by one.
#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "kernels/simt/settings.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/text_jobs.h"

namespace llmb::test {
namespace {

using nlohmann::json;

struct Sizes {
  const char* name;
  int32_t head_dim, wide_head_dim;
  DType dtype;
};

// Those of the golden model; for tensor cores, of two kinds; of one kind, so that prefixes are read together.
constexpr Sizes kSizes[] = {
    {"plain", 12, 24, DType::kF32}, {"tensor cores", 16, 264, DType::kBF16}, {"one size", 16, 16, DType::kBF16}};

// Random weights and the bundled model's tokenizer.
EngineJobOptions gemma4_job(const Sizes& sizes) {
  EngineJobOptions options = text_job(source_dir() + "/data/fixtures/models/gemma4");
  options.make_backend = [] { return make_cuda_backend(0); };
  options.tokenizer = Tokenizer::load(source_dir() + "/data/model").value();
  ModelConfig& config = options.config;
  config.vocab_size = config.vocab_size_per_layer_input = options.tokenizer->vocab_size();
  config.head_dim = sizes.head_dim;
  for (LayerConfig& layer : config.layers)
    if (layer.head_dim > 0) layer.head_dim = sizes.wide_head_dim == sizes.head_dim ? 0 : sizes.wide_head_dim;
  config.ropes[0].rotary_dim = sizes.wide_head_dim, config.ropes[1].rotary_dim = sizes.head_dim;
  options.load.load_format = LoadFormat::kDummy;
  options.load.dtype = options.load.kv_cache_dtype = sizes.dtype;
  options.load.cuda.deterministic = true;
  options.scheduler.max_model_len = 80;
  options.scheduler.block_size = 8;
  options.scheduler.num_blocks = 120;
  return options;
}

std::vector<json> some_lines() {
  const std::string context = "The children went";
  return {{{"prompt", context}, {"prompt_logprobs", 2}, {"max_tokens", 3}, {"temperature", 1}, {"n", 3}},
          {{"prompt", context + " home"}, {"max_tokens", 4}, {"temperature", 1}, {"n", 2}, {"frequency_penalty", 1}},
          {{"prompt", "It was"}, {"prompt_logprobs", 0}, {"max_tokens", 1}, {"temperature", 0}},
          {{"prompt", context}, {"options", {" they", " a long", "x"}}, {"logprobs", 1}}};
}

TEST_CASE("deterministic: scores, options, choices and answers are the same bytes, recorded steps beside them") {
  for (const Sizes& sizes : kSizes) {
    CAPTURE(sizes.name);
    EngineJobOptions options = gemma4_job(sizes);
    options.scheduler.enable_prefix_caching = false;
    options.scheduler.max_num_seqs = options.scheduler.max_num_batched_tokens = 1;
    uint64_t before = simt::num_runs("keep_rows");
    const std::vector<json> one_by_one = answers_to(some_lines(), options);
    CHECK(simt::num_runs("keep_rows") == before);
    CAPTURE(one_by_one[0].dump());
    CHECK(one_by_one[0].contains("prompt_logprobs"));
    CHECK(one_by_one[3].contains("best"));
    for (const int variant : {0, 1, 2}) {
      CAPTURE(variant);
      options.scheduler.max_num_seqs = variant == 0 ? 8 : 3;
      options.scheduler.max_num_batched_tokens = variant == 1 ? 13 : 60;
      options.scheduler.max_num_drafts = 1 + 9 * variant;
      options.scheduler.enable_prefix_caching = variant != 1;
      before = simt::num_runs("keep_rows");
      CHECK(answers_to(some_lines(), options) == one_by_one);
      CHECK(simt::num_runs("keep_rows") > before);
    }
  }
}

std::unique_ptr<Backend> gemma4_backend(int32_t max_model_len, int32_t max_num_batched_tokens, int32_t max_num_drafts) {
  EngineJobOptions job = gemma4_job(kSizes[2]);
  job.config.max_position_embeddings = max_model_len;
  LoadOptions options = job.load;
  options.block_size = 8;
  options.num_blocks_override = 200;
  options.max_num_seqs = 9;
  options.max_num_batched_tokens = max_num_batched_tokens;
  options.max_num_drafts = max_num_drafts;
  options.max_model_len = max_model_len;
  return loaded(make_cuda_backend(0), job.config, options);
}

// Passes plans on one by one. Of steps that narrow it counts those that read prefixes together, and in how many layers.
class NarrowedSharing final : public Backend {
 public:
  explicit NarrowedSharing(Backend* backend) : backend_(*backend), info_(backend->info()) {
    info_.max_plans_in_flight = 1;
  }
  Status load(const ModelConfig&, const LoadOptions&) override { return {}; }
  const BackendInfo& info() const override { return info_; }
  Status submit(const StepPlan& plan) override {
    num_kept_ = simt::num_runs("keep_rows"), num_shared_ = simt::num_runs("shared_paged_attention_kernel");
    return backend_.submit(plan);
  }
  Status wait(StepOutput* output) override {
    const Status status = backend_.wait(output);
    const uint64_t num_layers = simt::num_runs("shared_paged_attention_kernel") - num_shared_;
    if (simt::num_runs("keep_rows") == num_kept_ || num_layers == 0) return status;
    ++num_steps, most_layers = std::max(most_layers, num_layers);
    return status;
  }

  int num_steps = 0;
  uint64_t most_layers = 0;

 private:
  Backend& backend_;
  BackendInfo info_;
  uint64_t num_kept_ = 0, num_shared_ = 0;  // before the step
};

// A prompt that comes in pieces beside rows that follow drafts in flight, some of them wrong: entries whose contexts
// are shorter than they were planned for.
TEST_CASE("deterministic: prompts beside choices that verify drafts, planned ahead") {
  const auto backend = gemma4_backend(128, 60, 12);
  const std::vector<std::shared_ptr<const Request>> requests = {
      request_with_choices(75, 6, 9), request_with_choices(70, 1, 2), request_with_choices(76, 2, 3)};
  SchedulerConfig config;
  config.max_num_seqs = config.max_num_batched_tokens = 1;
  config.max_model_len = 128;
  const ScheduledAnswers one_by_one = run_scheduled(*backend, config, nullptr, requests).answers;
  config.max_num_seqs = 9;
  config.max_num_drafts = 12;
  for (const int32_t budget : {26, 60}) {
    config.max_num_batched_tokens = budget;
    ScriptedProposer proposer(tokens_of(requests, one_by_one), 60, {.propose_rate = 0.9, .right_rate = 0.5}, 3);
    const uint64_t before = simt::num_runs("keep_rows");
    const ScheduledRun run = run_scheduled(*backend, config, &proposer, requests);
    const bool is_same = run.answers == one_by_one;
    CHECK(is_same);
    CHECK(run.num_given > run.num_groups);
    CHECK(simt::num_runs("keep_rows") > before);
  }
}

// A long prompt that an earlier request left in the cache: rows that read it together stand behind the rows of another
// prompt's last piece, which go where the step narrows. In the layers behind that they read it row by row.
TEST_CASE("deterministic: a prefix that rows read together, up to where their step narrows") {
  simt::set_num_multiprocessors(1);
  const auto backend = gemma4_backend(192, 30, 0);
  std::vector<std::shared_ptr<const Request>> requests = {request_with_choices(129, 1, 1),
                                                          request_with_choices(70, 1, 2)};
  for (int i = 0; i < 7; ++i) requests.push_back(request_with_choices(129, 1, 2));
  SchedulerConfig config;
  config.max_num_seqs = config.max_num_batched_tokens = 1;
  config.max_model_len = 192;
  config.enable_prefix_caching = true;
  const ScheduledAnswers one_by_one = run_scheduled(*backend, config, nullptr, requests).answers;
  config.max_num_seqs = 9;
  config.max_num_batched_tokens = 30;
  NarrowedSharing counted(backend.get());
  const bool is_same = run_scheduled(counted, config, nullptr, requests).answers == one_by_one;
  CHECK(is_same);
  CHECK(counted.num_steps > 0);
  CHECK(counted.most_layers == 1);  // two see all positions; the second is behind the border
  simt::set_num_multiprocessors(4);
}

}  // namespace
}  // namespace llmb::test
