#include <cstring>
#include <vector>

#include "kernels/simt/sm90.h"
#include "kernels/simt/tensor_map.h"

namespace llmb::cuda::ptx {

namespace simt = ::llmb::simt;

namespace {

// ---- mbarriers, in their own 8 bytes ------------------------------------------------------------------------------

constexpr int kCountBits = 20;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
constexpr int kBytesBits = 22;
constexpr int64_t kBytesBias = int64_t{1} << (kBytesBits - 1);

struct Mbarrier {
  uint32_t expected;  // arrivals of a phase
  uint32_t pending;   // arrivals that this phase waits for
  int64_t num_bytes;  // of copies that this phase waits for
  uint32_t phase;     // its parity
};

Mbarrier load(const uint64_t* barrier) {
  const uint64_t bits = *barrier;
  if (bits >> 63 != 0) simt::fault("an mbarrier that was not initialised");
  return {static_cast<uint32_t>(bits & kCountMask), static_cast<uint32_t>(bits >> kCountBits & kCountMask),
          static_cast<int64_t>(bits >> (2 * kCountBits) & ((uint64_t{1} << kBytesBits) - 1)) - kBytesBias,
          static_cast<uint32_t>(bits >> 62 & 1)};
}

// A phase is over when nothing is pending; the next begins at once.
void store(uint64_t* barrier, Mbarrier state) {
  if (state.pending == 0 && state.num_bytes == 0) {
    state.phase ^= 1;
    state.pending = state.expected;
  }
  *barrier = state.expected | uint64_t{state.pending} << kCountBits |
             static_cast<uint64_t>(state.num_bytes + kBytesBias) << (2 * kCountBits) | uint64_t{state.phase} << 62;
  simt::conditions_changed();
}

void arrive(uint64_t* barrier, uint32_t num_bytes) {
  Mbarrier state = load(barrier);
  if (state.pending == 0) simt::fault("more threads arrive at an mbarrier than it was initialised for");
  --state.pending;
  state.num_bytes += num_bytes;
  if (state.num_bytes >= kBytesBias) simt::fault("an mbarrier can wait for 1 MiB at most");
  store(barrier, state);
}

// ---- copies in flight ---------------------------------------------------------------------------------------------

struct BulkCopy {
  uint64_t* barrier;
  uint8_t* to;
  uint32_t num_bytes;
  simt::TensorMap map;
  int32_t coordinates[2];
};

struct InFlight {
  uint64_t epoch = 0;
  std::vector<BulkCopy> copies;
};

InFlight& in_flight() {
  static InFlight instance;
  if (instance.epoch != simt::block_epoch()) {
    instance.epoch = simt::block_epoch();
    instance.copies.clear();
  }
  return instance;
}

// A box of a matrix; what lies outside is zero.
void land_box(const BulkCopy& copy) {
  const simt::TensorMap& map = copy.map;
  for (uint32_t i = 0; i < uint32_t{map.box[0]} * map.box[1]; ++i) {
    const int64_t column = int64_t{copy.coordinates[0]} + i % map.box[0];
    const int64_t row = int64_t{copy.coordinates[1]} + i / map.box[0];
    uintptr_t address = reinterpret_cast<uintptr_t>(copy.to) + uintptr_t{i} * map.element_bytes;
    if (map.swizzle_128) address = simt::swizzle_128(address);
    void* const to = reinterpret_cast<void*>(address);
    if (column >= 0 && column < int64_t{map.sizes[0]} && row >= 0 && row < int64_t{map.sizes[1]}) {
      const auto* const first =
          static_cast<const uint8_t*>(map.base) + static_cast<uint64_t>(row) * map.strides_bytes[0];
      std::memcpy(to, first + column * map.element_bytes, map.element_bytes);
    } else {
      std::memset(to, 0, map.element_bytes);
    }
  }
}

// All copies that name this barrier arrive, in any order.
void land_copies_of(uint64_t* barrier) {
  std::vector<BulkCopy>& copies = in_flight().copies;
  std::vector<BulkCopy> landing;
  for (size_t i = 0; i < copies.size();) {
    if (copies[i].barrier != barrier) {
      ++i;
      continue;
    }
    landing.push_back(copies[i]);
    copies[i] = copies.back();
    copies.pop_back();
  }
  while (!landing.empty()) {
    std::swap(landing[simt::random_below(static_cast<uint32_t>(landing.size()))], landing.back());
    const BulkCopy copy = landing.back();
    landing.pop_back();
    land_box(copy);
    Mbarrier state = load(barrier);
    state.num_bytes -= copy.num_bytes;
    store(barrier, state);
  }
}

void fly(const BulkCopy& copy) {
  load(copy.barrier);  // has to be initialised
  std::memset(copy.to, 0xFF, copy.num_bytes);
  in_flight().copies.push_back(copy);
  simt::conditions_changed();
}

void check_no_copy_in_flight() {
  if (!in_flight().copies.empty()) simt::fault("the block ended before its tensor copies were waited for");
}

bool aligned(const void* address, uintptr_t to) { return reinterpret_cast<uintptr_t>(address) % to == 0; }

struct PhaseWait {
  uint64_t* barrier;
  uint32_t parity;
};

bool is_over(void* argument) {
  const PhaseWait& wait = *static_cast<const PhaseWait*>(argument);
  land_copies_of(wait.barrier);
  return load(wait.barrier).phase != wait.parity;
}

}  // namespace

void mbarrier_init(uint64_t* barrier, uint32_t num_arrivals) {
  if (num_arrivals == 0 || num_arrivals > kCountMask) simt::fault("mbarrier_init: a count out of range");
  *barrier = 0;
  Mbarrier state = load(barrier);
  state.expected = state.pending = num_arrivals;
  state.num_bytes = 0;
  store(barrier, state);
}

void mbarrier_arrive(uint64_t* barrier) { arrive(barrier, 0); }
void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t num_bytes) { arrive(barrier, num_bytes); }

void mbarrier_wait(uint64_t* barrier, uint32_t parity, const char* file, int line) {
  PhaseWait wait{barrier, parity};
  simt::wait_until(is_over, &wait, {"mbarrier_wait", file, line});
}

void tma_load_2d(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int32_t c0, int32_t c1) {
  BulkCopy copy{barrier, static_cast<uint8_t*>(to_shared), 0, {}, {c0, c1}};
  std::memcpy(&copy.map, map->opaque, sizeof(copy.map));
  if (copy.map.mark != simt::kTensorMapMark) simt::fault("tma_load: not a tensor map");
  if (copy.map.rank != 2) simt::fault("tma_load: a tensor of rank " + std::to_string(copy.map.rank));
  if (!aligned(to_shared, copy.map.swizzle_128 ? 1024 : 128)) {
    simt::fault("tma_load: the destination has to be aligned to 128 bytes, with the swizzle to 1024");
  }
  copy.num_bytes = uint32_t{copy.map.element_bytes} * copy.map.box[0] * copy.map.box[1];
  simt::at_block_end(check_no_copy_in_flight);
  fly(copy);
}

}  // namespace llmb::cuda::ptx
