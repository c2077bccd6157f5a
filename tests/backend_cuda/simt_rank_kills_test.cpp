// Ranks on GPUs, each a process on the host layer, that are killed or stopped at random moments, whatever stage they are
// of: every call of rank 0 ends, within the time that ranks have patience for, with a line that names the rank and its
// step. LLMB_NUM_KILLS: how often.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/plans_in_flight.h"
#include "model/config_loader.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/plan_builder.h"
#include "tests/support/source_dir.h"
#include "tests/support/test_rng.h"

namespace llmb::test {
namespace {

constexpr double kPatienceMs = 3000;
constexpr double kMostMs = 15000;  // beside compilers and other tests
constexpr unsigned kHangS = 90;

// One prompt of 8 to 24 rows, in blocks of its own.
StepPlan plan_of(const ModelConfig& config, int64_t step, int32_t num_rows) {
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < num_rows; ++i) prompt.push_back(static_cast<TokenId>((5 * i + step) % config.vocab_size));
  const auto first = static_cast<BlockId>(step % kMaxAlternatingPlans * 3);
  StepPlan plan = PlanBuilder(8).add(prompt, 0, num_rows, {first, first + 1, first + 2}, SampleRow()).plan();
  plan.step = step;
  return plan;
}

// Steps one behind the other until there is an error, with as many plans in flight as there may be, and now and then a
// moment in which there are none: between two steps calls `is_idle`.
Status run_until_error(Backend& backend, const ModelConfig& config, TestRng& rng,
                       const std::function<void()>& is_idle) {
  std::array<StepPlan, kMaxAlternatingPlans> plans;
  StepOutput output;
  int64_t num_submitted = 0, num_fetched = 0;
  while (true) {
    const int32_t most = rng.between(1, backend.info().max_plans_in_flight);
    while (num_submitted - num_fetched < most) {
      StepPlan& plan = plans[static_cast<size_t>(num_submitted % kMaxAlternatingPlans)];
      plan = plan_of(config, num_submitted, rng.between(8, 24));
      if (const Status status = backend.submit(plan); !status.ok()) {
        while (num_fetched < num_submitted && backend.wait(&output).ok()) ++num_fetched;  // they use the plans
        return status;
      }
      ++num_submitted;
    }
    LLMB_RETURN_IF_ERROR(backend.wait(&output));
    if (++num_fetched == num_submitted && num_fetched > 3) is_idle();
    if (rng.chance(0.3)) ::usleep(static_cast<useconds_t>(rng.between(0, 3000)));
  }
}

}  // namespace

TEST_CASE("a rank of any stage that is killed or stops at any moment: every call ends in time, and the line names it") {
  const char* const asked = std::getenv("LLMB_NUM_KILLS");
  const int num_wanted = asked != nullptr ? std::atoi(asked) : 8;
  const std::string dir = source_dir() + "/data/fixtures/models/qwen3";
  const Result<ModelConfig> config = load_model_config(dir);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  REQUIRE(config->num_hidden_layers == 3);
  LoadOptions options;
  options.model_dir = dir;
  options.block_size = 8;
  options.num_blocks_override = 40;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 24;
  options.max_model_len = 64;
  options.num_threads = 1;
  options.dtype = options.kv_cache_dtype = DType::kF32;
  options.cuda.deterministic = true;
  const std::vector<RankPart> grids = {{0, 1, 3}, {0, 2, 2}, {0, 1, 2}, {0, 2, 1}};
  TestRng rng(asked != nullptr ? static_cast<uint64_t>(::getpid()) : 1);
  double longest_ms = 0;
  for (int i = 0; i < num_wanted; ++i) {
    const RankPart grid = grids[static_cast<size_t>(i) % grids.size()];
    const int32_t rank = rng.between(1, grid.num_ranks() - 1);
    const int signal = rng.chance(0.5) ? SIGKILL : SIGSTOP, after_us = rng.between(0, 40000);
    const bool when_idle = rng.chance(0.5);
    CAPTURE(grid.tensor_size);
    CAPTURE(grid.num_stages);
    CAPTURE(rank);
    CAPTURE(signal);
    CAPTURE(after_us);
    CAPTURE(when_idle);
    ::alarm(kHangS);  // nothing ends a rank 0 that hangs
    ForkedRanksOptions ranks_options;
    ranks_options.tensor_size = grid.tensor_size;
    ranks_options.num_stages = grid.num_stages;
    ranks_options.patience_ms = kPatienceMs;
    ranks_options.delay_seed = static_cast<uint64_t>(i);
    ForkedRanks ranks = make_forked_ranks(ranks_options);
    check_ok(ranks.backend->load(*config, options));
    double ended_ms = 0;
    {
      const simt::Background device;
      const SteadyClock clock;
      double killed_ms = 0;
      const auto kill = [&] {
        killed_ms = clock.now_ms();
        ::kill(ranks.peers->pids()[static_cast<size_t>(rank) - 1], signal);
      };
      std::thread killer([&] {
        ::usleep(static_cast<useconds_t>(after_us));
        if (!when_idle) kill();
      });
      bool was_killed = !when_idle;
      const Status status = run_until_error(*ranks.backend, *config, rng, [&] {
        if (!std::exchange(was_killed, true)) kill();
      });
      killer.join();
      ended_ms = clock.now_ms() - killed_ms;
      CHECK(status.code() == StatusCode::kDeviceError);
      CHECK_MESSAGE(status.message().find("rank " + std::to_string(rank) + " in step ") != std::string::npos,
                    status.message());
      ranks.backend.reset();
    }
    CHECK(ended_ms < kMostMs);
    longest_ms = std::max(longest_ms, ended_ms);
  }
  ::alarm(0);
  MESSAGE(num_wanted << " ranks killed or stopped; the last call ended within " << longest_ms << " ms");
}

}  // namespace llmb::test
