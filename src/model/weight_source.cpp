#include "model/weight_source.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <type_traits>

#include "base/float_formats.h"
#include "base/rng.h"

namespace llmb {

namespace {

constexpr int kQuantiles = 1 << 16;
constexpr float kStddev = 0.02f;
constexpr int64_t kChunk = 1 << 16;  // numbers that one task makes
constexpr int64_t kPerPhilox = 8;    // four words of 32 bits, two 16-bit quantiles each
constexpr int64_t kLargeBytes = int64_t{32} << 20;  // of a buffer

// x with P(N(0, 1) < x) = p, for p < 1/2, by Newton's method.
double normal_quantile(double p, double start) {
  double x = start;
  for (int i = 0; i < 50; ++i) {
    const double error = 0.5 * std::erfc(-x / std::numbers::sqrt2) - p;
    const double step = error * std::sqrt(2 * std::numbers::pi) * std::exp(0.5 * x * x);
    x -= step;
    if (std::fabs(step) < 1e-12) break;
  }
  return x;
}

// FNV-1a.
uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

void* WeightBuffers::take(int64_t bytes) {
  if (num_in_use_ == buffers_.size()) buffers_.emplace_back();
  Buffer& buffer = buffers_[num_in_use_++];
  // A vocabulary's memory is given up before that of layers is taken.
  const bool is_far_larger = buffer.capacity >= kLargeBytes && bytes < buffer.capacity / 4;
  if (buffer.capacity < bytes || is_far_larger) {
    buffer.bytes.reset();
    buffer.bytes.reset(new uint8_t[bytes]);  // make_unique would write zeros first
    buffer.capacity = bytes;
  }
  return buffer.bytes.get();
}

void MappedReads::release() {
  for (const std::span<const uint8_t> read : reads_)
    for (const MappedFile& file : files_)
      if (file.contains(read.data())) file.release_pages(read.data(), read.size());
  reads_.clear();
}

RandomSource::RandomSource(uint64_t seed, DType dtype, ThreadPool& pool)
    : seed_(seed), dtype_(dtype), pool_(pool), quantiles_(kQuantiles) {
  double x = 0;  // from the middle outwards, so that each start is close
  for (int i = kQuantiles / 2 - 1; i >= 0; --i) {
    x = normal_quantile((i + 0.5) / kQuantiles, x);
    quantiles_[i] = static_cast<float>(x);
    quantiles_[kQuantiles - 1 - i] = static_cast<float>(-x);
  }
}

template <typename Word>
void RandomSource::fill(Word* out, int64_t size, uint64_t stream, float mean) {
  std::vector<Word> table(kQuantiles);
  for (int i = 0; i < kQuantiles; ++i) {
    const float value = mean + kStddev * quantiles_[i];
    if constexpr (std::is_same_v<Word, float>) table[i] = value;
    else table[i] = dtype_ == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)};
  pool_.parallel_for(ceil_div(size, kChunk), [&](int64_t task, int) {
    const int64_t end = std::min(size, (task + 1) * kChunk);
    for (int64_t i = task * kChunk; i < end; i += kPerPhilox) {
      const uint64_t counter = static_cast<uint64_t>(i / kPerPhilox);
      const auto words = philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                                     static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                                    key);
      const int64_t count = std::min(kPerPhilox, end - i);
      for (int64_t j = 0; j < count; ++j) out[i + j] = table[words[j / 2] >> (j % 2 * 16) & 0xFFFF];
    }
  });
}

Result<TensorView> RandomSource::tensor(const std::string& name, std::span<const int64_t> shape) {
  int64_t size = 1;
  for (const int64_t dimension : shape) size *= dimension;
  void* data = buffers_.take(size * dtype_bytes(dtype_));
  const bool is_norm = name.find("norm") != std::string::npos || name.find("ln_") != std::string::npos;
  const float mean = is_norm && name.ends_with(".weight") ? 1.0f : 0.0f;
  if (dtype_ == DType::kF32) fill(static_cast<float*>(data), size, hash_name(name), mean);
  else fill(static_cast<uint16_t*>(data), size, hash_name(name), mean);
  return TensorView{data, dtype_, size / shape.back(), shape.back()};
}

}  // namespace llmb
