// Collectives with room for few bytes at a time, so that what is passed goes in several turns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/collectives.h"

namespace llmb::test {

class NarrowRoom final : public Collectives {
 public:
  NarrowRoom(std::unique_ptr<Collectives> inner, int64_t bytes) : inner_(std::move(inner)), bytes_(bytes) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void broadcast(void* data, int64_t bytes, int root) override { inner_->broadcast(data, bytes, root); }
  void all_reduce(float* data, int64_t count) override { inner_->all_reduce(data, count); }
  void all_gather(const void* part, int64_t bytes, void* all) override { inner_->all_gather(part, bytes, all); }
  void* room(int64_t bytes) override {
    LLMB_CHECK(bytes <= bytes_);
    ++num_turns_;
    return inner_->room(bytes);
  }
  std::span<const void* const> share() override { return inner_->share(); }
  int64_t room_bytes() const override { return bytes_; }
  int num_turns() const { return num_turns_; }
  void send(const void* data, int64_t bytes, int to) override { inner_->send(data, bytes, to); }
  void receive(void* data, int64_t bytes, int from) override { inner_->receive(data, bytes, from); }

 private:
  const std::unique_ptr<Collectives> inner_;
  const int64_t bytes_;
  int num_turns_ = 0;
};

}  // namespace llmb::test
