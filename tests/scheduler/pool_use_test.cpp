// Files whose rows wait for the KV pool, on the ledger, with a step that takes 20 ms + 0.1 ms a row: how full the pool is
// while rows wait, and how many tokens are computed again because rows were preempted. Nobody knows the lengths.
//
// 2026-11-27, counts, so the machine does not matter; the rows of kDistributions in turn. By recomputing, admission asks for
// a block more for everybody that runs; where preempted rows are moved to the host it goes by prediction, too:
//     recomputed  steps        3607  6454  5415  8205  4132 14155  2282  5690
//                 use, %       93.7  96.0  96.6  96.5  94.9  95.5  94.8  94.7
//                 again, %      1.8   7.9   3.4  12.4   2.3  21.2  16.5   7.7
//     moved       steps        3517  6452  5405  8119  4072 13991  2271  5449
//                 use, %       96.6  96.9  96.7  97.2  96.4  96.0  96.7  96.7
//                 again, %        0     0     0     0     0     0     0     0
// Moved without prediction: 3607 6447 5415 8205 4132 14152 2274 5690 steps, as full as by recomputing. Without the last block
// of a moved row, which is not full, and with no more blocks on the host than in the pool: 0.5 0.6 0.1 0.8 0.2 2.9 1.5
// 0.9 % computed again. The last block alone brings all to 0 but for 2.7 where one in ten runs on; room alone that one to 0.5.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "base/check.h"
#include "scheduler/scheduler.h"
#include "tests/support/length_distributions.h"

namespace llmb::test {

namespace {

constexpr double kStepMs = 20, kRowMs = 0.1;
constexpr int32_t kBlockSize = 16, kMaxNumSeqs = 512, kMeanRowsOfPool = 64, kNumRows = 1000;

struct Measured {
  int64_t num_steps = 0, num_preemptions = 0, num_swapped = 0;
  double ms = 0;
  double use = 0;         // of the pool, mean over steps in which rows wait
  double recomputed = 0;  // share of all rows of steps
};

class Run {
 public:
  Run(const std::vector<Row>& rows, int32_t num_blocks, PreemptionMode preemption) : rows_(rows) {
    ModelConfig model;
    model.vocab_size = 32000;
    config_.max_num_seqs = kMaxNumSeqs;
    config_.max_num_batched_tokens = 2048;
    config_.block_size = kBlockSize;
    config_.max_model_len = 4096;
    config_.num_blocks = num_blocks;
    config_.enable_prefix_caching = true;
    config_.preemption = preemption;
    LoadOptions load;
    load.block_size = kBlockSize;
    load.num_blocks_override = num_blocks;
    load.max_num_seqs = config_.max_num_seqs;
    load.max_num_batched_tokens = config_.max_num_batched_tokens;
    load.max_model_len = config_.max_model_len;
    load.swap_space_gib = 4;
    LLMB_CHECK(backend_->load(model, load).ok());
    if (preemption == PreemptionMode::kSwap) config_.num_host_blocks = backend_->info().num_host_blocks;
  }

  Measured run() {
    Scheduler scheduler(config_);
    StepPlan plan;
    StepOutput output;
    std::vector<SequenceUpdate> updates;
    double use = 0;
    int64_t num_waited = 0, num_computed = 0, num_recomputed = 0;
    for (feed(scheduler); scheduler.schedule(0, false, &plan); feed(scheduler)) {
      ++measured_.num_steps;
      measured_.ms += kStepMs + kRowMs * plan.num_tokens();
      measured_.num_swapped += static_cast<int64_t>(plan.swaps_out.size() + plan.swaps_in.size());
      num_computed += plan.num_tokens();
      for (int32_t e = 0; e < plan.num_entries(); ++e) num_recomputed += recomputed(plan, e);
      const KvUsage usage = scheduler.kv_usage();
      if (scheduler.num_waiting() > 0) {
        use += static_cast<double>(usage.allocated_slots) / static_cast<double>(usage.total_slots);
        ++num_waited;
      }
      LLMB_CHECK(backend_->submit(plan).ok() && backend_->wait(&output).ok());
      scheduler.apply(plan, output, &updates);
      for (const SequenceUpdate& update : updates) take(update, scheduler);
    }
    measured_.num_preemptions = scheduler.num_preemptions_total();
    measured_.use = use / static_cast<double>(std::max<int64_t>(1, num_waited));
    measured_.recomputed = static_cast<double>(num_recomputed) / static_cast<double>(num_computed);
    return measured_;
  }

 private:
  void feed(Scheduler& scheduler) {
    for (; next_ < rows_.size() && scheduler.num_waiting() < kMaxNumSeqs; ++next_) {
      LLMB_CHECK(std::holds_alternative<SeqId>(
          scheduler.add(request_of(rows_[next_], static_cast<int32_t>(next_)), 0)));
      given_.push_back(0);
      reached_.push_back(0);
    }
  }

  // Rows of the entry that an earlier step has computed.
  int64_t recomputed(const StepPlan& plan, int32_t entry) {
    const StepEntry& e = plan.entries[entry];
    int32_t& reached = reached_[static_cast<size_t>(e.seq)];
    const int32_t end = e.base + plan.num_rows(entry), again = std::max(0, std::min(end, reached) - e.base);
    reached = std::max(reached, end);
    return again;
  }

  // Ids follow the rows.
  void take(const SequenceUpdate& update, Scheduler& scheduler) {
    const auto row = static_cast<size_t>(update.seq);
    if (++given_[row] >= rows_[row].length && scheduler.contains(update.seq)) scheduler.finish(update.seq);
  }

  const std::vector<Row>& rows_;
  SchedulerConfig config_;
  std::unique_ptr<Backend> backend_ = make_ledger_backend({});
  size_t next_ = 0;
  std::vector<int32_t> given_, reached_;  // [rows that were added]
  Measured measured_;
};

}  // namespace

TEST_CASE("95 % of the pool in use and 1 % computed again at most; never more steps than by recomputing") {
  for (const Distribution& distribution : kDistributions) {
    TestRng rng(5);
    std::vector<Row> rows;
    int64_t num_tokens = 0;
    for (int32_t i = 0; i < kNumRows; ++i) {
      rows.push_back(distribution.draw(rng));
      num_tokens += rows.back().num_own_prompt_tokens + rows.back().length / 2;
    }
    const auto num_blocks =
        std::max<int32_t>(160, static_cast<int32_t>(num_tokens / kNumRows) * kMeanRowsOfPool / kBlockSize);
    const Measured recomputed = Run(rows, num_blocks, PreemptionMode::kRecompute).run();
    const Measured swapped = Run(rows, num_blocks, PreemptionMode::kSwap).run();
    for (const Measured* m : {&recomputed, &swapped})
      MESSAGE(distribution.name << std::string(m == &swapped ? ", moved: " : ", recomputed: ") << m->num_steps << " steps, "
                                << m->ms / 1000 << " s, use " << 100 * m->use << " %, computed again "
                                << 100 * m->recomputed << " %, " << m->num_preemptions << " preemptions, "
                                << m->num_swapped << " blocks moved");
    CHECK(swapped.use >= 0.95);
    CHECK(swapped.recomputed <= 0.01);
    CHECK(swapped.num_steps <= recomputed.num_steps);
    CHECK(swapped.ms <= recomputed.ms);
  }
}

}  // namespace llmb::test
