#include "kernels/simt/intrinsics.h"

#include <bit>

namespace llmb::simt {

namespace {

uint32_t lane_of(uint32_t bits) { return static_cast<uint32_t>(std::countr_zero(bits)); }

struct Vote {
  uint32_t value;
  uint32_t result;
};

Vote& vote_of(void* const* arguments, uint32_t lane) { return *static_cast<Vote*>(arguments[lane]); }

template <uint32_t (*combine)(uint32_t, uint32_t)>
void reduce(uint32_t mask, void* const* arguments) {
  uint32_t result = vote_of(arguments, lane_of(mask)).value;
  for (uint32_t rest = mask & (mask - 1); rest != 0; rest &= rest - 1) {
    result = combine(result, vote_of(arguments, lane_of(rest)).value);
  }
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) vote_of(arguments, lane_of(rest)).result = result;
}

void match_any(uint32_t mask, void* const* arguments) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    Vote& vote = vote_of(arguments, lane_of(rest));
    vote.result = 0;
    for (uint32_t other = mask; other != 0; other &= other - 1) {
      if (vote_of(arguments, lane_of(other)).value == vote.value) vote.result |= other & -other;
    }
  }
}

uint32_t either(uint32_t a, uint32_t b) { return a | b; }
uint32_t add(uint32_t a, uint32_t b) { return a + b; }
uint32_t larger(uint32_t a, uint32_t b) { return std::max(a, b); }
uint32_t smaller(uint32_t a, uint32_t b) { return std::min(a, b); }

uint32_t vote(uint32_t mask, Collective collective, uint32_t value, Site site) {
  Vote argument{value, 0};
  warp_collective(mask, collective, &argument, site);
  return argument.result;
}

// Signed order as unsigned order.
constexpr uint32_t kSignBit = 0x80000000u;

// Three barriers: all have added, all have read, the total is zero again.
int block_total(int predicate, const char* what, const char* file, int line) {
  static uint64_t epoch = 0;
  static int total = 0;
  if (epoch != block_epoch()) epoch = block_epoch(), total = 0;
  total += predicate != 0;
  barrier_sync(0, 0, {what, file, line});
  const int result = total;
  barrier_sync(0, 0, {what, file, line});
  total = 0;
  barrier_sync(0, 0, {what, file, line});
  return result;
}

}  // namespace

void shuffle(uint32_t mask, void* const* arguments) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    Shuffle& to = *static_cast<Shuffle*>(arguments[lane_of(rest)]);
    if (to.source > 31 || (mask >> to.source & 1) == 0) {
      fault(std::string(to.site.what) + " at " + to.site.file + ":" + std::to_string(to.site.line) + ": lane " +
            std::to_string(lane_of(rest)) + " reads lane " + std::to_string(to.source) + ", which does not take part");
    }
    to.result = static_cast<const Shuffle*>(arguments[to.source])->value;
  }
}

}  // namespace llmb::simt

using llmb::simt::kSignBit;
using llmb::simt::vote;
namespace simt = llmb::simt;

unsigned __ballot_sync(unsigned mask, int predicate, const char* file, int line) {
  return vote(mask, simt::reduce<simt::either>, predicate != 0 ? 1u << simt::this_lane() : 0,
              {"__ballot_sync", file, line});
}
unsigned __match_any_sync(unsigned mask, unsigned value, const char* file, int line) {
  return vote(mask, simt::match_any, value, {"__match_any_sync", file, line});
}
unsigned __reduce_add_sync(unsigned mask, unsigned value, const char* file, int line) {
  return vote(mask, simt::reduce<simt::add>, value, {"__reduce_add_sync", file, line});
}
unsigned __reduce_max_sync(unsigned mask, unsigned value, const char* file, int line) {
  return vote(mask, simt::reduce<simt::larger>, value, {"__reduce_max_sync", file, line});
}
unsigned __reduce_min_sync(unsigned mask, unsigned value, const char* file, int line) {
  return vote(mask, simt::reduce<simt::smaller>, value, {"__reduce_min_sync", file, line});
}
int __reduce_max_sync(unsigned mask, int value, const char* file, int line) {
  return static_cast<int>(__reduce_max_sync(mask, static_cast<unsigned>(value) ^ kSignBit, file, line) ^ kSignBit);
}
int __reduce_min_sync(unsigned mask, int value, const char* file, int line) {
  return static_cast<int>(__reduce_min_sync(mask, static_cast<unsigned>(value) ^ kSignBit, file, line) ^ kSignBit);
}

int __syncthreads_count(int predicate, const char* file, int line) {
  return simt::block_total(predicate, "__syncthreads_count", file, line);
}
int __syncthreads_or(int predicate, const char* file, int line) {
  return simt::block_total(predicate, "__syncthreads_or", file, line) != 0;
}
int __syncthreads_and(int predicate, const char* file, int line) {
  return simt::block_total(predicate == 0, "__syncthreads_and", file, line) == 0;
}

unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
  return result;
}

unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned select = selector >> (4 * i) & 0xF;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (select & 7)) & 0xFF);
    if ((select & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    result |= byte << (8 * i);
  }
  return result;
}

unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (shift & 31) >> 32);
}
