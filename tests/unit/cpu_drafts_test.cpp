// Drafts on the CPU backend, through the engine: they change how many steps an answer takes, and no byte of it.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/config_loader.h"
#include "tests/support/engine_job.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#include "tokenizer/tokenizer.h"

namespace llmb::test {
namespace {

// Every way in which a sequence can end, and every way in which one sampling depends on the token before.
std::string mixed_lines(bool with_stop_strings = true) {
  const std::vector<std::string> ways = {
      R"("max_tokens":24,"temperature":0)",
      R"("max_tokens":20,"temperature":0,"ignore_eos":true,"logprobs":3)",
      R"("max_tokens":20,"temperature":1.2,"top_p":0.9,"top_k":40)",
      with_stop_strings ? R"("max_tokens":30,"stop":["e"],"temperature":0)" : R"("max_tokens":30,"temperature":0)",
      with_stop_strings ? R"("max_tokens":24,"stop":["th","an"],"include_stop_str_in_output":true)"
                        : R"("max_tokens":24)",
      with_stop_strings ? R"("max_tokens":6,"stop":["a","i"],"temperature":0)" : R"("max_tokens":6,"temperature":0)",
      R"("max_tokens":20,"frequency_penalty":0.5,"presence_penalty":0.3,"temperature":0)",
      R"("max_tokens":20,"repetition_penalty":1.3,"temperature":1,"logprobs":0)",
      R"("max_tokens":20,"min_tokens":12,"stop":["a"],"temperature":0)",
      R"("max_tokens":16,"stop_token_ids":[300,301,302,303,304,305,306,307,308,309],"temperature":1,"min_p":0.01)",
      R"("max_tokens":12,"min_tokens":5,"logit_bias":{"1":8,"400":-3},"frequency_penalty":1,"temperature":1)",
      R"("max_tokens":1)",
      R"("max_tokens":2,"temperature":0)",
  };
  std::string text;
  for (size_t i = 0; i < 2 * ways.size(); ++i)
    text += R"({"prompt":"A story of number )" + std::to_string(i * i) + R"( and )" + std::string(i % 17, 'x') +
            R"( friends","seed":)" + std::to_string(i) + "," + ways[i % ways.size()] +
            R"(,"return_token_ids":true})"
            "\n";
  return text;
}

EngineJobOptions bundled_model(DType kv_dtype) {
  EngineJobOptions o;
  o.make_backend = [] { return make_cpu_backend(); };
  o.load.model_dir = source_dir() + "/data/model";
  o.load.kv_cache_dtype = kv_dtype;
  o.load.num_threads = 2;
  const auto config = load_model_config(o.load.model_dir);
  REQUIRE(config.ok());
  auto tokenizer = Tokenizer::load(o.load.model_dir);
  REQUIRE(tokenizer.ok());
  o.config = *config;
  o.tokenizer = std::move(*tokenizer);
  o.eos_token_ids = config->eos_token_ids;
  o.scheduler.max_model_len = 96;
  return o;
}

struct Schedule {
  BatchingMode mode;
  int32_t max_num_seqs, max_num_batched_tokens, block_size, num_blocks;
};

void use(const Schedule& schedule, EngineJobOptions* o) {
  o->scheduler.batching = schedule.mode;
  o->scheduler.max_num_seqs = schedule.max_num_seqs;
  o->scheduler.max_num_batched_tokens = schedule.max_num_batched_tokens;
  o->scheduler.block_size = schedule.block_size;
  o->scheduler.num_blocks = schedule.num_blocks;
}

// A job's output without drafts; and what its requests get where no stop string ends them, so that right drafts run
// past it.
class Plain {
 public:
  explicit Plain(const EngineJobOptions& options) {
    for (const auto& [index, record] : records_by_index(run(options, /*with_stop_strings=*/false)))
      tokens_[index] = nlohmann::json::parse(record).at("token_ids").get<std::vector<TokenId>>();
    output = run(options, /*with_stop_strings=*/true);
  }
  ScriptedProposer proposer(const ProposerScript& script, uint64_t seed) const {
    const auto answer = [this](const Request& request, int32_t) { return tokens_.at(request.line.index); };
    return {answer, 1536, script, seed};
  }

  EngineJobOutcome outcome;
  std::string output;

 private:
  std::string run(const EngineJobOptions& options, bool with_stop_strings) {
    const EngineJob job(mixed_lines(with_stop_strings));
    outcome = job.run(options);
    REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
    REQUIRE(outcome.num_failed == 0);
    return job.output();
  }

