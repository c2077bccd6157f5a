#include "base/sha256.h"

#include <bit>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define LLMB_SHA __attribute__((target("sha,sse4.1")))
#endif

namespace llmb {

namespace {

constexpr size_t kBlock = 64;

using State = std::array<uint32_t, 8>;

constexpr State kFirstState = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

alignas(16) constexpr uint32_t kConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_word(const unsigned char* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

void add_blocks(State* state, const unsigned char* p, size_t num_blocks) {
  for (; num_blocks > 0; --num_blocks, p += kBlock) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) w[i] = load_word(p + 4 * i);
    for (int i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = *state;
    for (int i = 0; i < 64; ++i) {
      const uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                             kConstants[i] + w[i];
      const uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    const State sum = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < sum.size(); ++i) (*state)[i] += sum[i];
  }
}

#if defined(__x86_64__)
// The instructions hold the state as (a, b, e, f) and (c, d, g, h), from the highest word down, and take four rounds'
// words at a time, of which `w` holds the newest sixteen.
LLMB_SHA void add_blocks_by_instructions(State* state, const unsigned char* p, size_t num_blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const State& s = *state;
  const auto word = [](uint32_t value) { return static_cast<int>(value); };
  __m128i abef = _mm_set_epi32(word(s[0]), word(s[1]), word(s[4]), word(s[5]));
  __m128i cdgh = _mm_set_epi32(word(s[2]), word(s[3]), word(s[6]), word(s[7]));
  for (; num_blocks > 0; --num_blocks, p += kBlock) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i)), swap);
    for (int i = 0; i < 16; ++i) {
      __m128i& now = w[i % 4];
      if (i >= 4) {
        const __m128i last = w[(i + 3) % 4];
        const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) % 4]),
                                          _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
        now = _mm_sha256msg2_epu32(sum, last);
      }
      const __m128i rounds = _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i*>(kConstants + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, rounds);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(rounds, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  alignas(16) uint32_t first[4], second[4];
  _mm_store_si128(reinterpret_cast<__m128i*>(first), abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(second), cdgh);
  *state = {first[3], first[2], second[3], second[2], first[1], first[0], second[1], second[0]};
}

bool find_sha_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & 1u << 29) != 0;
}
#else
void add_blocks_by_instructions(State* state, const unsigned char* p, size_t num_blocks) { add_blocks(state, p, num_blocks); }
bool find_sha_instructions() { return false; }
#endif

}  // namespace

bool has_sha_instructions() {
  static const bool has = find_sha_instructions();
  return has;
}

Sha256Digest sha256(std::string_view bytes, bool uses_instructions) {
  const auto add = uses_instructions ? add_blocks_by_instructions : add_blocks;
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  State state = kFirstState;
  const size_t num_whole = bytes.size() / kBlock, rest = bytes.size() % kBlock;
  add(&state, p, num_whole);
  // The rest, a bit, zeros, and the number of bits in the last eight bytes.
  unsigned char tail[2 * kBlock] = {};
  if (rest > 0) std::memcpy(tail, p + num_whole * kBlock, rest);
  tail[rest] = 0x80;
  const size_t num_tail = rest + 1 + 8 > kBlock ? 2 : 1;
  const uint64_t num_bits = uint64_t{8} * bytes.size();
  for (size_t i = 0; i < 8; ++i) tail[num_tail * kBlock - 1 - i] = static_cast<unsigned char>(num_bits >> 8 * i);
  add(&state, tail, num_tail);
  Sha256Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = uint64_t{state[2 * i]} << 32 | state[2 * i + 1];
  return digest;
}

}  // namespace llmb
