#include "kernels/simt/nccl.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/file_ops.h"
#include "base/shared_ranks.h"
#include "kernels/simt/device_state.h"
#include "kernels/simt/float16.h"
#include "kernels/simt/stream.h"

namespace llmb::simt {

namespace {

enum : int { kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kRemoteError = 6 };
enum : int { kByte = 0, kHalf = 6, kFloat = 7, kBfloat16 = 9 };
enum class CallKind : int32_t { kAllReduce, kAllGather, kBroadcast };

constexpr int kMostRanks = 8;

// Where the shared memory is found: a descriptor of the process that made it.
struct Place {
  int32_t pid, fd;
};

// Memories that were made, until a communicator of this process has them.
std::vector<std::shared_ptr<SharedRanks>>& unused_memories() {
  static std::vector<std::shared_ptr<SharedRanks>> instance;
  return instance;
}

// The beginning of every part of a call: all ranks must say the same.
struct alignas(64) CallHeader {
  CallKind kind;
  int32_t type, root;
  uint32_t number;  // of the call
  uint64_t count;
  uint64_t zeros[5] = {};  // so that equal headers have equal bytes
};

struct Comm {
  std::shared_ptr<SharedRanks> memory;
  std::unique_ptr<Collectives> ranks;
  uint32_t num_calls = 0;
  std::atomic<int> error = kSuccess;
};

struct Delays {
  std::atomic<uint64_t> seed = 0;
  std::atomic<uint64_t> num_calls = 0;
};

Delays& delays() {
  static Delays instance;
  return instance;
}

void wait_at_random(int rank) {
  const uint64_t call = delays().num_calls.fetch_add(1), seed = delays().seed.load();
  if (seed == 0) return;
  uint64_t draw = (seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(rank) * 977 + call) * 0xBF58476D1CE4E5B9u;
  draw ^= draw >> 29;
  if (draw % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw / 4 % 300));
}

// One for each number of ranks that a communicator may have.
std::vector<ChannelMembers> channels() {
  std::vector<ChannelMembers> all;
  ChannelMembers members;
  for (int rank = 0; rank < kMostRanks; ++rank) {
    members.ranks.push_back(rank);
    all.push_back(members);
  }
  return all;
}

size_t bytes_of(int type) {
  return type == kByte ? 1 : type == kFloat ? 4 : type == kHalf || type == kBfloat16 ? 2 : 0;
}

float value_at(const void* data, int type, size_t i) {
  if (type == kFloat) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == kBfloat16 ? bfloat16_value(bits) : half_value(bits);
}

void set_value(void* data, int type, size_t i, float value) {
  if (type == kFloat) static_cast<float*>(data)[i] = value;
  else static_cast<uint16_t*>(data)[i] = type == kBfloat16 ? bfloat16_bits(value) : half_bits(value);
}

struct Chunk {
  std::span<const void* const> parts;  // [size]
  size_t begin, count;                 // in elements
};

// Gives all ranks this one's elements, as many at a time as there is room for; visit() sees what all gave.
template <typename Visit>
void exchange(Comm& comm, CallHeader header, const void* from, const Visit& visit) {
  Collectives& ranks = *comm.ranks;
  header.number = comm.num_calls++;
  const size_t each = bytes_of(header.type), most = (static_cast<size_t>(ranks.room_bytes()) - sizeof header) / each;
  std::vector<const void*> data(static_cast<size_t>(ranks.size()));
  for (size_t begin = 0; begin < header.count || begin == 0; begin += most) {
    const size_t count = std::min<size_t>(most, header.count - begin);
    char* const own = static_cast<char*>(ranks.room(static_cast<int64_t>(sizeof header + count * each)));
    std::memcpy(own, &header, sizeof header);
    const bool gives = header.kind != CallKind::kBroadcast || header.root == ranks.rank();
    if (gives) std::memcpy(own + sizeof header, static_cast<const char*>(from) + begin * each, count * each);
    const auto parts = ranks.share();
    for (size_t r = 0; r < parts.size(); ++r) {
      if (std::memcmp(parts[r], &header, sizeof header) != 0)
        comm.memory->fail(internal_error("ranks make different calls of NCCL"));
      data[r] = static_cast<const char*>(parts[r]) + sizeof header;
    }
    if (!comm.memory->failure().ok()) throw RankError(comm.memory->failure());
    visit(Chunk{data, begin, count});
    if (header.count == 0) return;
  }
}

void add_up(const Comm& comm, const Chunk& chunk, int type, void* to) {
  const size_t size = chunk.parts.size(), first = comm.num_calls % size;
  for (size_t i = 0; i < chunk.count; ++i) {
    set_value(to, type, chunk.begin + i, value_at(chunk.parts[first], type, i));
    for (size_t r = 1; r < size; ++r)
      set_value(to, type, chunk.begin + i,
                value_at(to, type, chunk.begin + i) + value_at(chunk.parts[(first + r) % size], type, i));
  }
}

// Queues `run` where all buffers are the device's.
template <typename Run>
int queue_call(void* handle, cudaStream_t stream, int type,
               const std::vector<std::pair<const void*, size_t>>& buffers, const Run& run) {
  const auto lock = lock_state();
  const auto state = stream_state(stream);
  if (handle == nullptr || state == nullptr || bytes_of(type) == 0) return kInvalidArgument;
  for (const auto& [data, count] : buffers)
    if (!in_device_memory(data, count * bytes_of(type))) return kInvalidArgument;
  auto* const comm = static_cast<Comm*>(handle);
  enqueue(state, [comm, run] {
    wait_at_random(comm->ranks->rank());
    try {
      run(*comm);
    } catch (const RankError&) {
      comm->error = kRemoteError;
    }
  });
  return kSuccess;
}

}  // namespace

