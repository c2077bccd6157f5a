// The random workloads of scheduler_test on a model that computes: the CPU backend gives each answer the tokens that it
// gives it alone, one token a step. LLMB_NUM_WORKLOADS raises the count, LLMB_WORKLOAD_SEED replays one.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/config_loader.h"
#include "tests/support/constrained_workload.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_backend.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/workload.h"

namespace llmb::test {
namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

// One sequence at a time, each step seen before the next.
class Alone {
 public:
  Alone(const ModelConfig& config, const LoadOptions& options)
      : backend_(make_cpu_backend(), {.max_plans_in_flight = 1}) {
    REQUIRE(backend_.load(config, options).ok());
  }

  LedgerCompletion answer(const Workload& workload, const Request& request, int32_t choice) {
    const auto [at, is_new] = answers_.try_emplace(&request);
    if (is_new) {
      SchedulerConfig config;
      config.max_num_seqs = 1;
      config.max_model_len = workload.config.max_model_len;
      for (const auto& shared : workload.requests)
        if (shared.get() == &request) at->second = run_scheduled(backend_, config, nullptr, {shared}).answers[0];
    }
    const ScheduledAnswer& found = at->second.at(choice);
    return {found.out.tokens, *found.finish, found.stop_token};
  }
  void forget() { answers_.clear(); }

 private:
  ScriptedBackend backend_;
  std::map<const Request*, std::vector<ScheduledAnswer>> answers_;
};

}  // namespace

TEST_CASE("random workloads on the CPU backend end, once each, with the tokens of each answer alone") {
  ModelConfig config = tiny_config();
  config.dtype = DType::kBF16;
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 8));
  LoadOptions options;
  options.model_dir = dir.path();
  options.num_threads = 1;
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = 2048;
  options.max_model_len = 96;
  constexpr DType kKvDTypes[] = {DType::kF32, DType::kBF16, DType::kI8, DType::kF8, DType::kI4};

  const int64_t first_seed = from_environment("LLMB_WORKLOAD_SEED", 1);
  const bool replay = std::getenv("LLMB_WORKLOAD_SEED") != nullptr;
  const int64_t num_workloads = from_environment("LLMB_NUM_WORKLOADS", replay ? 1 : 900);
  int64_t num_tokens = 0, num_preemptions = 0, num_ahead = 0, num_accepted = 0, num_trees = 0, num_followers = 0,
          num_copies = 0, num_shared_rows = 0;
  for (const DType dtype : kKvDTypes) {
    LoadOptions o = options;
    o.kv_cache_dtype = dtype;
    o.block_size = dtype == DType::kI4 ? kKvGroup : 16;
    Alone alone(config, o);
    for (int64_t seed = first_seed; seed < first_seed + num_workloads; ++seed) {
      if (!replay && kKvDTypes[seed % 5] != dtype) continue;
      Workload workload = random_workload(static_cast<uint64_t>(seed), config.vocab_size);
      if (dtype == DType::kI4) give_open_groups(&workload);
      o.block_size = workload.config.block_size;
      o.num_blocks_override = workload.config.num_blocks;
      o.swap_space_gib = 1 << 20;  // as many blocks as there may be
      o.max_num_seqs = workload.config.max_num_seqs;
      o.max_num_batched_tokens = workload.config.max_num_batched_tokens;
      o.max_num_drafts = workload.config.max_num_drafts;
      const auto backend = loaded(make_cpu_backend(), config, o);
      const WorkloadOutcome outcome = run_workload(workload, *backend, [&](const Request& request, int32_t choice) {
        return alone.answer(workload, request, choice);
      });
      alone.forget();
      REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
      num_tokens += outcome.num_sampled;
      num_preemptions += outcome.num_preemptions;
      num_ahead += outcome.num_ahead;
      num_accepted += outcome.num_accepted;
      num_trees += outcome.num_trees;
      num_followers += outcome.num_followers;
      num_copies += outcome.num_copies;
      num_shared_rows += outcome.num_shared_rows;
    }
  }
  MESSAGE(num_workloads << " workloads: " << num_tokens << " tokens, " << num_preemptions << " preemptions, "
                        << num_ahead << " steps planned ahead, " << num_accepted << " drafts accepted, " << num_trees
                        << " trees, " << num_followers << " entries behind drafts in flight, " << num_copies
                        << " block copies, " << num_shared_rows << " rows sampled for several choices");
  if (replay) return;
  for (const int64_t count : {num_ahead, num_accepted, num_followers}) CHECK(count > num_workloads);
  for (const int64_t count : {num_preemptions, num_copies, num_shared_rows}) CHECK(count > num_workloads / 20);
  CHECK(num_trees > num_workloads * 4 / 5 / 20);  // over int4 there are none
}

