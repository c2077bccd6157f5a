// Borders of top-k and top-p over ranks, found digit by digit of eight bits, without lists: a rank's bins hold how many
// keys have a digit, or the exact sum of their weights. A block is a row: one read of the part's logits for each digit.
#include <cmath>

#include "kernels/cuda/ptx.h"
#include "kernels/cuda/sample_block.h"
#include "kernels/cuda/sample_mail.h"
#include "kernels/cuda/sample_orders.h"
#include "kernels/cuda/sample_state.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;
static_assert(kThreads == kBins);

struct BinsShared {
  uint32_t counts[kBins];
  uint32_t low_sums[kBins];   // of what follows the digit in a key: the lowest eleven bits,
  uint32_t high_sums[kBins];  // and those above
  uint64_t units[kBins];      // of all ranks
  BlockScratch scratch;
};

// The best top_k logits, by their number.
struct TopK : LogitKeys {
  int32_t top_k;

  __device__ TopK(const RowState&, const SampleRow& params, int32_t) : top_k(params.top_k) {}
  __device__ static bool wants(const SampleRow& params, int32_t vocab) {
    return params.top_k > 0 && params.top_k < vocab;
  }
  __device__ static int shift(int digit) { return 24 - 8 * digit; }
  __device__ static int bits(int) { return 8; }
  __device__ void add(BinsShared& s, uint32_t bin, uint32_t) const { atomicAdd(&s.counts[bin], 1u); }
  __device__ uint64_t units(const BinsShared& s, uint32_t bin, uint32_t) const { return s.counts[bin]; }
  __device__ static double unit(uint32_t) { return 1; }
  __device__ static uint64_t units_of(uint32_t) { return 1; }
  __device__ double wanted(double) const { return top_k; }
  __device__ static Cut& cut(RowState& state) { return state.top_k; }
};

// The shortest prefix of weights that reaches top_p of their sum.
struct TopP : WeightKeys {
  float top_p;

  __device__ TopP(const RowState& state, const SampleRow& params, int32_t vocab)
      : WeightKeys{Weights(state.max, params.temperature), state.top_k, fminf(params.min_p, 1.0f),
                   smallest_weight(params.top_p, vocab)},
        top_p(params.top_p) {}
  __device__ static bool wants(const SampleRow& params, int32_t) { return params.top_p < 1; }
  // A key has 30 bits: all weights of a bin share their exponent.
  __device__ static int shift(int digit) { return digit == 3 ? 0 : 22 - 8 * digit; }
  __device__ static int bits(int digit) { return digit == 3 ? 6 : 8; }
  __device__ void add(BinsShared& s, uint32_t bin, uint32_t rest) const {
    atomicAdd(&s.counts[bin], 1u);
    if ((rest & 2047) != 0) atomicAdd(&s.low_sums[bin], rest & 2047);
    if (rest >> 11 != 0) atomicAdd(&s.high_sums[bin], rest >> 11);
  }
  __device__ uint64_t units(const BinsShared& s, uint32_t bin, uint32_t first) const {
    return uint64_t{s.counts[bin]} * weight_units(first) + s.low_sums[bin] + (uint64_t{s.high_sums[bin]} << 11);
  }
  __device__ static double unit(uint32_t first) { return weight_unit(first); }
  __device__ static uint64_t units_of(uint32_t key) { return weight_units(key); }
  __device__ double wanted(double total) const { return double{top_p} * total; }
  __device__ static Cut& cut(RowState& state) { return state.top_p; }
};

// All that this rank's logits with the digits before give for each value of this one.
template <class Filter>
__device__ void count_digit(const SampleArgs& args, int64_t row, const Filter& filter, int digit, uint32_t digits,
                            uint64_t* bins, double* apart, BinsShared& s) {
  const int shift = Filter::shift(digit), bits = Filter::bits(digit);
  const auto bin = static_cast<int32_t>(threadIdx.x);
  s.counts[bin] = s.low_sums[bin] = s.high_sums[bin] = 0;
  __syncthreads();
  double own_apart = 0;
  for_each_logit<kThreads>(args.logits(row), args.in.vocab, [&](float x, int32_t id) {
    const uint32_t key = filter.key(x, id);
    if (key == 0) return;
    if (digit == 0 && filter.is_counted_apart(key)) {
      own_apart += filter.measure(key);
      return;
    }
    if (digit > 0 && key >> (shift + bits) != digits) return;
    filter.add(s, key >> shift & ((1u << bits) - 1), key & ((1u << shift) - 1));
  });
  __syncthreads();
  const auto value = static_cast<uint32_t>(bin);
  bins[bin] = bin < 1 << bits ? filter.units(s, value, (digits << bits | value) << shift) : 0;
  double total;
  block_exclusive_sum(own_apart, &s.scratch, &total);
  if (bin == 0) *apart = total;
}

