// Calls that several ranks (threads or processes that compute one thing together) make in step with each other.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/status.h"

namespace llmb {

// Another rank has failed, has ended or does not answer; the message says which one.
class RankError : public std::runtime_error {
 public:
  explicit RankError(Status status) : std::runtime_error(status.message()), status_(std::move(status)) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// One rank's end of a channel between `size()` ranks. All of them make the same calls in the same order with equal
// sizes, send() and receive() aside, which pair up. One thread drives it. Throws RankError; then no further call
// succeeds.
//
// No result depends on who comes first.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // `data` of rank `root` to all.
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
  // data[i] = the sum of all ranks' data[i], added in the order of ranks
  virtual void all_reduce(float* data, int64_t count) = 0;
  // Part r of `all` is what rank r gave.
  virtual void all_gather(const void* part,  // [bytes]
                          int64_t bytes,
                          void* all) = 0;  // [size, bytes]
  // An all_gather that copies nothing: room() gives memory for this rank's part, and once that is written share() gives
  // all ranks' parts, to be read until the second room() from here on. Nothing is called in between.
  // REQUIRES: bytes <= room_bytes()
  virtual void* room(int64_t bytes) = 0;
  virtual std::span<const void* const> share() = 0;  // [size]
  virtual int64_t room_bytes() const = 0;
  // A rank's messages to another one come in order. send() may return before they are received.
  virtual void send(const void* data, int64_t bytes, int to) = 0;
  virtual void receive(void* data, int64_t bytes, int from) = 0;
};

}  // namespace llmb
