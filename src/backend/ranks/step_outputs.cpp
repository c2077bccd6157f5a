#include "backend/ranks/step_outputs.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/packed_bytes.h"
#include "base/shared_ranks.h"

namespace llmb {

// Bindings name every member, so that one more does not compile until it is here.
template <typename F>
void each_member(StepOutput& output, F f) {
  auto& [token_start, tokens, logprobs, top_start, top_tokens, top_logprobs, is_finite, hidden, drawn, device_ms] =
      output;
  f(token_start), f(tokens), f(logprobs), f(top_start), f(top_tokens), f(top_logprobs), f(is_finite), f(hidden);
  f(drawn), f(device_ms);
}

template <typename F>
void each_member(GivenTokens& given, F f) {
  auto& [counts, last] = given;
  f(counts), f(last);
}

StepOutputs::~StepOutputs() {
  {
    std::lock_guard lock(expected_mutex_);
    stops_ = true;
  }
  expected_.notify_all();
  if (taker_.joinable()) taker_.join();
}

void StepOutputs::expect(int64_t num_steps) {
  {
    std::lock_guard lock(expected_mutex_);
    num_expected_ = num_steps;
    if (!taker_.joinable()) taker_ = std::thread([this] { take_expected(); });
  }
  expected_.notify_all();
}

// An error is found again by whoever asks for the output.
void StepOutputs::take_expected() {
  int64_t num_steps = 0;
  while (true) {
    {
      std::unique_lock lock(expected_mutex_);
      expected_.wait(lock, [&] { return stops_ || num_expected_ > num_steps; });
      if (stops_) return;
      num_steps = num_expected_;
    }
    try {
      take(num_steps);
    } catch (const RankError&) {
      return;
    }
  }
}

void StepOutputs::give(const StepOutput& output, const GivenTokens& given) {
  PackedBytes packed;
  packed.add(output);
  packed.add(given);
  bytes_ = packed.bytes();
  auto size = static_cast<int64_t>(bytes_.size());
  channel_.broadcast(&size, sizeof size, root_);
  channel_.broadcast(bytes_.data(), size, root_);
}

void StepOutputs::take(int64_t num_steps) {
  const SteadyClock clock;
  std::lock_guard lock(mutex_);
  SharedRanks::add_wait_ms(clock.now_ms());  // while another thread took them
  for (; num_taken_ < num_steps; ++num_taken_) {
    int64_t size = 0;
    channel_.broadcast(&size, sizeof size, root_);
    bytes_.resize(static_cast<size_t>(size));
    channel_.broadcast(bytes_.data(), size, root_);
    PackedReader reader(bytes_);
    reader.read(outputs_[static_cast<size_t>(num_taken_ % kMaxAlternatingPlans)]);
    reader.read(given_[static_cast<size_t>(num_taken_ % kMaxAlternatingPlans)]);
    LLMB_CHECK(reader.at_end());
  }
}

}  // namespace llmb
