// SplitMix64's finaliser: one to one, and every bit of the result depends on every bit of x.
// Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
#pragma once

#include <cstdint>

namespace llmb {

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace llmb
