// The queues behind the runtime stand-in. All functions need the lock that Call holds.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/simt/runtime.h"

namespace llmb::simt {

struct Stream;

// "All work of `stream` up to number `sequence`".
struct Point {
  std::shared_ptr<Stream> stream;
  uint64_t sequence = 0;
};

struct Work {
  std::function<void()> run;
  std::vector<Point> after;
};

struct Capture;

struct Stream {
  std::shared_ptr<Capture> capture;  // while recording
  std::vector<size_t> frontier;      // nodes of the recording that the next one of this stream comes after
  std::deque<Work> queue;
  uint64_t num_queued = 0;
  uint64_t num_done = 0;
  bool blocking = true;  // takes turns with the default stream
};

// One piece of recorded work. `after`: nodes before this one in the list.
struct GraphNode {
  std::function<void()> run;
  std::vector<size_t> after;
};

struct Capture {
  std::shared_ptr<Stream> origin;
  std::vector<std::shared_ptr<Stream>> streams;  // that joined the recording
  std::vector<GraphNode> nodes;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false;
};

struct EventTime {
  std::chrono::steady_clock::time_point time;
};

// Counts the call, holds the lock, and knows whether a test wants the call to fail.
class Call {
 public:
  Call();
  cudaError_t injected() const { return injected_; }
  // Remembers `error` for cudaGetLastError.
  static cudaError_t result(cudaError_t error);

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  cudaError_t injected_;
};

// The same lock for what is not a call of the runtime.
std::unique_lock<std::recursive_mutex> lock_state();

std::shared_ptr<Stream> stream_state(cudaStream_t stream);  // null: destroyed or never made
void enqueue(const std::shared_ptr<Stream>& stream, std::function<void()> run, std::vector<Point> after = {});
void run_until(const Point& point);
void run_next(Stream& stream);
void run_everything();
// Takes the lock itself. The next piece of some stream; false: nothing is queued.
bool run_any();
uint64_t next_launch_seed();
// Whether a recording is under way that does not allow calls such as cudaMalloc on this thread; it is then invalid.
bool capture_forbids_call();
// Whether `stream` is recording; the recording is then invalid, since the call that asks does not belong in it.
bool spoils_capture(Stream& stream);

}  // namespace llmb::simt

struct CUstream_st {
  std::shared_ptr<llmb::simt::Stream> state;
};

struct CUevent_st {
  llmb::simt::Point point;                       // the last record; no stream: never recorded
  std::shared_ptr<llmb::simt::Capture> capture;  // where the last record was in a recording
  std::vector<size_t> frontier;                  // nodes before that record
  std::shared_ptr<llmb::simt::EventTime> time;
  bool timing = true;
};
