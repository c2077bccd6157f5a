// Philox4x32-10, a counter-based generator: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
// Stateless: the same key and counter give the same numbers on every thread, device and schedule.
#pragma once

#include <array>
#include <cstdint>

namespace llmb {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// A uniform in [0, 1) with 24 bits, exactly representable as float.
inline float uniform_from_bits(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24f; }

// Where a random number sits: which request of which seed, which of its samples, which position in the sequence.
struct PhiloxKey {
  uint64_t seed = 0;
  uint64_t request = 0;
};

// The uniform that decides the token at `position` of sample `sample`.
inline float sampling_uniform(const PhiloxKey& key, uint32_t sample, uint32_t position) {
  const auto r =
      philox4x32({position, sample, static_cast<uint32_t>(key.request), static_cast<uint32_t>(key.request >> 32)},
                 {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  return uniform_from_bits(r[0]);
}

}  // namespace llmb
