// Adapters in the form that a backend computes with, as many as there is memory for. A thread of its own reads those that
// rows will need while steps run (LoRAX, "adapter exchange scheduling").
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "core/adapter_store.h"
#include "model/adapter_library.h"

namespace llmb {

struct PackedAdapter {
  virtual ~PackedAdapter() = default;
};

// Makes a backend's own form. Called by the pool's thread.
class AdapterPacker {
 public:
  virtual ~AdapterPacker() = default;
  virtual int64_t num_bytes(const LoraAdapter& adapter) const = 0;  // that pack() will take
  virtual std::shared_ptr<const PackedAdapter> pack(const LoraAdapter& adapter) const = 0;  // throws std::bad_alloc
};

// Thread-safe. Invariants:
//  1. Adapters that are held or being read take at most max_bytes together, unless one alone takes more; what a step took
//     lives on until the step drops it.
//  2. Those that are wanted stay. Of the others the one that was wanted longest ago makes room first.
class AdapterPool final : public AdapterStore {
 public:
  AdapterPool(std::shared_ptr<AdapterLibrary> library, std::unique_ptr<const AdapterPacker> packer, int64_t max_bytes);
  ~AdapterPool() override;

  void want(int32_t id) override;
  void release(int32_t id) override;
  AdapterState state(int32_t id) const override;
  Status failure(int32_t id) const override;
  bool is_reading() const override;
  void wait_for_read(double timeout_ms) override;
  int64_t num_reads() const override;

  // For a step. Where nobody wanted it, it is read now. Throws std::runtime_error where it cannot be read.
  std::shared_ptr<const PackedAdapter> take(int32_t id);

 private:
  struct Entry {
    AdapterState state = AdapterState::kOnItsWay;
    int32_t num_wants = 0;
    Status failure;
    std::shared_ptr<const PackedAdapter> packed;  // kReady
    int64_t num_bytes = 0;
    std::list<int32_t>::iterator idle;  // where it is ready and not wanted
  };

  void read_all();
  Status read(int32_t id, std::shared_ptr<const PackedAdapter>* packed, int64_t* num_bytes);
  bool make_room(int32_t id, int64_t num_bytes);
  void keep(int32_t id, const Status& status, std::shared_ptr<const PackedAdapter> packed, int64_t num_bytes);

  const std::shared_ptr<AdapterLibrary> library_;
  const std::unique_ptr<const AdapterPacker> packer_;
  const int64_t max_bytes_;

  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::unordered_map<int32_t, Entry> entries_;  // wanted, ready or failed
  std::deque<int32_t> queue_;                   // to be read
  std::list<int32_t> idle_;                     // ready and not wanted, the longest first
  int64_t num_bytes_ = 0;
  int64_t num_reads_ = 0, num_ended_ = 0;  // ended: also without success
  bool is_reading_ = false;         // the front of the queue has been taken from it
  bool waits_for_room_ = false;
  bool stops_ = false;
  std::thread reader_;
};

}  // namespace llmb
