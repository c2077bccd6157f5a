// The job at the other end of a worker's socket: rows come from it, answers go to it. Where it is gone, the process
// ends.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "base/descriptor.h"
#include "engine/completion_sink.h"
#include "engine/request_preparer.h"
#include "engine/request_source.h"
#include "job/worker_messages.h"

namespace llmb {

// A socket's end. send() is thread-safe; receive() belongs to one thread at a time. Both end the process where the
// other end is closed.
class JobLink {
 public:
  explicit JobLink(Descriptor socket) : socket_(std::move(socket)) {}

  void send(MessageKind kind, std::string_view payload = {});
  Message receive();

 private:
  const Descriptor socket_;
  std::mutex mutex_;  // of sending
  MessageBuffer received_;
};

// A thread of its own makes requests of the rows that come, until the process ends. The engine's thread calls what is a
// source's and a sink's.
class RemoteRows final : public RequestSource, public CompletionSink {
 public:
  // clock_start_ms: of the engine's clock, on the machine's. prompt_block_size: of a worker that computes prompts, which
  // gives their blocks of so many tokens; 0: rows are answered. The link and this live as long as the process.
  RemoteRows(JobLink& link, std::shared_ptr<const ModelContext> model, uint64_t seed, double clock_start_ms,
             int32_t prompt_block_size)
      : link_(link),
        model_(std::move(model)),
        seed_(seed),
        clock_start_ms_(clock_start_ms),
        prompt_block_size_(prompt_block_size) {}

  void begin();
  const std::atomic<int>& interrupted() const { return interrupted_; }

  // RequestSource. While rows are in the engine it also is at an end where the job has no more for now, so that no
  // batch waits for them.
  std::optional<WorkItem> next(double timeout_ms) override;
  bool at_end() const override;
  void stop() override;

  // CompletionSink
  void put(FinishedItem item) override;
  bool is_closed() const override { return false; }

 private:
  void take(const Message& message);
  void take_row(const RowMessage& row);
  void put_blocks(const FinishedItem& item);

  JobLink& link_;
  const std::shared_ptr<const ModelContext> model_;
  const uint64_t seed_;
  const double clock_start_ms_;
  const int32_t prompt_block_size_;
  std::atomic<int> interrupted_{0};
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<WorkItem> rows_;
  int64_t num_in_engine_ = 0;
  bool has_no_more_ = false, has_ended_ = false;
};

}  // namespace llmb
