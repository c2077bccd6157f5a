// Models with windows on the CUDA backend: layer groups with block tables of their own, and the bits of one group.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "model/config_loader.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#include "tests/support/window_requests.h"

namespace llmb::test {
namespace {

std::unique_ptr<Backend> load(const std::string& model, DType dtype, bool groups_layers, int32_t num_blocks) {
  const std::string dir = source_dir() + "/data/fixtures/models/" + model;
  LoadOptions o;
  o.model_dir = dir;
  o.groups_layers = groups_layers;
  o.block_size = 8;
  o.num_blocks_override = num_blocks;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 40;
  o.max_num_drafts = 6;
  o.max_model_len = 64;
  o.num_threads = 1;
  o.dtype = dtype;
  o.cuda.deterministic = true;
  return loaded(make_cuda_backend(0), load_model_config(dir).value(), o);
}

TEST_CASE("windows give blocks back: the bits of one group, with choices and trees of drafts, from a small pool") {
  int64_t num_copies = 0, num_trees = 0;
  for (const char* model : {"mistral-window", "gemma2", "qwen2-window"})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      CAPTURE(model);
      CAPTURE(dtype_name(dtype));
      auto requests = window_requests({13, 37}, 7);
      requests.push_back(window_requests({26}, 7, 2)[0]);
      SchedulerConfig config;
      config.max_num_seqs = 4;
      config.max_num_batched_tokens = 23;
      config.max_model_len = 64;
      const auto plain = run_scheduled(*load(model, dtype, false, 100), config, nullptr, requests).answers;
      const auto answer = tokens_of(requests, plain);
      ScriptedProposer proposer(answer, 60, {.propose_rate = 0.8, .right_rate = 0.7, .tree_rate = 0.7}, 2);
      config.max_num_drafts = 6;
      config.allows_trees = true;
      const int32_t num_groups = std::string(model) == "mistral-window" ? 1 : std::string(model) == "gemma2" ? 2 : 3;
      const auto backend = load(model, dtype, true, 7 * num_groups);
      CHECK(backend->info().kv.groups.num_groups() == num_groups);
      const ScheduledRun run = run_scheduled(*backend, config, &proposer, requests);
      const bool is_same = run.answers == plain;
      CHECK(is_same);
      num_copies += run.num_copies;
      num_trees += run.num_trees;
    }
  CHECK(num_copies > 0);
  CHECK(num_trees > 0);
}

}  // namespace
}  // namespace llmb::test
