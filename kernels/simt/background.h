// A device that works by itself, as real ones do: queued work runs though nobody waits for it. Ranks need it, as each
// waits for what others have queued.
#pragma once

#include <atomic>
#include <thread>

namespace llmb::simt {

// While it lives, a thread runs queued work piece by piece. A fault of a kernel ends the process.
class Background {
 public:
  Background();
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

 private:
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace llmb::simt
