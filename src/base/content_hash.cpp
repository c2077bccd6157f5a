#include "base/content_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace llmb {

namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5u;
constexpr size_t kStripe = 32;

template <typename T>
uint64_t load(const unsigned char* p) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

uint64_t mix(uint64_t lane, uint64_t input) { return std::rotl(lane + input * kPrime2, 31) * kPrime1; }

void consume_stripe(uint64_t* lanes, const unsigned char* p) {
  for (int i = 0; i < 4; ++i) lanes[i] = mix(lanes[i], load<uint64_t>(p + 8 * i));
}

}  // namespace

void ContentHash::update(std::string_view bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t left = bytes.size();
  if (left == 0) return;
  total_bytes_ += left;
  if (tail_size_ > 0) {
    const size_t taken = std::min(left, kStripe - tail_size_);
    std::memcpy(tail_ + tail_size_, p, taken);
    tail_size_ += taken;
    p += taken;
    left -= taken;
    if (tail_size_ < kStripe) return;
    consume_stripe(lanes_, tail_);
    tail_size_ = 0;
  }
  for (; left >= kStripe; p += kStripe, left -= kStripe) consume_stripe(lanes_, p);
  std::memcpy(tail_, p, left);
  tail_size_ = left;
}

uint64_t ContentHash::digest() const {
  uint64_t hash = kPrime5;
  if (total_bytes_ >= kStripe) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = (hash ^ mix(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_bytes_;
  const unsigned char* p = tail_;
  size_t left = tail_size_;
  for (; left >= 8; p += 8, left -= 8) hash = std::rotl(hash ^ mix(0, load<uint64_t>(p)), 27) * kPrime1 + kPrime4;
  if (left >= 4) {
    hash = std::rotl(hash ^ (load<uint32_t>(p) * kPrime1), 23) * kPrime2 + kPrime3;
    p += 4;
    left -= 4;
  }
  for (; left > 0; ++p, --left) hash = std::rotl(hash ^ (*p * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

uint64_t content_hash(std::string_view bytes) {
  ContentHash hash;
  hash.update(bytes);
  return hash.digest();
}

}  // namespace llmb