const char* nccl_error_string(int result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kSystemError:
      return "unhandled system error";
    case kInvalidArgument:
      return "invalid argument";
    case kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}

int nccl_unique_id(char* id) {
  auto memory = SharedRanks::create(kMostRanks, channels());
  if (!memory.ok()) return kSystemError;
  const Place place = {::getpid(), (*memory)->descriptor()};
  const auto lock = lock_state();
  unused_memories().push_back(std::move(*memory));
  std::memset(id, 0, 128);
  std::memcpy(id, &place, sizeof place);
  return kSuccess;
}

namespace {

Result<std::shared_ptr<SharedRanks>> memory_at(const Place& place) {
  {
    const auto lock = lock_state();
    auto& unused = unused_memories();
    const auto own = std::find_if(unused.begin(), unused.end(), [&](const auto& memory) {
      return place.pid == ::getpid() && memory->descriptor() == place.fd;
    });
    if (own != unused.end()) {
      const auto memory = *own;
      unused.erase(own);
      return memory;
    }
  }
  const std::string path = "/proc/" + std::to_string(place.pid) + "/fd/" + std::to_string(place.fd);
  Descriptor fd(real_file_ops(), ::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) return internal_error("rank 0 has ended");
  return SharedRanks::open(std::move(fd), kMostRanks, channels());
}

}  // namespace

int nccl_init_rank(void** out, int size, const char* id, int rank) {
  Place place;
  std::memcpy(&place, id, sizeof place);
  if (size > kMostRanks) return kInvalidArgument;
  auto memory = memory_at(place);
  if (!memory.ok()) return kSystemError;
  auto comm = std::make_unique<Comm>();
  comm->memory = *memory;
  comm->ranks = SharedRanks::join(*memory, static_cast<size_t>(size) - 1, rank);
  try {
    std::vector<int> all(static_cast<size_t>(size));
    comm->ranks->all_gather(&rank, sizeof rank, all.data());  // until all are here
  } catch (const RankError&) {
    return kRemoteError;
  }
  *out = comm.release();
  return kSuccess;
}

int nccl_destroy(void* comm) {
  const auto lock = lock_state();
  delete static_cast<Comm*>(comm);
  return kSuccess;
}

// Without the lock, which a call that waits holds. Calls in the queue find the communicator until the process ends.
int nccl_abort(void* comm) {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<Comm>> aborted;
  const std::lock_guard lock(mutex);
  aborted.emplace_back(static_cast<Comm*>(comm));
  aborted.back()->memory->fail(cancelled("aborted"));
  return kSuccess;
}

int nccl_async_error(void* comm, int* result) {
  *result = static_cast<Comm*>(comm)->error;
  return kSuccess;
}

int nccl_all_reduce(const void* from, void* to, size_t count, int type, void* comm, cudaStream_t stream) {
  if (type == kByte) return kInvalidArgument;
  return queue_call(comm, stream, type, {{from, count}, {to, count}}, [=](Comm& c) {
    exchange(c, {CallKind::kAllReduce, type, 0, 0, count}, from,
             [&](const Chunk& chunk) { add_up(c, chunk, type, to); });
  });
}