  std::map<int64_t, std::vector<TokenId>> tokens_;
};

const Schedule kWide = {BatchingMode::kContinuous, 64, 512, 16, 400};
const Schedule kSmallPool = {BatchingMode::kContinuous, 8, 24, 4, 36};  // preempts
const ProposerScript kRight = {1, 1, 0, 0}, kWrong = {1, 0, 0, 0}, kMixed = {0.7, 0.6, 0, 0}, kTrees = {1, 0.7, 0.8, 0},
                     kSeenTrees = {0.8, 0.5, 1, 0.5};

EngineJobOutcome check_same(const Plain& plain, EngineJobOptions o, const ProposerScript& script, bool allows_trees) {
  o.scheduler.max_num_drafts = 12;
  o.scheduler.max_drafts_per_group = 7;
  o.scheduler.allows_trees = allows_trees;
  ScriptedProposer proposer = plain.proposer(script, 5);
  o.proposer = &proposer;
  const EngineJob job(mixed_lines());
  const EngineJobOutcome outcome = job.run(o);
  REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
  CHECK(job.output() == plain.output);
  return outcome;
}

}  // namespace

TEST_CASE("drafts right or wrong, chains or trees: the same bytes, in every mode and with a pool that preempts") {
  const EngineJobOptions o = bundled_model(DType::kBF16);
  EngineJobOptions wide = o;
  use(kWide, &wide);
  const Plain plain(wide);
  for (const char* reason : {R"("finish_reason":"length")", R"("stop_reason":"e")", R"("finish_reason":"stop")"})
    CHECK(plain.output.find(reason) != std::string::npos);
  bool preempted = false;
  const std::vector<std::pair<Schedule, std::vector<ProposerScript>>> cases = {
      {kWide, {kRight, kWrong, kMixed, kTrees}},
      {kSmallPool, {kRight, kMixed, kTrees, kSeenTrees}},
      {{BatchingMode::kContinuous, 3, 9, 16, 100}, {kRight, kTrees}},  // prompts in chunks
      {{BatchingMode::kStatic, 8, 64, 16, 100}, {kMixed, kSeenTrees}},
      {{BatchingMode::kDynamic, 8, 64, 5, 200}, {kMixed, kTrees}},
      {{BatchingMode::kNone, 8, 64, 16, 100}, {kTrees}},
  };
  for (const auto& [schedule, scripts] : cases)
    for (const ProposerScript& script : scripts) {
      CAPTURE(static_cast<int>(schedule.mode));
      CAPTURE(schedule.max_num_seqs);
      CAPTURE(script.right_rate);
      CAPTURE(script.tree_rate);
      EngineJobOptions job = o;
      use(schedule, &job);
      preempted |= check_same(plain, job, script, script.tree_rate > 0).num_preemptions > 0;
    }
  CHECK(preempted);
}

TEST_CASE("one plan in flight, one thread, and every dtype of the KV cache: the same bytes as without drafts") {
  for (const DType dtype : {DType::kF32, DType::kI8}) {
    CAPTURE(static_cast<int>(dtype));
    EngineJobOptions o = bundled_model(dtype);
    use(kWide, &o);
    const Plain plain(o);
    check_same(plain, o, kTrees, true);
    o.load.num_threads = 1;
    o.script.max_plans_in_flight = 1;
    use(kSmallPool, &o);
    check_same(plain, o, kMixed, false);
    check_same(plain, o, kSeenTrees, true);
  }
}

TEST_CASE("drafts that are right save steps, drafts that are wrong cost none") {
  EngineJobOptions o = bundled_model(DType::kBF16);
  use({BatchingMode::kContinuous, 1, 64, 16, 100}, &o);
  const Plain plain(o);
  CHECK(check_same(plain, o, kRight, false).num_steps < plain.outcome.num_steps * 2 / 3);
  o.script.max_plans_in_flight = 1;
  const Plain one_plan(o);
  CHECK(check_same(one_plan, o, kWrong, false).num_steps <= one_plan.outcome.num_steps);
}

TEST_CASE("a backend that was loaded for no drafts gets none") {
  EngineJobOptions o = bundled_model(DType::kBF16);
  use(kWide, &o);
  const Plain plain(o);
  ScriptedProposer proposer = plain.proposer(kRight, 1);
  o.proposer = &proposer;
  o.scheduler.max_num_drafts = 0;
  const EngineJob job(mixed_lines());
  REQUIRE(job.run(o).status.ok());
  CHECK(job.output() == plain.output);
}

}  // namespace llmb::test
