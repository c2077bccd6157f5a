// Ranks that share memory: the collectives' twin for processes (or threads) of one machine.
//
// The memory holds the state of each rank and some channels. A channel's member publishes its data in one of two
// buffers of its own, raises a counter, waits for the counters of those whose data it wants, and reads theirs. A buffer
// is used again once all have published the message behind the one in it, for then they have read it. So a call takes
// one wait, and a sum is computed by everybody from the same numbers in the same order.
//
// A rank that waits looks now and then whether another one has failed. Time that a rank itself was stopped does not count
// as waiting.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/collectives.h"
#include "base/descriptor.h"
#include "base/status.h"

namespace llmb {

// Who is in a channel.
struct ChannelMembers {
  std::vector<int> ranks;    // ascending; a member's rank in the channel is its place here
  bool may_be_idle = false;  // waiting here may take any time: whoever is waited for has nothing to say
};

class SharedRanks {
 public:
  // Memory for so many ranks. kResourceExhausted: there is none.
  static Result<std::shared_ptr<SharedRanks>> create(int num_ranks, std::vector<ChannelMembers> channels);
  // The same memory for one of its ranks, in a process that has inherited descriptor() as `fd`. `num_ranks` and
  // `channels` as they were for create(); kDataLoss where the memory has another size.
  static Result<std::shared_ptr<SharedRanks>> open(Descriptor fd, int num_ranks, std::vector<ChannelMembers> channels);
  ~SharedRanks();
  SharedRanks(const SharedRanks&) = delete;
  SharedRanks& operator=(const SharedRanks&) = delete;

  int descriptor() const { return fd_.get(); }

  // A rank's end of a channel; it keeps the memory. Threads may be different ranks. REQUIRES: the rank is a member.
  static std::unique_ptr<Collectives> join(std::shared_ptr<SharedRanks> ranks, size_t channel, int rank);

  // How long a call waits before the rank that it waits for counts as hanging; 0: any time.
  void set_patience_ms(double ms) { patience_ms_ = ms; }
  double patience_ms() const { return patience_ms_; }
  // A rank's thread computes a step, which messages name; what it does in it but for waiting for others counts as busy.
  void begin_step(int rank, int64_t step);
  void end_step(int rank, const Status& status);  // an error is all ranks', as by fail(), with the rank and its step
  double busy_ms(int rank) const;  // in all steps
  // This thread has waited so long for another rank, beside what it waited in calls.
  static void add_wait_ms(double ms);
  // A rank whose device computes steps by itself tells the same in other words: the step, and for how long it was busy.
  void set_step(int rank, int64_t step);
  void add_busy_ms(int rank, double ms);
  // "rank 1 in step 17"
  std::string place_of(int rank) const;

  // A rank's signs of life, while nobody waits for it: how many it has given.
  void give_sign(int rank);
  uint32_t num_signs(int rank) const;

  // All calls end by a RankError with this error from now on. The first one stands. A long message is cut.
  void fail(const Status& error);
  Status failure() const;  // ok: nothing has failed

 private:
  class Channel;
  struct Header;
  struct RankState;
  struct Slot;
  SharedRanks(Descriptor fd, int num_ranks, std::vector<ChannelMembers> channels, void* memory, int64_t bytes);
  static int64_t layout(int num_ranks, const std::vector<ChannelMembers>& channels, std::vector<int64_t>* begins);
  static Result<std::shared_ptr<SharedRanks>> map(Descriptor fd, int num_ranks, std::vector<ChannelMembers> channels,
                                                  bool is_new);
  Header& header() const;
  RankState& state(int rank) const;
  bool has_failed() const;
  void check() const;  // throws where some rank has failed
  // Until `slot`, of rank `of`, has published message `number`. looks_ms: how long to look before sleeping; 0: not at
  // all, as waiting may take any time
  void await(Slot& slot, uint32_t number, int rank, int of, double* looks_ms);
  void sleep_until(Slot& slot, uint32_t number, int rank, int of, bool may_take_any_time);
  [[noreturn]] void give_up_on(int first);

  const Descriptor fd_;
  const int num_ranks_;
  const double max_looks_ms_;  // how long a rank that waits looks at most before it sleeps
  const std::vector<ChannelMembers> channels_;
  void* const memory_;
  const int64_t bytes_;
  std::vector<int64_t> begins_;  // [num_channels]  of their memory
  std::atomic<double> patience_ms_ = 0;  // set while threads that watch may look
};

}  // namespace llmb
