#include "core/request_sample.h"

#include <algorithm>

namespace llmb {

namespace {

bool is_slower(const RequestFigures& a, const RequestFigures& b) { return a.e2e_ms > b.e2e_ms; }

}  // namespace

// Algorithm R (Vitter, Random Sampling with a Reservoir, 1985).
void RequestSample::add(RequestFigures request) {
  if (request.id_json.size() > kMaxTextBytes) request.id_json.erase(kMaxTextBytes).append("…");
  if (request.place.size() > kMaxTextBytes) request.place.erase(0, request.place.size() - kMaxTextBytes).insert(0, "…");
  if (slowest_.size() < kMaxSlowest || is_slower(request, slowest_.front())) {
    if (slowest_.size() == kMaxSlowest) {
      std::pop_heap(slowest_.begin(), slowest_.end(), is_slower);
      slowest_.pop_back();
    }
    slowest_.push_back(request);
    std::push_heap(slowest_.begin(), slowest_.end(), is_slower);
  }
  ++num_seen_;
  if (drawn_.size() < kMaxDrawn) return drawn_.push_back(std::move(request));
  const double u = sampling_uniform({/*seed=*/0, /*stream=*/0}, 0, num_draws_++);
  const auto at = static_cast<int64_t>(u * static_cast<double>(num_seen_));
  if (at < static_cast<int64_t>(kMaxDrawn)) drawn_[at] = std::move(request);
}

std::vector<RequestFigures> RequestSample::slowest() const {
  std::vector<RequestFigures> sorted = slowest_;
  std::stable_sort(sorted.begin(), sorted.end(), is_slower);
  return sorted;
}

}  // namespace llmb
