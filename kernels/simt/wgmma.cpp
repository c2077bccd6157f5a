#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/simt/float16.h"
#include "kernels/simt/sm90.h"
#include "kernels/simt/tensor_map.h"

namespace llmb::cuda::ptx {

namespace simt = ::llmb::simt;

namespace {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kMaxGroups = 1024 / kThreads;
constexpr uint32_t kGroupBarrier = 16;  // the first of the layer's own barriers
constexpr int kRows = 64;
constexpr int kDepth = 16;
constexpr uint32_t kBytesDepth = 32;  // of a product of bytes
constexpr int kMaxColumns = 256;

// The sums of one thread from issue to wait; products on the same registers share them. Of int8: the bits of integers.
struct Sums {
  void* registers;
  std::vector<float> values;
  uint64_t last_operation;
};

struct ThreadState {
  std::vector<std::unique_ptr<Sums>> sums;
  std::vector<uint64_t> commits;  // of each group that has not been waited for: operations issued before its end
  uint64_t num_issued = 0;
  bool fenced = false;
};

struct Operation {
  detail::Wgmma form;
  uint32_t a[kThreads][4];
  float* sums[kThreads];
};

struct WarpGroup {
  ThreadState threads[kThreads];
  const detail::Wgmma* arguments[kThreads] = {};
  std::vector<std::unique_ptr<Operation>> waiting;  // issued, not computed
  uint64_t num_queued = 0;
  uint64_t num_computed = 0;
};

struct WarpGroups {
  std::unique_ptr<WarpGroup> groups[kMaxGroups];  // null: no products in this block yet
  uint64_t epoch = 0;
};

WarpGroups& warp_groups() {
  static WarpGroups instance;
  if (instance.epoch != simt::block_epoch()) {
    instance.epoch = simt::block_epoch();
    for (auto& group : instance.groups) group = nullptr;
  }
  return instance;
}

struct Self {
  WarpGroup& group;
  uint32_t index;  // of the group
  uint32_t thread;
  ThreadState& state() const { return group.threads[thread]; }
};

Self self() {
  const uint32_t warp = simt::g_thread->warp;
  auto& group = warp_groups().groups[warp / 4];
  if (group == nullptr) group = std::make_unique<WarpGroup>();
  return {*group, warp / 4, warp % 4 * 32 + simt::g_thread->lane};
}

// ---- matrices in shared memory ------------------------------------------------------------------------------------

float value_of(uint16_t bits, bool is_bfloat16) {
  return is_bfloat16 ? simt::bfloat16_value(bits) : simt::half_value(bits);
}

// Element (mn, k) of an operand, as PTX's canonical layouts with the 128-byte swizzle put it.
float load_element(uint64_t descriptor, bool mn_major, bool is_bfloat16, uint32_t mn, uint32_t k) {
  const uint32_t start = static_cast<uint32_t>(descriptor & 0x3FFF) << 4;
  const uint32_t leading = static_cast<uint32_t>(descriptor >> 16 & 0x3FFF) << 4;
  const uint32_t stride = static_cast<uint32_t>(descriptor >> 32 & 0x3FFF) << 4;
  const uint32_t address = mn_major ? start + mn % 64 * 2 + mn / 64 * leading + k % 8 * 128 + k / 8 * stride
                                    : start + mn / 8 * stride + mn % 8 * 128 + k * 2;
  const size_t place = simt::swizzle_128(address);
  if (place + 2 > simt::dynamic_shared_bytes()) simt::fault("wgmma reads behind the end of dynamic shared memory");
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(simt::dynamic_shared_memory()) + place, sizeof(bits));
  return value_of(bits, is_bfloat16);
}

void load_a(const Operation& operation, float (&a)[kRows][kDepth]) {
  const detail::Wgmma& form = operation.form;
  if (form.a_registers == nullptr) {
    for (uint32_t row = 0; row < kRows; ++row) {
      for (uint32_t k = 0; k < kDepth; ++k) {
        a[row][k] = load_element(form.a_descriptor, form.mn_major_a, form.is_bfloat16, row, k);
      }
    }
    return;
  }
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    for (uint32_t i = 0; i < 8; ++i) {  // register i / 2: rows 8 apart, then k 8 apart; i % 2: its halves
      const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
      const uint32_t k = thread % 4 * 2 + i / 4 * 8 + i % 2;
      a[row][k] = value_of(static_cast<uint16_t>(operation.a[thread][i / 2] >> (16 * (i % 2))), form.is_bfloat16);
    }
  }
}

