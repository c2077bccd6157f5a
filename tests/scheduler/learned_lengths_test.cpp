// Runs whose answers' lengths nobody knows beforehand, on the ledger: orders that follow what is learned, beside the file's
// and that of somebody who knows all lengths.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "planner/length_predictor.h"
#include "planner/prefix_index.h"
#include "planner/row_queue.h"
#include "scheduler/scheduler.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

constexpr int32_t kMaxTokens = 1536, kNumSlots = 16, kBlockSize = 16;

struct Row {
  int32_t group = 0;  // a template of 64 tokens
  int32_t num_own_prompt_tokens = 64;
  int32_t length = 1;  // of the answer
  int32_t max_tokens = kMaxTokens;
};

struct Distribution {
  std::string name;
  std::function<Row(TestRng&)> draw;
};

double unit(TestRng& rng) { return rng.between(0, (1 << 20) - 1) / static_cast<double>(1 << 20); }

int32_t exponential(TestRng& rng, double mean) {
  return std::clamp(static_cast<int32_t>(-mean * std::log(1 - unit(rng))), 1, kMaxTokens);
}

const std::vector<Distribution> kDistributions = {
    {"exponential", [](TestRng& rng) { return Row{0, 64, exponential(rng, 128)}; }},
    {"two templates, short and long answers",
     [](TestRng& rng) {
       const int32_t group = rng.between(0, 1);
       return Row{group, 64, exponential(rng, group == 0 ? 20 : 300)};
     }},
    {"as long as the prompt",
     [](TestRng& rng) {
       const int32_t prompt = rng.log_between(8, 600);
       return Row{0, prompt, std::max(1, static_cast<int32_t>(prompt * (0.7 + 0.6 * unit(rng))))};
     }},
    {"most of max_tokens",
     [](TestRng& rng) {
       const int32_t most = rng.log_between(8, kMaxTokens);
       return Row{0, 64, std::max(1, static_cast<int32_t>(most * (0.5 + 0.5 * unit(rng)))), most};
     }},
    {"eight templates, each with its own length and a long tail",
     [](TestRng& rng) {
       const int32_t group = rng.between(0, 7);
       const double normal = unit(rng) + unit(rng) + unit(rng) + unit(rng) - 2;
       return Row{group, 64, std::clamp(static_cast<int32_t>(10 * std::exp2(0.7 * group + 1.5 * normal)), 1, kMaxTokens)};
     }},
    {"one in ten runs on to max_tokens",
     [](TestRng& rng) { return Row{0, 64, rng.chance(0.1) ? kMaxTokens : rng.between(10, 60)}; }},
    {"all alike", [](TestRng&) { return Row{0, 64, 128}; }},
    {"uniform", [](TestRng& rng) { return Row{0, 64, rng.between(1, 512)}; }},
};

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
    auto request = std::make_shared<Request>();
    request->line.index = i;
    for (int32_t t = 0; t < 64; ++t) request->prompt_tokens.push_back(row.group * 64 + t);
    for (int32_t t = 0; t < row.num_own_prompt_tokens; ++t) request->prompt_tokens.push_back((i * 7919 + t * 31) % 30000);
    request->params.sampling.temperature = 0;
    request->params.stop.max_tokens = row.max_tokens;
    file.planned.push_back({i, index.add(request->prompt_tokens), row.max_tokens});
    file.requests.push_back(std::move(request));
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
