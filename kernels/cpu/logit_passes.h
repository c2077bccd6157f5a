// Passes over one row of logits or weights, vectorised: the parts of sampling that touch the whole vocabulary.
// Pure functions of their arguments; results are the same on every SIMD target with fused multiply-add.
#pragma once

#include <cstdint>

namespace llmb::cpu {

// Values of one row in order of (value descending, id ascending): everything up to and including this one is kept.
struct Cut {
  float value;
  int32_t id;
};

struct LogitScan {
  float max = 0;          // -Inf where all are
  bool is_finite = true;  // false: a NaN or +Inf is among them
};

LogitScan scan_logits(const float* logits,  // [n]
                      int64_t n);

// scan_logits of a row of which a mask allows a part: writes the allowed logits to `allowed` (may be in place), -Inf
// for the others, and the largest of them to *max_allowed (-Inf where none is allowed; no meaning where the scan is not
// finite).
LogitScan scan_masked_logits(const float* logits,   // [n]
                             const uint32_t* mask,  // [ceil(n / 32)]  bit i % 32 of word i / 32: i is allowed
                             int64_t n,
                             float* allowed,  // [n]
                             float* max_allowed);

// The first index >= begin of a value in [low, high), n where there is none.
int64_t find_in_range(const float* values,  // [n]
                      int64_t begin, int64_t n, float low, float high);

// Maxima of consecutive blocks of kMaxBlock values.
constexpr int64_t kMaxBlock = 64;
void block_maxima(const float* values,  // [n]
                  int64_t n,
                  float* maxima);  // [ceil(n / kMaxBlock)]

// weights[i] = exp((logits[i] - max) / temperature); may be in place. The weight of the maximum is exactly 1.
void exp_weights(const float* logits,  // [n]
                 int64_t n, float max, float temperature,
                 float* weights);  // [n]

// Overwrites the values after `cut` in its order.
void replace_after(const Cut& cut, float replacement, int64_t n,
                   float* values);  // [n]

// How many values are at least `threshold`, and their sum.
struct UpperTail {
  double sum = 0;
  int64_t count = 0;
};
UpperTail upper_tail(const float* values,  // [n]
                     int64_t n, float threshold);

// Lists the values that are at least `threshold`, and their ids, in order. REQUIRES: room for kListSlack more than there
// are in either list.
constexpr int64_t kListSlack = 16;
void list_at_least(const float* values,  // [n]
                   int64_t n, float threshold, float* listed, int32_t* ids);

// Sums of consecutive blocks of kSumBlock values, in double. Returns the sum of the blocks in order.
constexpr int64_t kSumBlock = 1024;
double block_sums(const float* values,  // [n]
                  int64_t n,
                  double* sums);  // [ceil(n / kSumBlock)]

}  // namespace llmb::cpu