// Calls visit(the thread's sum, row, column) for all.
template <class Visit>
void for_each_sum(const Operation& operation, const Visit& visit) {
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    for (uint32_t i = 0; i < static_cast<uint32_t>(operation.form.num_columns) / 2; ++i) {
      const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
      visit(operation.sums[thread][i], row, i / 4 * 8 + thread % 4 * 2 + i % 2);
    }
  }
}

// Row `mn` of a K-major operand of bytes: two pieces of 16, each of which the swizzle leaves together.
void load_bytes(uint64_t descriptor, uint32_t mn, uint8_t (&to)[kBytesDepth]) {
  const uint32_t start = static_cast<uint32_t>(descriptor & 0x3FFF) << 4;
  const uint32_t stride = static_cast<uint32_t>(descriptor >> 32 & 0x3FFF) << 4;
  for (uint32_t k = 0; k < kBytesDepth; k += 16) {
    const size_t place = simt::swizzle_128(start + mn / 8 * stride + mn % 8 * 128 + k);
    if (place + 16 > simt::dynamic_shared_bytes()) simt::fault("wgmma reads behind the end of dynamic shared memory");
    std::memcpy(to + k, static_cast<const char*>(simt::dynamic_shared_memory()) + place, 16);
  }
}

float value_of_e4m3(uint8_t bits) {
  const float magnitude = (bits & 0x7F) == 0x7F ? NAN
                          : (bits & 0x78) != 0  ? std::ldexp(static_cast<float>(8 + (bits & 7)), (bits >> 3 & 15) - 10)
                                                : std::ldexp(static_cast<float>(bits & 7), -9);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

// Integers wrap; sums of e4m3 are of fp32, in the order of k.
template <class Number, class Decode>
void compute_bytes(const Operation& operation, const Decode& decode) {
  const detail::Wgmma& form = operation.form;
  const uint32_t num_columns = static_cast<uint32_t>(form.num_columns);
  static Number b[kBytesDepth][kMaxColumns];
  static Number d[kRows][kMaxColumns];
  uint8_t bytes[kBytesDepth];
  for (uint32_t column = 0; column < num_columns; ++column) {
    load_bytes(form.b_descriptor, column, bytes);
    for (uint32_t k = 0; k < kBytesDepth; ++k) b[k][column] = decode(bytes[k]);
  }
  for_each_sum(operation, [&](const float& from, uint32_t row, uint32_t column) {
    if (form.add) std::memcpy(&d[row][column], &from, sizeof(from));
    else d[row][column] = 0;
  });
  for (uint32_t row = 0; row < kRows; ++row) {
    load_bytes(form.a_descriptor, row, bytes);
    for (uint32_t k = 0; k < kBytesDepth; ++k) {
      const Number a = decode(bytes[k]);
      for (uint32_t column = 0; column < num_columns; ++column) d[row][column] += a * b[k][column];
    }
  }
  for_each_sum(operation,
               [](float& to, uint32_t row, uint32_t column) { std::memcpy(&to, &d[row][column], sizeof(to)); });
}

void compute(const Operation& operation) {
  const detail::Wgmma& form = operation.form;
  if (form.bytes == detail::WgmmaBytes::kInt8)
    return compute_bytes<uint32_t>(operation,
                                   [](uint8_t byte) { return static_cast<uint32_t>(static_cast<int8_t>(byte)); });
  if (form.bytes == detail::WgmmaBytes::kE4m3) return compute_bytes<float>(operation, value_of_e4m3);
  const uint32_t num_columns = static_cast<uint32_t>(form.num_columns);
  static float a[kRows][kDepth];
  static float b[kDepth][kMaxColumns];
  static float d[kRows][kMaxColumns];
  load_a(operation, a);
  for (uint32_t k = 0; k < kDepth; ++k) {
    for (uint32_t column = 0; column < num_columns; ++column) {
      b[k][column] = load_element(form.b_descriptor, form.mn_major_b, form.is_bfloat16, column, k);
    }
  }
  for_each_sum(operation, [&](float from, uint32_t row, uint32_t column) { d[row][column] = form.add ? from : 0.0f; });
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t k = 0; k < kDepth; ++k) {
      for (uint32_t column = 0; column < num_columns; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for_each_sum(operation, [](float& to, uint32_t row, uint32_t column) { to = d[row][column]; });
}

void compute_until(WarpGroup& group, uint64_t count) {
  size_t num_done = 0;
  while (group.num_computed < count) {
    compute(*group.waiting[num_done++]);
    ++group.num_computed;
  }
  group.waiting.erase(group.waiting.begin(), group.waiting.begin() + static_cast<long>(num_done));
}

// ---- issue --------------------------------------------------------------------------------------------------------

float* take_sums(ThreadState& state, const detail::Wgmma& form) {
  const size_t count = static_cast<size_t>(form.num_columns) / 2;
  const auto found =
      std::find_if(state.sums.begin(), state.sums.end(), [&](const auto& sums) { return sums->registers == form.d; });
  if (found != state.sums.end()) {
    if ((*found)->values.size() != count) simt::fault("wgmma: products of different sizes on the same registers");
    (*found)->last_operation = state.num_issued;
    return (*found)->values.data();
  }
  state.sums.push_back(std::make_unique<Sums>(Sums{form.d, std::vector<float>(count), state.num_issued}));
  float* const values = state.sums.back()->values.data();
  std::memcpy(values, form.d, count * sizeof(float));
  std::memset(form.d, 0xFF, count * sizeof(float));
  return values;
}

bool same_form(const detail::Wgmma& x, const detail::Wgmma& y) {
  return x.a_descriptor == y.a_descriptor && x.b_descriptor == y.b_descriptor && x.num_columns == y.num_columns &&
         x.is_bfloat16 == y.is_bfloat16 && x.mn_major_a == y.mn_major_a && x.mn_major_b == y.mn_major_b &&
         x.add == y.add && x.bytes == y.bytes && (x.a_registers == nullptr) == (y.a_registers == nullptr);
}

// By the first thread that goes on after all have come.
void queue_operation(WarpGroup& group) {
  auto operation = std::make_unique<Operation>();
  operation->form = *group.arguments[0];
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    const detail::Wgmma& form = *group.arguments[thread];
    if (!same_form(form, operation->form)) simt::fault("wgmma: the threads of a warpgroup pass different operands");
    if (form.a_registers != nullptr) std::memcpy(operation->a[thread], form.a_registers, sizeof(operation->a[thread]));
    operation->sums[thread] = take_sums(group.threads[thread], form);
  }
  group.waiting.push_back(std::move(operation));
  ++group.num_queued;
  if (simt::random_below(2) == 0) compute_until(group, group.num_queued);
}

void check_no_product_in_flight() {
  for (const auto& group : warp_groups().groups) {
    if (group == nullptr) continue;
    for (const ThreadState& state : group->threads) {
      if (!state.sums.empty()) simt::fault("the block ended before a wgmma was waited for");
    }
  }
}

}  // namespace