TEST_CASE("random workloads on models with recurrent states give each answer the tokens that it gets alone") {
  const std::string dir = source_dir() + "/data/fixtures/models/qwen3_5";
  const Result<ModelConfig> config = load_model_config(dir);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  LoadOptions options;
  options.model_dir = dir;
  options.num_threads = 1;
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = 2048;
  options.max_model_len = 96;
  options.groups_layers = true;
  Alone alone(*config, options);
  const int64_t first_seed = from_environment("LLMB_WORKLOAD_SEED", 1);
  const int64_t num_workloads = from_environment("LLMB_NUM_WORKLOADS", std::getenv("LLMB_WORKLOAD_SEED") ? 1 : 250);
  int64_t num_preemptions = 0, num_ahead = 0, num_shared_rows = 0, num_saved = 0, num_accepted = 0, num_rejected = 0,
          num_constrained = 0;
  for (int64_t seed = first_seed; seed < first_seed + num_workloads; ++seed) {
    Workload workload = random_workload(static_cast<uint64_t>(seed), config->vocab_size);
    give_states(&workload);
    workload.model.vocab_size = config->vocab_size;  // of masks
    if (seed % 3 == 0) num_constrained += constrain(0.7, &workload);
    LoadOptions o = options;
    o.block_size = workload.config.block_size;
    o.num_blocks_override = workload.config.num_blocks;
    o.max_num_seqs = workload.config.max_num_seqs;
    o.max_num_batched_tokens = workload.config.max_num_batched_tokens;
    o.max_num_drafts = workload.config.max_num_drafts;
    o.max_drafts_per_group = workload.config.max_drafts_per_group;
    const auto backend = loaded(make_cpu_backend(), *config, o);
    REQUIRE(backend->info().num_state_slots >= 3 * workload.config.max_num_seqs + workload.config.num_snapshots);
    workload.config.num_state_slots = backend->info().num_state_slots;
    const WorkloadOutcome outcome = run_workload(workload, *backend, [&](const Request& request, int32_t choice) {
      return alone.answer(workload, request, choice);
    });
    alone.forget();
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    num_preemptions += outcome.num_preemptions;
    num_ahead += outcome.num_ahead;
    num_shared_rows += outcome.num_shared_rows;
    num_saved += outcome.num_saved;
    num_accepted += outcome.num_accepted;
    num_rejected += outcome.num_drafts - outcome.num_accepted;
  }
  MESSAGE(num_workloads << " workloads: " << num_preemptions << " preemptions, " << num_ahead << " steps planned ahead, "
                        << num_shared_rows << " rows sampled for several choices, " << num_saved
                        << " prompt tokens found behind snapshots, " << num_accepted << " drafts accepted, "
                        << num_rejected << " rejected, " << num_constrained << " requests with constraints");
  if (num_workloads < 100) return;
  for (const int64_t count : {num_ahead, num_accepted, num_rejected}) CHECK(count > num_workloads);
  for (const int64_t count : {num_preemptions, num_shared_rows, num_saved}) CHECK(count > num_workloads / 20);
  CHECK(num_constrained > num_workloads / 3);
}

}  // namespace llmb::test