// The digit in which the prefix ends, from what all ranks counted.
template <class Filter>
__device__ void find_digit(const SampleMail& mail, const BinsMessage& message, int64_t row, const Filter& filter,
                           int digit, PartBorder* border, BinsShared& s) {
  const int shift = Filter::shift(digit), bits = Filter::bits(digit);
  const int32_t highest = (1 << bits) - 1, bin = static_cast<int32_t>(threadIdx.x);
  const auto first_key = [&](int32_t b) { return (border->digits << bits | static_cast<uint32_t>(b)) << shift; };
  uint64_t units = 0;
  for (int32_t r = 0; r < mail.size; ++r) units += mail.of<const uint64_t>(r, message.bins)[row * kBins + bin];
  s.units[bin] = units;
  __syncthreads();
  const auto measure = [&](int32_t i) {  // from the highest bin down
    const int32_t b = highest - i;
    return s.units[b] == 0 ? 0 : static_cast<double>(s.units[b]) * Filter::unit(first_key(b));
  };
  if (digit == 0) {
    double own = bin <= highest ? measure(bin) : 0, total;
    if (bin == 0)
      for (int32_t r = 0; r < mail.size; ++r) own += mail.of<const double>(r, message.apart)[row];
    block_exclusive_sum(own, &s.scratch, &total);
    border->wanted = filter.wanted(total);
  }
  const Crossing crossing = find_crossing(
      highest + 1, border->above, measure, [&](double sum) { return sum >= border->wanted; }, &s.scratch);
  border->above = crossing.before;
  border->digits = border->digits << bits | static_cast<uint32_t>(highest - crossing.position);
}

// All digits are known: the prefix holds the lowest ids of those with this key, in the order of ranks.
template <class Filter>
__device__ Cut cut_at_border(const SampleArgs& args, const SampleMail& mail, const BinsMessage& message, int64_t row,
                             const Filter& filter, const PartBorder& border, BinsShared& s) {
  const uint32_t key = border.digits;
  const Cut all{Filter::value(key), kMaxId};
  const uint32_t bin = key & ((1u << Filter::bits(kBinDigits - 1)) - 1);
  const auto count_of = [&](int32_t r) {
    return static_cast<double>(mail.of<const uint64_t>(r, message.bins)[row * kBins + bin] / Filter::units_of(key));
  };
  double wanted = ceil((border.wanted - border.above) / filter.measure(key));
  for (int32_t r = 0; r < mail.rank; ++r) wanted -= count_of(r);
  if (!(wanted < count_of(mail.rank))) return all;
  if (!(wanted > 0)) return {all.value, -1};
  const auto is_tied = [&](int32_t i) { return filter.key(args.logits(row)[i], i) == key ? 1.0 : 0.0; };
  const Crossing end = find_crossing(
      args.in.vocab, 0, is_tied, [&](double sum) { return sum >= wanted; }, &s.scratch);
  return {all.value, end.position};
}

// A block is a row. Takes over the digit before, which ranks have told each other of, and looks at this one; behind the
// last one it cuts.
template <class Filter>
__global__ void __launch_bounds__(kThreads)
    digit_kernel(SampleArgs args, SampleMail mail, BinsMessage message, int32_t vocab, int digit) {
  ptx::follow_previous_grid();
  __shared__ BinsShared s;
  const int64_t row = blockIdx.x;
  const SampleRow& params = args.in.rows[row];
  RowState& state = args.states[row];
  if (is_padding(params) || !(params.temperature > 0) || !Filter::wants(params, vocab) || !state.is_finite) return;
  Filter filter(state, params, vocab);
  PartBorder border = digit > 1 ? args.borders[row] : PartBorder{0, 0, 0};
  if (digit > 0) {
    find_digit(mail, message, row, filter, digit - 1, &border, s);
    filter.know_border(border.digits << Filter::shift(digit - 1));
  }
  if (digit == kBinDigits) {
    const Cut cut = cut_at_border(args, mail, message, row, filter, border, s);
    if (threadIdx.x == 0) Filter::cut(state) = cut;
    return;
  }
  __syncthreads();  // all have read what is written now
  count_digit(args, row, filter, digit, border.digits, mail.of<uint64_t>(mail.rank, message.bins) + row * kBins,
              mail.of<double>(mail.rank, message.apart) + row, s);
  if (threadIdx.x == 0) args.borders[row] = border;
}

template <class Filter>
void launch_digit(const SampleArgs& args, const SampleMail& mail, const BinsMessage& message, int32_t vocab, int digit,
                  cudaStream_t stream) {
  launch_ahead({dim3(static_cast<unsigned>(args.in.num_rows)), dim3(kThreads), 0, stream}, digit_kernel<Filter>, args,
               mail, message, vocab, digit);
}

}  // namespace

void launch_top_k_digit(const SampleArgs& args, const SampleMail& mail, const BinsMessage& message, int32_t vocab,
                        int digit, cudaStream_t stream) {
  launch_digit<TopK>(args, mail, message, vocab, digit, stream);
}

void launch_top_p_digit(const SampleArgs& args, const SampleMail& mail, const BinsMessage& message, int32_t vocab,
                        int digit, cudaStream_t stream) {
  launch_digit<TopP>(args, mail, message, vocab, digit, stream);
}

}  // namespace llmb::cuda