uint64_t wgmma_descriptor(const void* shared, uint32_t leading_bytes, uint32_t stride_bytes) {
  const char* const start = static_cast<const char*>(simt::dynamic_shared_memory());
  const char* const address = static_cast<const char*>(shared);
  if (address < start || address >= start + simt::dynamic_shared_bytes()) {
    simt::fault("wgmma_descriptor: not in dynamic shared memory");
  }
  const uint64_t offset = static_cast<uint64_t>(address - start);
  if (offset % 16 != 0) simt::fault("wgmma_descriptor: not aligned to 16 bytes");
  return uint64_t{1} << 62 | offset >> 4 | uint64_t{(leading_bytes & 0x3FFFF) >> 4} << 16 |
         uint64_t{(stride_bytes & 0x3FFFF) >> 4} << 32;
}

void wgmma_fence() { self().state().fenced = true; }

void detail::wgmma(const Wgmma& operation, const char* file, int line) {
  const Self thread = self();
  if (!thread.state().fenced) simt::fault("wgmma without a wgmma_fence after its registers were touched");
  simt::at_block_end(check_no_product_in_flight);
  thread.group.arguments[thread.thread] = &operation;
  const uint64_t number = ++thread.state().num_issued;
  simt::barrier_sync(kGroupBarrier + thread.index, kThreads, {"wgmma", file, line});
  if (thread.group.num_queued < number) queue_operation(thread.group);
}

void wgmma_commit() {
  ThreadState& state = self().state();
  state.commits.push_back(state.num_issued);
}

void detail::wgmma_wait(uint32_t num_pending) {
  const Self thread = self();
  ThreadState& state = thread.state();
  if (state.commits.size() <= num_pending) return;
  const size_t num_groups = state.commits.size() - num_pending;
  const uint64_t count = state.commits[num_groups - 1];
  state.commits.erase(state.commits.begin(), state.commits.begin() + static_cast<long>(num_groups));
  compute_until(thread.group, count);
  std::erase_if(state.sums, [count](const std::unique_ptr<Sums>& sums) {
    if (sums->last_operation > count) return false;
    std::memcpy(sums->registers, sums->values.data(), sums->values.size() * sizeof(float));
    return true;
  });
  state.fenced = false;
}

}  // namespace llmb::cuda::ptx
