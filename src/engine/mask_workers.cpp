#include "engine/mask_workers.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace llmb {

namespace {
constexpr double kWorthwhileMs = 0.5;  // threads wake up in a tenth of that
}

double MaskWorkers::find_alone(const std::vector<Row>& rows, size_t begin, size_t end) const {
  const double begin_ms = clock_.now_ms();
  for (size_t i = begin; i < end; ++i) rows[i].state->allowed();
  return clock_.now_ms() - begin_ms;
}

void MaskWorkers::find(std::vector<Row>* rows) {
  if (rows->empty()) return;
  double took_ms = 0;
  if (num_threads_ < 2 || mean_ms_ < kWorthwhileMs) {
    took_ms = find_alone(*rows, 0, rows->size());
  } else {
    std::stable_sort(rows->begin(), rows->end(),
                     [](const Row& a, const Row& b) { return std::less<>()(a.form, b.form); });
    forms_.clear();
    for (size_t i = 0; i < rows->size(); ++i)
      if (i == 0 || (*rows)[i].form != (*rows)[i - 1].form) forms_.push_back(i);
    took_ms_.assign(forms_.size(), 0);
    if (pool_ == nullptr && forms_.size() > 1) pool_ = std::make_unique<ThreadPool>(num_threads_);
    const auto find_form = [&](int64_t form, int) {
      const size_t end = static_cast<size_t>(form) + 1 < forms_.size() ? forms_[form + 1] : rows->size();
      took_ms_[form] = find_alone(*rows, forms_[form], end);
    };
    if (forms_.size() == 1) find_form(0, 0);
    else pool_->parallel_for(static_cast<int64_t>(forms_.size()), find_form);
    took_ms = std::accumulate(took_ms_.begin(), took_ms_.end(), 0.0);
  }
  mean_ms_ += (took_ms - mean_ms_) / 8;
}

}  // namespace llmb
