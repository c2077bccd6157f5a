// Requests that wait for their adapters, without holding up others.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <utility>

#include "core/adapter_store.h"
#include "engine/request_source.h"

namespace llmb {

// Driven by one thread. Invariant: an adapter is wanted of the store once for each of its requests that is here, and once
// for each that was let through, until it has ended and no step in flight may name it.
class AdapterGate {
 public:
  // null: requests wait for nothing. The store outlives the gate, and no plan is in flight at its end.
  explicit AdapterGate(AdapterStore* store) : store_(store) {}
  ~AdapterGate();
  AdapterGate(const AdapterGate&) = delete;
  AdapterGate& operator=(const AdapterGate&) = delete;

  // Holds a request until its adapter is there or has failed.
  void put(WorkItem item);
  // The first that waits no longer; nullopt: none.
  std::optional<WorkItem> take();
  // Why the adapter of a request that take() gave cannot be computed; ok: it can.
  Status status_of(const WorkItem& item) const;

  // A request that take() gave is over. Plans up to the newest, the num_submitted-th, may name its adapter.
  void end(const Request& request, int64_t num_submitted);
  void on_step(int64_t num_finished);
  // Drops those that wait; gives their number.
  int64_t clear();

  int64_t num_held() const { return static_cast<int64_t>(items_.size()); }
  // Those that are held wait for running ones to end.
  bool lacks_room() const { return !items_.empty() && store_ != nullptr && !store_->is_reading(); }
  void wait(double timeout_ms) const { store_->wait_for_read(timeout_ms); }  // REQUIRES: num_held() > 0
  int64_t num_reads() const { return store_ != nullptr ? store_->num_reads() : 0; }

 private:
  bool has_adapter(const Request& request) const;

  AdapterStore* const store_;
  std::list<WorkItem> items_;
  std::deque<std::pair<int64_t, int32_t>> ended_;  // (plans, adapter): released when so many are finished
};

}  // namespace llmb
