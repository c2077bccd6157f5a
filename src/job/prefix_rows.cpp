#include "job/prefix_rows.h"

#include <utility>

#include "job/input_check.h"
#include "job/make_intake.h"
#include "job/row_filter.h"
#include "planner/prefix_index.h"
#include "planner/row_shards.h"

namespace llmb {

namespace {

constexpr size_t kPrefixTableBytes = 256 << 20;
constexpr int64_t kUnlimitedAnswer = 256;  // tokens, where a line does not say

class RowTable {
 public:
  void add(int64_t index, const Request* request) {
    PlannedRow row = {prompts_.num_prompts() - 1, {}, 1};
    int64_t num_prompt_tokens = 0;
    if (request != nullptr) {
      num_prompt_tokens = request->num_prompt_tokens();
      if (!request->is_indivisible) row.shared = prompts_.add(request->prompt_tokens);
      row.prompt = prompts_.num_prompts() - 1;
      row.num_output_tokens =
          request->params.stop.max_tokens.value_or(kUnlimitedAnswer) * request->params.sampling.num_choices;
    }
    indices_.push_back(index);
    rows_.push_back(row);
    costs_.push_back(tokens_to_compute(row, num_prompt_tokens));
  }

  std::shared_ptr<const std::vector<bool>> rows_of(const Shard& shard) const {
    const auto shards = divide_rows(rows_, costs_, static_cast<int32_t>(shard.count));
    auto own = std::make_shared<std::vector<bool>>();
    for (size_t i = 0; i < shards.size(); ++i) {
      if (shards[i] != shard.index) continue;
      own->resize(static_cast<size_t>(indices_[i]) + 1);
      own->back() = true;
    }
    return own;
  }

 private:
  PrefixIndex prompts_{kPrefixTableBytes};
  std::vector<int64_t> indices_;
  std::vector<PlannedRow> rows_;
  std::vector<int64_t> costs_;
};

}  // namespace

Result<std::shared_ptr<const std::vector<bool>>> find_prefix_rows(const JobOptions& options, const ModelFiles& model,
                                                                  const KeepGoing& keep_going) {
  auto reader = open_inputs(options, nullptr);
  if (!are_files(options.inputs, *reader))
    return invalid_argument(
        "`shard_by` prefix reads the input twice: it needs files, not a pipe; rows goes with any input");
  const auto intake = make_intake(options, model, std::move(reader), std::make_shared<SteadyClock>(), nullptr);
  RowTable table;
  bool is_interrupted = false;
  const Status status = intake->run([&](IntakeItem item) {
    const int64_t index = item.input ? item.input->line.index : item.failure.line.index;
    if (item.input) intake->prepare(&item);
    table.add(index, item.request.get());
    is_interrupted = !keep_going();
    return !is_interrupted;
  });
  LLMB_RETURN_IF_ERROR(status);
  if (is_interrupted) return cancelled("interrupted");
  return table.rows_of(*options.shard);
}

Result<std::shared_ptr<const LineFilter>> choose_rows(const JobOptions& options, const ModelFiles& model,
                                                      const DoneRows& done, const CompletedLines* own,
                                                      const KeepGoing& keep_going) {
  if (!options.shard && options.done.empty()) return std::shared_ptr<const LineFilter>();
  std::shared_ptr<const std::vector<bool>> of_shard;
  if (options.shard && options.shard->by == ShardBy::kPrefix) {
    LLMB_ASSIGN_OR_RETURN(of_shard, find_prefix_rows(options, model, keep_going));
  }
  return std::shared_ptr<const LineFilter>(std::make_shared<RowFilter>(options.shard, std::move(of_shard), done, own));
}

}  // namespace llmb
