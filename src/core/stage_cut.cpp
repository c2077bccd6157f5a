#include "core/stage_cut.h"

#include <algorithm>
#include <limits>
#include <span>

#include "base/check.h"
#include "core/row_parts.h"

namespace llmb {

namespace {

// The costs of stages of layers that follow each other, in one kind of step.
class CostsOfRuns {
 public:
  // behind: the last layer, in its stage
  CostsOfRuns(std::span<const int64_t> layers, int64_t behind) : behind_(behind) {
    for (const int64_t cost : layers) before_.push_back(before_.back() + cost);
  }

  int64_t num_layers() const { return static_cast<int64_t>(before_.size()) - 1; }
  int64_t of(int64_t begin, int64_t end) const {
    return before_[static_cast<size_t>(end)] - before_[static_cast<size_t>(begin)] + (end == num_layers() ? behind_ : 0);
  }
  double share(int64_t cost) const {  // of what all layers cost
    return static_cast<double>(cost) / static_cast<double>(std::max<int64_t>(1, before_.back()));
  }

  // All that a stage may cost, from the least on.
  std::vector<int64_t> values() const {
    std::vector<int64_t> values;
    for (int64_t begin = 0; begin < num_layers(); ++begin)
      for (int64_t end = begin + 1; end <= num_layers(); ++end) values.push_back(of(begin, end));
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return values;
  }

 private:
  const int64_t behind_;
  std::vector<int64_t> before_ = {0};  // [num_layers + 1]
};

class StageDivision {
 public:
  StageDivision(const StageCosts& costs, int32_t prompt_permille, int32_t num_stages)
      : prompts_(costs.prompts, 0), answers_(costs.answers, costs.head), of_prompts_(prompt_permille / 1000.0),
        num_stages_(num_stages), num_layers_(answers_.num_layers()) {}

  // Finds for each limit on the one kind of step the least on the other that can be kept: one of these pairs costs least.
  void find_limits() {
    const std::vector<int64_t> prompts = prompts_.values(), answers = answers_.values();
    double least = std::numeric_limits<double>::infinity();
    auto most_of_answers = answers.rbegin();
    for (auto most_of_prompts = prompts.begin(); most_of_prompts != prompts.end();) {
      if (most_of_answers == answers.rend() || !fits(*most_of_prompts, *most_of_answers)) {
        ++most_of_prompts;
        continue;
      }
      if (const double cost = cost_of(*most_of_prompts, *most_of_answers); cost < least) {
        least = cost;
        most_of_prompts_ = *most_of_prompts, most_of_answers_ = *most_of_answers;
      }
      ++most_of_answers;
    }
  }

  // Within the limits the sum of all stages' squares is least.
  std::vector<int64_t> divide() const {
    const auto width = static_cast<size_t>(num_layers_) + 1;
    constexpr double kNever = std::numeric_limits<double>::infinity();
    std::vector<double> least(width, kNever), next(width);  // of the stages so far, by where they end
    std::vector<std::vector<int64_t>> begins;               // [num_stages][width]  of the stage that ends there
    least[0] = 0;
    for (int32_t stage = 0; stage < num_stages_; ++stage) {
      std::vector<int64_t>& begin_of = begins.emplace_back(width, 0);
      std::fill(next.begin(), next.end(), kNever);
      for (int64_t begin = stage; begin < num_layers_; ++begin) {
        const double before = least[static_cast<size_t>(begin)];
        for (int64_t end = begin + 1; before < kNever && end <= num_layers_ && is_within_limits(begin, end); ++end) {
          const double own = cost_of(prompts_.of(begin, end), answers_.of(begin, end));
          // Equally good divisions: that whose last stages have more layers, whatever rounding says.
          if (!(before + own * own < (1 - 1e-9) * next[static_cast<size_t>(end)])) continue;
          next[static_cast<size_t>(end)] = before + own * own;
          begin_of[static_cast<size_t>(end)] = begin;
        }
      }
      std::swap(least, next);
    }
    LLMB_CHECK(least.back() < kNever);
    std::vector<int64_t> bounds(static_cast<size_t>(num_stages_) + 1, num_layers_);
    for (auto stage = static_cast<size_t>(num_stages_); stage-- > 0;)
      bounds[stage] = begins[stage][static_cast<size_t>(bounds[stage + 1])];
    return bounds;
  }

 private:
  double cost_of(int64_t prompts, int64_t answers) const {
    return of_prompts_ * prompts_.share(prompts) + (1 - of_prompts_) * answers_.share(answers);
  }
  bool is_within_limits(int64_t begin, int64_t end) const {
    return prompts_.of(begin, end) <= most_of_prompts_ && answers_.of(begin, end) <= most_of_answers_;
  }
  // Whether there is a division within these limits: each stage takes as many layers as it may, one left for each behind it.
  bool fits(int64_t most_of_prompts, int64_t most_of_answers) const {
    int64_t begin = 0;
    for (int32_t stage = 0; stage < num_stages_; ++stage) {
      const int64_t most = num_layers_ - (num_stages_ - 1 - stage);
      int64_t end = begin;
      while (end < most && prompts_.of(begin, end + 1) <= most_of_prompts && answers_.of(begin, end + 1) <= most_of_answers)
        ++end;
      if (end == begin) return false;
      begin = end;
    }
    return begin == num_layers_;
  }

  const CostsOfRuns prompts_, answers_;
  const double of_prompts_;
  const int32_t num_stages_;
  const int64_t num_layers_;
  int64_t most_of_prompts_ = 0, most_of_answers_ = 0;
};

}  // namespace

StageCosts counted_costs(const ModelConfig& config, int32_t position) {
  StageCosts costs;
  costs.head = int64_t{config.vocab_size} * config.hidden_size;
  ModelConfig one = config;
  one.num_hidden_layers = 1;
  one.mtp.is_used = false;
  for (int32_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerConfig layer = config.layer(i);
    one.layers = {layer};
    const RowCost cost = row_cost(one);
    const bool attends = layer.has_mixer && !layer.has_state;
    const int64_t seen = !attends ? 0 : layer.window > 0 ? std::min(layer.window, position) : position;
    costs.answers.push_back(cost.of_row + cost.of_position * seen);
  }
  costs.prompts = costs.answers;
  return costs;
}

std::vector<int64_t> cut_layers(const StageCosts& costs, int32_t prompt_permille, int32_t num_stages) {
  LLMB_CHECK(costs.prompts.size() == costs.answers.size() && static_cast<int64_t>(costs.answers.size()) >= num_stages);
  StageDivision division(costs, prompt_permille, num_stages);
  division.find_limits();
  return division.divide();
}

}  // namespace llmb
