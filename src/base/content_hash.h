// The 64-bit hash of an input line's bytes that every result record carries: XXH64 with seed 0, as specified in
// Yann Collet's "xxHash fast digest algorithm" document. Part of the record format: never change it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace llmb {

// Bytes may come in pieces: digest() depends on their concatenation only.
class ContentHash {
 public:
  void update(std::string_view bytes);
  uint64_t digest() const;

 private:
  uint64_t lanes_[4] = {0x60EA27EEADC0B5D6u, 0xC2B2AE3D27D4EB4Fu, 0, 0x61C8864E7A143579u};
  unsigned char tail_[32] = {};  // bytes that do not fill a stripe yet
  size_t tail_size_ = 0;         // < 32
  uint64_t total_bytes_ = 0;
};

uint64_t content_hash(std::string_view bytes);

}  // namespace llmb
