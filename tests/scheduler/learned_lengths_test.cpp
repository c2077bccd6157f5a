// Runs whose answers' lengths nobody knows beforehand, on the ledger: orders that follow what is learned, beside the file's
// and that of somebody who knows all lengths.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "planner/length_predictor.h"
#include "planner/prefix_index.h"
#include "planner/row_queue.h"
#include "scheduler/scheduler.h"
#include "tests/support/length_distributions.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

constexpr int32_t kNumSlots = 16, kBlockSize = 16;

struct File {
  std::vector<Row> rows;
  std::vector<std::shared_ptr<const Request>> requests;
  std::vector<PlannedRow> planned;
};

File draw_file(const Distribution& distribution, int32_t count, uint64_t seed) {
  TestRng rng(seed);
  File file;
  PrefixIndex index(8 << 20);
  for (int32_t i = 0; i < count; ++i) {
    const Row row = distribution.draw(rng);
    const std::shared_ptr<const Request> request = request_of(row, i);
    file.planned.push_back({i, index.add(request->prompt_tokens), row.max_tokens});
    file.requests.push_back(request);
    file.rows.push_back(row);
  }
  return file;
}

enum class Knows { kNothing, kWhatIsLearned, kAll };

// Feeds the scheduler as the job does: in the order of the plan, some rows ahead of those that run.
class LearningRun {
 public:
  LearningRun(const File& file, Knows knows, Schedule schedule)
      : file_(file), knows_(knows), queue_(schedule, planned_rows(), kNumSlots) {
    for (size_t i = 0; i < file.rows.size(); ++i) {
      const PlannedRow& row = file.planned[i];
      ExpectedRow expected = {static_cast<int64_t>(i), row.prompt, row.shared.prompt};
      expected.num_prompt_tokens = static_cast<int32_t>(file.requests[i]->prompt_tokens.size());
      expected.max_tokens = file.rows[i].max_tokens;
      lengths_.add(expected);
    }
  }

  // The number of steps.
  int64_t run() {
    ModelConfig model;
    model.vocab_size = 32000;
    SchedulerConfig config;
    config.max_num_seqs = kNumSlots;
    config.max_num_batched_tokens = 1024;
    config.block_size = kBlockSize;
    config.max_model_len = 4096;
    config.num_blocks = kNumSlots * 160;
    config.enable_prefix_caching = true;
    LoadOptions load;
    load.block_size = config.block_size;
    load.num_blocks_override = config.num_blocks;
    const std::unique_ptr<Backend> backend = make_ledger_backend({});
    REQUIRE(backend->load(model, load).ok());
    Scheduler scheduler(config);
    StepPlan plan;
    StepOutput output;
    std::vector<SequenceUpdate> updates;
    int64_t num_steps = 0;
    for (feed(scheduler); scheduler.schedule(0, false, &plan); feed(scheduler)) {
      REQUIRE(backend->submit(plan).ok());
      REQUIRE(backend->wait(&output).ok());
      scheduler.apply(plan, output, &updates);
      ++num_steps;
      for (const SequenceUpdate& update : updates) take(update, scheduler);
    }
    return num_steps;
  }

 private:
  std::vector<PlannedRow> planned_rows() const {
    std::vector<PlannedRow> rows = file_.planned;
    if (knows_ == Knows::kAll)
      for (size_t i = 0; i < rows.size(); ++i) rows[i].num_output_tokens = file_.rows[i].length;
    return rows;
  }

  void feed(Scheduler& scheduler) {
    while (scheduler.num_waiting() < 2 * kNumSlots) {
      const std::optional<int32_t> row = queue_.next();
      if (!row) return;
      CHECK(std::holds_alternative<SeqId>(scheduler.add(file_.requests[*row], 0)));
      given_.push_back(0);
      if (knows_ != Knows::kWhatIsLearned || lengths_.num_learned() < reorder_at_) continue;
      reorder_at_ = 2 * lengths_.num_learned();
      queue_.reorder([&](int32_t left) { return lengths_.expected_tokens(left); });
    }
  }

  void take(const SequenceUpdate& update, Scheduler& scheduler) {
    if (!scheduler.contains(update.seq) && !update.finish) return;
    const int64_t line = update.finish ? lines_.at(update.seq) : scheduler.find(update.seq)->request->line.index;
    lines_[update.seq] = line;
    if (++given_[update.seq] < file_.rows[line].length) return;
    if (scheduler.contains(update.seq)) scheduler.finish(update.seq);
    lengths_.end(line, given_[update.seq]);
  }

  const File& file_;
  const Knows knows_;
  RowQueue queue_;
  LengthPredictor lengths_;
  int64_t reorder_at_ = kNumSlots;
  std::vector<int32_t> given_;  // [sequences] tokens
  std::map<SeqId, int64_t> lines_;
};

}  // namespace

TEST_CASE("orders by learned lengths: at most 1.10 times the steps of who knows them, 1.02 of the file's order") {
  for (const Distribution& distribution : kDistributions) {
    const File file = draw_file(distribution, 800, 5);
    const auto steps = [&](Knows knows, Schedule schedule) {
      return static_cast<double>(LearningRun(file, knows, schedule).run());
    };
    const double in_file = steps(Knows::kNothing, Schedule::kFile), known = steps(Knows::kAll, Schedule::kAuto),
                 learned = steps(Knows::kWhatIsLearned, Schedule::kAuto);
    MESSAGE(distribution.name << ": " << learned << " steps, with lengths known " << known << ", in file order " << in_file);
    CHECK(learned <= 1.10 * known);
    CHECK(learned <= 1.02 * in_file);
  }
}

}  // namespace llmb::test
