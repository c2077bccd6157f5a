#include "model/adapter_pool.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/check.h"

namespace llmb {

AdapterPool::AdapterPool(std::shared_ptr<AdapterLibrary> library, std::unique_ptr<const AdapterPacker> packer,
                         int64_t max_bytes)
    : library_(std::move(library)), packer_(std::move(packer)), max_bytes_(max_bytes) {}

AdapterPool::~AdapterPool() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  if (reader_.joinable()) reader_.join();
}

void AdapterPool::want(int32_t id) {
  std::lock_guard lock(mutex_);
  const auto [at, is_new] = entries_.try_emplace(id);
  Entry& entry = at->second;
  if (entry.num_wants++ > 0) return;
  if (entry.state == AdapterState::kReady) idle_.erase(entry.idle);
  if (!is_new) return;
  queue_.push_back(id);
  if (!reader_.joinable()) reader_ = std::thread([this] { read_all(); });
  changed_.notify_all();
}

void AdapterPool::release(int32_t id) {
  std::lock_guard lock(mutex_);
  Entry& entry = entries_.at(id);
  LLMB_CHECK(entry.num_wants > 0);
  if (--entry.num_wants > 0) return;
  if (entry.state == AdapterState::kReady) {
    entry.idle = idle_.insert(idle_.end(), id);
  } else if (const auto at = std::find(queue_.begin(), queue_.end(), id); at != queue_.end()) {
    queue_.erase(at);
    entries_.erase(id);
  }
  waits_for_room_ = false;
  changed_.notify_all();
}

AdapterState AdapterPool::state(int32_t id) const {
  std::lock_guard lock(mutex_);
  return entries_.at(id).state;
}

Status AdapterPool::failure(int32_t id) const {
  std::lock_guard lock(mutex_);
  return entries_.at(id).failure;
}

bool AdapterPool::is_reading() const {
  std::lock_guard lock(mutex_);
  return (is_reading_ || !queue_.empty()) && !waits_for_room_;
}

void AdapterPool::wait_for_read(double timeout_ms) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double, std::milli>(timeout_ms),
                    [&, before = num_ended_] { return num_ended_ > before; });
}

int64_t AdapterPool::num_reads() const {
  std::lock_guard lock(mutex_);
  return num_reads_;
}

std::shared_ptr<const PackedAdapter> AdapterPool::take(int32_t id) {
  want(id);
  std::unique_lock lock(mutex_);
  Entry& entry = entries_.at(id);
  changed_.wait(lock, [&] { return entry.state != AdapterState::kOnItsWay; });
  const std::shared_ptr<const PackedAdapter> packed = entry.packed;
  const Status failure = entry.failure;
  lock.unlock();
  release(id);
  if (packed == nullptr) throw std::runtime_error(failure.message());
  return packed;
}

void AdapterPool::read_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stops_ || !queue_.empty(); });
    if (stops_) return;
    const int32_t id = queue_.front();
    queue_.pop_front();
    is_reading_ = true;
    lock.unlock();
    std::shared_ptr<const PackedAdapter> packed;
    int64_t num_bytes = 0;
    Status status;
    try {
      status = read(id, &packed, &num_bytes);
    } catch (const std::bad_alloc&) {
      status = resource_exhausted("no memory for it");
    } catch (const std::exception& e) {
      status = internal_error(e.what());
    }
    lock.lock();
    is_reading_ = false;
    keep(id, status, std::move(packed), num_bytes);
    changed_.notify_all();
  }
}

// Null and ok: nobody wants it any more.
Status AdapterPool::read(int32_t id, std::shared_ptr<const PackedAdapter>* packed, int64_t* num_bytes) {
  LLMB_ASSIGN_OR_RETURN(const LoraAdapter adapter, library_->open(id));
  const int64_t needed = packer_->num_bytes(adapter);
  if (!make_room(id, needed)) return {};
  *num_bytes = needed;
  LLMB_RETURN_IF_ERROR(library_->check(adapter));
  auto made = packer_->pack(adapter);
  LLMB_RETURN_IF_ERROR(adapter.still_readable());
  *packed = std::move(made);
  return {};
}

// False: the adapter is no longer wanted, or the pool stops.
bool AdapterPool::make_room(int32_t id, int64_t num_bytes) {
  std::unique_lock lock(mutex_);
  while (num_bytes_ + num_bytes > max_bytes_ && num_bytes_ > 0) {
    if (stops_ || entries_.at(id).num_wants == 0) return false;
    if (idle_.empty()) {
      waits_for_room_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return stops_ || !waits_for_room_; });
      continue;
    }
    const auto oldest = entries_.find(idle_.front());
    num_bytes_ -= oldest->second.num_bytes;
    idle_.pop_front();
    entries_.erase(oldest);
  }
  num_bytes_ += num_bytes;
  return true;
}

// REQUIRES: the lock is held. After a failure the same failure again, whoever asks.
void AdapterPool::keep(int32_t id, const Status& status, std::shared_ptr<const PackedAdapter> packed,
                       int64_t num_bytes) {
  ++num_ended_;
  waits_for_room_ = false;
  Entry& entry = entries_.at(id);
  if (packed == nullptr) {
    num_bytes_ -= num_bytes;
    entry.failure = status;
    entry.state = AdapterState::kFailed;
    if (!status.ok()) return;
    if (entry.num_wants == 0) {
      entries_.erase(id);
    } else {  // wanted again meanwhile
      entry.state = AdapterState::kOnItsWay;
      queue_.push_back(id);
    }
    return;
  }
  ++num_reads_;
  entry.packed = std::move(packed);
  entry.num_bytes = num_bytes;
  entry.state = AdapterState::kReady;
  if (entry.num_wants == 0) entry.idle = idle_.insert(idle_.end(), id);
}

}  // namespace llmb
