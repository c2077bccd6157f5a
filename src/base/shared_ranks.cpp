#include "base/shared_ranks.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/first_failure.h"
#include "base/per_thread.h"
#include "base/thread_pool.h"

namespace llmb {

namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;  // of a message that is published at once
constexpr int64_t kPageBytes = 4096;
// A rank that waits looks for so long before it sleeps: less after a long wait, more after a short one. One that sleeps
// or yields loses its core to any other program for some milliseconds, in which all ranks wait for it. Where ranks
// share cores, they look for about as long as it takes to wake up.
constexpr double kMaxLooksMs = 2, kMinLooksMs = 0.05;
constexpr int kPausesOfLook = 16;
constexpr int64_t kLookMs = 20;  // how long a rank sleeps before it looks around
constexpr double kMaxLateMs = 10 * kLookMs;  // a rank that looks later was stopped itself; sooner, others had its core

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  const timespec timeout = {0, kLookMs * 1000000};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void relax_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

double monotonic_now_ms() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

Status no_shared_memory() {
  return resource_exhausted(std::string("no memory to share among ranks: ") + ::strerror(errno));
}

// The step that this thread computes.
struct StepTime {
  double begin_ms = 0, waited_ms = 0;
};
StepTime& step_time() { return per_thread<StepTime>([] {}); }

int64_t whole_pages(int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

struct SharedRanks::Header {
  FirstFailure failure;
};

struct alignas(64) SharedRanks::RankState {
  std::atomic<int64_t> step;
  std::atomic<int32_t> waits_for;  // a rank + 1; 0: it works
  std::atomic<uint32_t> num_signs;  // of life
  std::atomic<int64_t> busy_us;
};

// Counts what one member publishes, to all of a channel or to one other member. Its two buffers lie elsewhere.
struct alignas(64) SharedRanks::Slot {
  std::atomic<uint32_t> published;  // messages so far; wraps around
  std::atomic<uint32_t> num_sleeping;

  bool has(uint32_t number) const { return static_cast<int32_t>(published.load() - number) >= 0; }
  void publish() {
    published.fetch_add(1);
    if (num_sleeping.load() > 0) futex_wake(published);
  }
};

// Slots of a channel of n: one for each member, for what goes to all, then for each pair one for what the first of them
// sends to the second, and one in which that says what it has received. Then the buffers of all but the latter.
class SharedRanks::Channel final : public Collectives {
 public:
  Channel(std::shared_ptr<SharedRanks> ranks, size_t channel, int rank)
      : ranks_(std::move(ranks)),
        members_(ranks_->channels_[channel].ranks),
        looks_ms_(ranks_->channels_[channel].may_be_idle ? 0 : kMinLooksMs),
        rank_(static_cast<int>(std::find(members_.begin(), members_.end(), rank) - members_.begin())),
        memory_(static_cast<char*>(ranks_->memory_) + ranks_->begins_[channel]),
        parts_(members_.size()),
        sent_(members_.size()),
        received_(members_.size()) {
    LLMB_CHECK(rank_ < size());
  }

  static int64_t slots_bytes(int64_t n) { return whole_pages((n + 2 * n * n) * int64_t{sizeof(Slot)}); }
  static int64_t bytes(int64_t n) { return slots_bytes(n) + (n + n * n) * 2 * kChunkBytes; }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  void broadcast(void* data, int64_t bytes, int root) override {
    for (int64_t at = 0; at < bytes || at == 0; at += kChunkBytes) {
      const int64_t count = std::min(kChunkBytes, bytes - at);
      begin();
      if (rank_ == root && count > 0)
        std::memcpy(buffer(rank_), static_cast<char*>(data) + at, static_cast<size_t>(count));
      publish();
      if (rank_ == root) continue;
      await(root, num_messages_);
      if (count > 0) std::memcpy(static_cast<char*>(data) + at, buffer(root), static_cast<size_t>(count));
    }
  }

  void all_reduce(float* data, int64_t count) override {
    constexpr int64_t kChunk = kChunkBytes / int64_t{sizeof(float)};
    for (int64_t at = 0; at < count; at += kChunk) {
      const int64_t size_now = std::min(kChunk, count - at);
      exchange(data + at, size_now * int64_t{sizeof(float)});
      const float* first = reinterpret_cast<const float*>(buffer(0));
      float* const sum = data + at;
      if (size() == 1) continue;
      const float* const second = reinterpret_cast<const float*>(buffer(1));
      for (int64_t i = 0; i < size_now; ++i) sum[i] = first[i] + second[i];
      for (int r = 2; r < size(); ++r) {
        const float* const other = reinterpret_cast<const float*>(buffer(r));
        for (int64_t i = 0; i < size_now; ++i) sum[i] += other[i];
      }
    }
  }

  void all_gather(const void* part, int64_t bytes, void* all) override {
    for (int64_t at = 0; at < bytes; at += kChunkBytes) {
      const int64_t count = std::min(kChunkBytes, bytes - at);
      exchange(static_cast<const char*>(part) + at, count);
      for (int r = 0; r < size(); ++r)
        std::memcpy(static_cast<char*>(all) + r * bytes + at, buffer(r), static_cast<size_t>(count));
    }
  }

  void* room(int64_t bytes) override {
    LLMB_CHECK(bytes <= kChunkBytes);
    begin();
    return buffer(rank_);
  }

  std::span<const void* const> share() override {
    publish_and_await();
    for (int r = 0; r < size(); ++r) parts_[static_cast<size_t>(r)] = buffer(r);
    return parts_;
  }

  int64_t room_bytes() const override { return kChunkBytes; }

  void send(const void* data, int64_t bytes, int to) override {
    LLMB_CHECK(to != rank_);
    uint32_t& number = sent_[static_cast<size_t>(to)];
    for (int64_t at = 0; at < bytes; at += kChunkBytes) {
      ranks_->check();
      if (number >= 2) await(receipts(rank_, to), number - 1, to);  // the buffer's last message has been taken
      std::memcpy(pair_buffer(rank_, to, number), static_cast<const char*>(data) + at,
                  static_cast<size_t>(std::min(kChunkBytes, bytes - at)));
      pair(rank_, to).publish();
      ++number;
    }
  }

  void receive(void* data, int64_t bytes, int from) override {
    LLMB_CHECK(from != rank_);
    uint32_t& number = received_[static_cast<size_t>(from)];
    for (int64_t at = 0; at < bytes; at += kChunkBytes) {
      ranks_->check();
      await(pair(from, rank_), number + 1, from);
      std::memcpy(static_cast<char*>(data) + at, pair_buffer(from, rank_, number),
                  static_cast<size_t>(std::min(kChunkBytes, bytes - at)));
      receipts(from, rank_).publish();
      ++number;
    }
  }

 private:
  Slot& slot(int64_t i) { return reinterpret_cast<Slot*>(memory_)[i]; }
  Slot& pair(int from, int to) { return slot(size() + from * int64_t{size()} + to); }
  Slot& receipts(int from, int to) { return slot(size() + (size() + from) * int64_t{size()} + to); }
  char* buffers(int64_t i) { return memory_ + slots_bytes(size()) + i * 2 * kChunkBytes; }
  char* buffer(int member) { return buffers(member) + num_messages_ % 2 * kChunkBytes; }  // of the newest message
  char* pair_buffer(int from, int to, uint32_t number) {
    return buffers(size() + from * int64_t{size()} + to) + number % 2 * kChunkBytes;
  }

  // The next message: the one before the last in this buffer must have been read by all. Nobody who lives takes any time
  // for that, also where messages may come after any time.
  void begin() {
    ranks_->check();
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      if (looks_ms_ > 0) await(r, num_messages_);
      else ranks_->sleep_until(slot(r), num_messages_, rank_of(rank_), rank_of(r), /*may_take_any_time=*/false);
    }
    ++num_messages_;
  }
  void publish() { slot(rank_).publish(); }
  void exchange(const void* data, int64_t bytes) {
    begin();
    std::memcpy(buffer(rank_), data, static_cast<size_t>(bytes));
    publish_and_await();
  }
  void publish_and_await() {
    publish();
    for (int r = 0; r < size(); ++r)
      if (r != rank_) await(r, num_messages_);
  }
  void await(int member, uint32_t number) { await(slot(member), number, member); }
  void await(Slot& of, uint32_t number, int member) {
    ranks_->await(of, number, rank_of(rank_), rank_of(member), &looks_ms_);
  }
  int rank_of(int member) const { return members_[static_cast<size_t>(member)]; }

  const std::shared_ptr<SharedRanks> ranks_;
  const std::vector<int> members_;
  double looks_ms_;  // how long to look before sleeping; 0: waiting may take any time
  const int rank_;
  char* const memory_;
  uint32_t num_messages_ = 0;                // that this member has begun, to all
  std::vector<const void*> parts_;           // [size]  of the newest message
  std::vector<uint32_t> sent_, received_;    // [size]  messages to and from each member
};

int64_t SharedRanks::layout(int num_ranks, const std::vector<ChannelMembers>& channels, std::vector<int64_t>* begins) {
  int64_t end = whole_pages(int64_t{sizeof(Header)} + 64 + num_ranks * int64_t{sizeof(RankState)});
  for (const ChannelMembers& channel : channels) {
    begins->push_back(end);
    end += Channel::bytes(static_cast<int64_t>(channel.ranks.size()));
  }
  return end;
}

SharedRanks::SharedRanks(Descriptor fd, int num_ranks, std::vector<ChannelMembers> channels, void* memory,
                         int64_t bytes)
    : fd_(std::move(fd)),
      num_ranks_(num_ranks),
      max_looks_ms_(num_ranks <= usable_cpu_count() ? kMaxLooksMs : kMinLooksMs),
      channels_(std::move(channels)),
      memory_(memory),
      bytes_(bytes) {
  layout(num_ranks_, channels_, &begins_);
}

SharedRanks::~SharedRanks() { ::munmap(memory_, static_cast<size_t>(bytes_)); }

// Pages take memory as they are written; fresh ones are zero, which is where every counter begins.
Result<std::shared_ptr<SharedRanks>> SharedRanks::create(int num_ranks, std::vector<ChannelMembers> channels) {
  const int fd = ::memfd_create("llm-batch ranks", MFD_CLOEXEC);
  if (fd < 0) return no_shared_memory();
  return map(Descriptor(real_file_ops(), fd), num_ranks, std::move(channels), /*is_new=*/true);
}

Result<std::shared_ptr<SharedRanks>> SharedRanks::open(Descriptor fd, int num_ranks,
                                                       std::vector<ChannelMembers> channels) {
  return map(std::move(fd), num_ranks, std::move(channels), /*is_new=*/false);
}

Result<std::shared_ptr<SharedRanks>> SharedRanks::map(Descriptor fd, int num_ranks,
                                                      std::vector<ChannelMembers> channels, bool is_new) {
  std::vector<int64_t> begins;
  const int64_t bytes = layout(num_ranks, channels, &begins);
  struct stat st {};
  if (is_new && ::ftruncate(fd.get(), bytes) != 0) return no_shared_memory();
  if (::fstat(fd.get(), &st) != 0 || st.st_size != bytes)
    return data_loss("the memory shared among ranks has another size");
  void* const memory =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return no_shared_memory();
  return std::shared_ptr<SharedRanks>(new SharedRanks(std::move(fd), num_ranks, std::move(channels), memory, bytes));
}

std::unique_ptr<Collectives> SharedRanks::join(std::shared_ptr<SharedRanks> ranks, size_t channel, int rank) {
  return std::make_unique<Channel>(std::move(ranks), channel, rank);
}

SharedRanks::Header& SharedRanks::header() const { return *static_cast<Header*>(memory_); }

SharedRanks::RankState& SharedRanks::state(int rank) const {
  LLMB_CHECK(rank >= 0 && rank < num_ranks_);
  constexpr int64_t kBegin = (int64_t{sizeof(Header)} + 63) / 64 * 64;
  return reinterpret_cast<RankState*>(static_cast<char*>(memory_) + kBegin)[rank];
}

void SharedRanks::begin_step(int rank, int64_t step) {
  set_step(rank, step);
  step_time() = {monotonic_now_ms(), 0};
}

void SharedRanks::end_step(int rank, const Status& status) {
  if (!status.ok()) fail(status.with_context(place_of(rank)));
  const double busy_ms = monotonic_now_ms() - step_time().begin_ms - step_time().waited_ms;
  add_busy_ms(rank, busy_ms);
}

void SharedRanks::set_step(int rank, int64_t step) { state(rank).step.store(step + 1); }
void SharedRanks::add_busy_ms(int rank, double ms) { state(rank).busy_us.fetch_add(static_cast<int64_t>(ms * 1e3)); }
double SharedRanks::busy_ms(int rank) const { return static_cast<double>(state(rank).busy_us.load()) / 1e3; }
void SharedRanks::add_wait_ms(double ms) { step_time().waited_ms += ms; }

void SharedRanks::give_sign(int rank) { state(rank).num_signs.fetch_add(1); }

uint32_t SharedRanks::num_signs(int rank) const { return state(rank).num_signs.load(); }

std::string SharedRanks::place_of(int rank) const {
  const int64_t step = state(rank).step.load() - 1;
  const std::string name = "rank " + std::to_string(rank);
  return step < 0 ? name + " before the first step" : name + " in step " + std::to_string(step);
}

void SharedRanks::fail(const Status& error) { header().failure.tell(error); }
bool SharedRanks::has_failed() const { return header().failure.is_told(); }
Status SharedRanks::failure() const { return header().failure.status(); }

void SharedRanks::check() const {
  if (has_failed()) throw RankError(failure());
}

void SharedRanks::await(Slot& slot, uint32_t number, int rank, int of, double* looks_ms) {
  if (slot.has(number)) return;
  const bool may_take_any_time = *looks_ms == 0;
  if (may_take_any_time) return sleep_until(slot, number, rank, of, true);
  const double begin_ms = monotonic_now_ms();
  const auto waited_ms = [&] { return monotonic_now_ms() - begin_ms; };
  while (!slot.has(number) && waited_ms() < *looks_ms)
    for (int i = 0; i < kPausesOfLook; ++i) relax_core();
  if (!slot.has(number)) sleep_until(slot, number, rank, of, false);
  const double waited = waited_ms();
  *looks_ms = waited < kMaxLooksMs ? std::min(max_looks_ms_, 2 * *looks_ms) : std::max(kMinLooksMs, *looks_ms / 2);
  add_wait_ms(waited);
}

void SharedRanks::sleep_until(Slot& slot, uint32_t number, int rank, int of, bool may_take_any_time) {
  RankState& own = state(rank);
  own.waits_for.store(of + 1);
  double waited_ms = 0, last_ms = monotonic_now_ms();
  while (!slot.has(number)) {
    slot.num_sleeping.fetch_add(1);
    const uint32_t seen = slot.published.load();
    if (!slot.has(number)) futex_wait(slot.published, seen);
    slot.num_sleeping.fetch_sub(1);
    if (slot.has(number)) break;
    check();
    const double now = monotonic_now_ms();
    waited_ms += std::min(now - std::exchange(last_ms, now), kMaxLateMs);
    if (!may_take_any_time && patience_ms_ > 0 && waited_ms >= patience_ms_) give_up_on(of);
  }
  own.waits_for.store(0);
}

// Whoever that rank waits for is the one that hangs. Ranks may wait for each other in a circle: one was stopped while
// it waited for what is there by now.
void SharedRanks::give_up_on(int first) {
  int rank = first;
  for (int i = 0; i < num_ranks_; ++i) {
    const int32_t next = state(rank).waits_for.load() - 1;
    if (next < 0) break;
    rank = next == first || i + 1 == num_ranks_ ? first : next;
    if (rank == first) break;
  }
  const Status error = device_error(place_of(rank) + " does not answer");
  fail(error);
  check();
  throw RankError(error);  // another rank is about to say the same
}

}  // namespace llmb