int nccl_all_gather(const void* from, void* to, size_t count, int type, void* comm, cudaStream_t stream) {
  const size_t size = comm == nullptr ? 0 : static_cast<size_t>(static_cast<Comm*>(comm)->ranks->size());
  return queue_call(comm, stream, type, {{from, count}, {to, size * count}}, [=](Comm& c) {
    exchange(c, {CallKind::kAllGather, type, 0, 0, count}, from, [&](const Chunk& chunk) {
      const size_t each = bytes_of(type);
      for (size_t r = 0; r < chunk.parts.size(); ++r)
        std::memcpy(static_cast<char*>(to) + (r * count + chunk.begin) * each, chunk.parts[r], chunk.count * each);
    });
  });
}

int nccl_broadcast(const void* from, void* to, size_t count, int type, int root, void* comm, cudaStream_t stream) {
  return queue_call(comm, stream, type, {{to, count}}, [=](Comm& c) {
    exchange(c, {CallKind::kBroadcast, type, root, 0, count}, from, [&](const Chunk& chunk) {
      const size_t each = bytes_of(type);
      std::memcpy(static_cast<char*>(to) + chunk.begin * each, chunk.parts[static_cast<size_t>(root)],
                  chunk.count * each);
    });
  });
}

namespace {

struct Message {
  int peer;
  bool is_sent;
  void* data;
  size_t count;
  int type;

  void pass(Comm& comm) const {
    const auto bytes = static_cast<int64_t>(count * bytes_of(type));
    if (is_sent) comm.ranks->send(data, bytes, peer);
    else comm.ranks->receive(data, bytes, peer);
  }
};

struct Group {
  bool is_open = false;
  void* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Message> messages;
};

Group& group() {
  static thread_local Group instance;
  return instance;
}

// Room for messages is small, so whoever sends may wait for the one that receives. All ranks take pairs of ranks in one
// order, and of a pair the lower rank sends first.
void pass_in_order(Comm& comm, std::vector<Message> messages) {
  const int own = comm.ranks->rank();
  const auto place = [own](const Message& m) {
    return std::tuple(std::min(own, m.peer), std::max(own, m.peer), m.is_sent != (own < m.peer));
  };
  std::stable_sort(messages.begin(), messages.end(),
                   [&](const Message& a, const Message& b) { return place(a) < place(b); });
  for (const Message& message : messages) message.pass(comm);
}

int pass(const Message& message, void* comm, cudaStream_t stream) {
  if (comm == nullptr || message.peer == static_cast<Comm*>(comm)->ranks->rank()) return kInvalidArgument;
  Group& open = group();
  if (!open.is_open)
    return queue_call(comm, stream, message.type, {{message.data, message.count}},
                      [=](Comm& c) { message.pass(c); });
  if (!open.messages.empty() && (open.comm != comm || open.stream != stream)) return kInvalidArgument;
  open.comm = comm, open.stream = stream;
  open.messages.push_back(message);
  return kSuccess;
}

}  // namespace

int nccl_send(const void* from, size_t count, int type, int peer, void* comm, cudaStream_t stream) {
  return pass({peer, true, const_cast<void*>(from), count, type}, comm, stream);
}

int nccl_receive(void* to, size_t count, int type, int peer, void* comm, cudaStream_t stream) {
  return pass({peer, false, to, count, type}, comm, stream);
}

int nccl_group_start() {
  if (group().is_open) return kInvalidArgument;
  group() = {true, nullptr, nullptr, {}};
  return kSuccess;
}

int nccl_group_end() {
  const Group ended = std::exchange(group(), Group());
  if (!ended.is_open) return kInvalidArgument;
  if (ended.messages.empty()) return kSuccess;
  std::vector<std::pair<const void*, size_t>> buffers;
  for (const Message& message : ended.messages)
    buffers.emplace_back(message.data, message.count * bytes_of(message.type));
  return queue_call(ended.comm, ended.stream, kByte, buffers,
                    [messages = ended.messages](Comm& c) { pass_in_order(c, messages); });
}

void delay_nccl_calls(uint64_t seed) { delays().seed = seed; }

uint64_t num_nccl_calls() { return delays().num_calls; }

}  // namespace llmb::simt
