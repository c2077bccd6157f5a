// One budget for the memory that walking adds to all grammars over a vocabulary.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>

namespace llmb::grammar {

// Something whose memory beyond what it began with can be made anew.
class Forgetful {
 public:
  virtual ~Forgetful() = default;
  // False: it is in use. Called from any thread.
  virtual bool try_forget() = 0;
};

// Thread-safe.
class WalkMemory {
 public:
  explicit WalkMemory(size_t max_bytes) : max_bytes_(max_bytes) {}

  void add(Forgetful* who);
  void remove(Forgetful* who);
  // `who`, which is in use, has so many bytes now. Those that grew longest ago forget theirs where all together have
  // too many. True: that was not enough, and `who` has to forget its own.
  bool grew(Forgetful* who, size_t num_bytes);

  size_t num_bytes() const;

 private:
  struct Entry {
    Forgetful* who = nullptr;
    size_t num_bytes = 0;
  };

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last that grew first
  size_t num_bytes_ = 0;
};

}  // namespace llmb::grammar
