// Top-k, top-p and the best log probabilities without sorting the vocabulary. Each wants a prefix of the logits in
// order of (key descending, id ascending), where keys are bits of floats: a radix search from the highest digit down,
// with histograms in shared memory, finds the digit in which the prefix ends. As soon as all that may belong to it fits
// a list, the list is gathered and sorted, and a row whose kept tokens are all listed is drawn from the list. A block
// is a row: one read of it for each digit (mostly one) and one to gather.
#include <cmath>

#include "kernels/cuda/ptx.h"
#include "kernels/cuda/sample_block.h"
#include "kernels/cuda/sample_mail.h"
#include "kernels/cuda/sample_orders.h"
#include "kernels/cuda/sample_state.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kBlocksPerSm = 2;
constexpr int kListCapacity = 1024;
constexpr int kMaxBins = 2048;
constexpr int kLevels = 3;
static_assert(kMaxListedLogprobs <= kListCapacity);

struct FilterShared {
  uint32_t counts[kMaxBins];
  uint32_t low_sums[kMaxBins];   // of what follows the digit in a key: the lowest ten bits,
  uint32_t high_sums[kMaxBins];  // and those above
  uint64_t list[kListCapacity];
  int32_t list_size;
  BlockScratch scratch;
};

// The best `rank` logits.
struct LogitOrder : LogitKeys {
  double wanted;  // rank

  // Digits of 11, 11 and 10 bits.
  __device__ static int shift(int level) { return level == 0 ? 21 : level == 1 ? 10 : 0; }
  __device__ static int bits(int level) { return level == 2 ? 10 : 11; }

  __device__ void add(FilterShared& s, uint32_t bin, uint32_t) const { atomicAdd(&s.counts[bin], 1u); }
  __device__ double bin_measure(const FilterShared& s, uint32_t bin, uint32_t) const { return s.counts[bin]; }
  __device__ void know_total(double) {}
};

// The shortest prefix whose weights reach top_p of their total.
struct WeightOrder : WeightKeys {
  float top_p;
  double wanted = 0;

  // Digits of 10 bits.
  __device__ static int shift(int level) { return 20 - 10 * level; }
  __device__ static int bits(int) { return 10; }

  __device__ void add(FilterShared& s, uint32_t bin, uint32_t rest) const {
    atomicAdd(&s.counts[bin], 1u);
    if ((rest & 1023) != 0) atomicAdd(&s.low_sums[bin], rest & 1023);
    if (rest >> 10 != 0) atomicAdd(&s.high_sums[bin], rest >> 10);
  }
  // Exact: a bin's weights share their exponent, so their sum is an integer multiple of its unit. `first`: the lowest
  // key of the bin.
  __device__ double bin_measure(const FilterShared& s, uint32_t bin, uint32_t first) const {
    if (s.counts[bin] == 0) return 0;
    const uint64_t units =
        uint64_t{s.counts[bin]} * weight_units(first) + s.low_sums[bin] + (uint64_t{s.high_sums[bin]} << 10);
    return static_cast<double>(units) * weight_unit(first);
  }
  __device__ void know_total(double total) { wanted = double{top_p} * total; }
};

// Where a prefix ends. If num_listed > 0, the list holds the prefix in its order.
struct Selection {
  Cut cut;
  int32_t num_listed;
};

__device__ double block_sum(double value, FilterShared& s) {
  double total;
  block_exclusive_sum(value, &s.scratch, &total);
  return total;
}

// Lists, unsorted, what `wants` a key and id.
template <class Order, class Wants>
__device__ void gather(const float* logits, int32_t vocab, const Order& order, const Wants& wants, FilterShared& s) {
  if (threadIdx.x == 0) s.list_size = 0;
  __syncthreads();
  for_each_logit<kThreads>(logits, vocab, [&](float x, int32_t id) {
    const uint32_t key = order.key(x, id);
    if (!wants(key, id)) return;
    const int32_t at = atomicAdd(&s.list_size, 1);
    if (at < kListCapacity) s.list[at] = make_entry(key, id);
  });
  __syncthreads();
}

// Ends the prefix within the list's first n entries, which must hold it. Sorts.
template <class Order>
__device__ Selection select_listed(int32_t n, const Order& order, FilterShared& s) {
  block_sort(s.list, n);
  const auto measure = [&](int32_t i) { return order.measure(entry_key(s.list[i])); };
  const Crossing end = find_crossing(
      n, 0, measure, [&](double sum) { return sum >= order.wanted; }, &s.scratch);
  const uint64_t entry = s.list[end.position];
  __syncthreads();  // the list may change
  return {{Order::value(entry_key(entry)), entry_id(entry)}, end.position + 1};
}

// Ends the prefix among `count` logits of one key, of which it holds the lowest ids. `above`: the measure of larger
// keys.
template <class Order>
__device__ Selection select_tied(const float* logits, int32_t vocab, uint32_t key, double above, uint32_t count,
                                 const Order& order, FilterShared& s) {
  const Cut all{Order::value(key), kMaxId};
  const double wanted = ceil((order.wanted - above) / order.measure(key));
  if (!(wanted < count)) return {all, 0};
  const auto is_tied = [&](int32_t i) { return order.key(logits[i], i) == key ? 1.0 : 0.0; };
  const Crossing end = find_crossing(
      vocab, 0, is_tied, [&](double sum) { return sum >= wanted; }, &s.scratch);
  return {{all.value, end.position}, 0};
}

template <class Order>
__device__ void fill_bins(const float* logits, int32_t vocab, int level, uint32_t prefix, Order& order,
                          FilterShared& s) {
  const int shift = Order::shift(level), bits = Order::bits(level);
  for (int32_t i = threadIdx.x; i < kMaxBins; i += kThreads) s.counts[i] = s.low_sums[i] = s.high_sums[i] = 0;
  __syncthreads();
  double apart = 0;
  for_each_logit<kThreads>(logits, vocab, [&](float x, int32_t id) {
    const uint32_t key = order.key(x, id);
    if (key == 0) return;
    if (level == 0 && order.is_counted_apart(key)) {
      apart += order.measure(key);
      return;
    }
    if (level > 0 && key >> (shift + bits) != prefix) return;
    order.add(s, key >> shift & ((1u << bits) - 1), key & ((1u << shift) - 1));
  });
  __syncthreads();
  if (level > 0) return;
  for (int32_t bin = threadIdx.x; bin < 1 << bits; bin += kThreads)
    apart += order.bin_measure(s, bin, static_cast<uint32_t>(bin) << shift);
  order.know_total(block_sum(apart, s));
}

// REQUIRES: the prefix that `order` wants is not empty.
template <class Order>
__device__ Selection select(const float* logits, int32_t vocab, Order& order, FilterShared& s) {
  uint32_t prefix = 0, in_bin = 0;  // the border's digits so far, and how many keys share them
  double above = 0;                 // the measure of keys with larger digits, and their count
  int32_t num_above = 0;
  for (int level = 0; level < kLevels; ++level) {
    fill_bins(logits, vocab, level, prefix, order, s);
    const int shift = Order::shift(level), bits = Order::bits(level);
    const int32_t highest = (1 << bits) - 1;
    const auto measure = [&](int32_t i) {  // from the highest bin down
      const auto bin = static_cast<uint32_t>(highest - i);
      return order.bin_measure(s, bin, (prefix << bits | bin) << shift);
    };
    const Crossing border = find_crossing(
        highest + 1, above, measure, [&](double sum) { return sum >= order.wanted; }, &s.scratch);
    const int32_t bin = highest - border.position;
    in_bin = s.counts[bin];  // before the barriers of block_sum: the next digit clears the counts
    uint32_t own_above = 0;
    for (int32_t i = bin + 1 + static_cast<int32_t>(threadIdx.x); i <= highest; i += kThreads) own_above += s.counts[i];
    num_above += static_cast<int32_t>(block_sum(own_above, s));
    above = border.before;
    prefix = prefix << bits | static_cast<uint32_t>(bin);
    const uint32_t first = prefix << shift;
    order.know_border(first);
    if (num_above + static_cast<int64_t>(in_bin) <= kListCapacity) {
      gather(
          logits, vocab, order, [=](uint32_t key, int32_t) { return key >= first; }, s);
      return select_listed(s.list_size, order, s);
    }
  }
  return select_tied(logits, vocab, prefix, above, in_bin, order, s);
}

// The best `rank` logits of a row. The `rank` best blocks each hold a logit at least as large as the rank-th best of
// the maxima, so where there are enough blocks one read gathers what may be among them.
__device__ Selection select_best(const SampleArgs& args, int64_t row, int32_t rank, FilterShared& s) {
  LogitOrder order{{}, static_cast<double>(rank)};
  const float* logits = args.logits(row);
  const int32_t vocab = args.in.vocab, num_blocks = args.num_blocks;
  if (rank > num_blocks || num_blocks > kListCapacity) return select(logits, vocab, order, s);
  for (int32_t i = threadIdx.x; i < num_blocks; i += kThreads)
    s.list[i] = make_entry(order.key(args.maxima[row * num_blocks + i], i), i);
  block_sort(s.list, num_blocks);
  const uint32_t bound = entry_key(s.list[rank - 1]);
  __syncthreads();  // the list changes
  gather(
      logits, vocab, order, [=](uint32_t key, int32_t) { return key >= bound; }, s);
  if (s.list_size <= kListCapacity) return select_listed(s.list_size, order, s);
  return select(logits, vocab, order, s);
}

// Turns the list's keys of logits into weights, 0 for those that min-p drops.
__device__ void weigh_list(int32_t n, const Weights& weights, float min_p, FilterShared& s) {
  for (int32_t i = threadIdx.x; i < n; i += kThreads) {
    const uint64_t entry = s.list[i];
    const float weight = weights(LogitOrder::value(entry_key(entry)));
    s.list[i] = make_entry(weight < min_p ? 0u : __float_as_uint(weight), entry_id(entry));
  }
  __syncthreads();
}

// By inverse CDF over ids. The list's n entries are all that is kept; their keys are weights.
__device__ TokenId draw_from_list(int32_t n, const SampleRow& params, FilterShared& s) {
  double own = 0;
  for (int32_t i = threadIdx.x; i < n; i += kThreads) {
    const uint64_t entry = s.list[i];
    s.list[i] = uint64_t{static_cast<uint32_t>(entry_id(entry))} << 32 | entry_key(entry);
  }
  __syncthreads();
  block_sort(s.list, n);
  const auto measure = [&](int32_t i) { return double{__uint_as_float(static_cast<uint32_t>(s.list[i]))}; };
  for (int32_t i = threadIdx.x; i < n; i += kThreads) own += measure(i);
  const double target = double{draw_uniform(params)} * block_sum(own, s);
  const Crossing token = find_crossing(
      n, 0, measure, [=](double sum) { return sum > target; }, &s.scratch);
  return static_cast<TokenId>(s.list[token.position] >> 32);
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSm) filter_kernel(SampleArgs args) {
  ptx::follow_previous_grid();
  __shared__ FilterShared s;
  const int64_t row = blockIdx.x;
  const SampleRow& params = args.in.rows[row];
  const int32_t vocab = args.in.vocab;
  const bool wants_top_k = params.top_k > 0 && params.top_k < vocab, wants_top_p = params.top_p < 1;
  if (is_padding(params) || !(params.temperature > 0) || !(wants_top_k || wants_top_p)) return;
  RowState& state = args.states[row];
  if (!state.is_finite) return;
  const float* logits = args.logits(row);
  const Weights weights(state.max, params.temperature);
  const float min_p = fminf(params.min_p, 1.0f);

  Cut top_k{-kInfinity, kMaxId}, top_p{0.0f, kMaxId};
  int32_t num_listed = 0;
  if (wants_top_k) {
    const Selection best = select_best(args, row, params.top_k, s);
    top_k = best.cut;
    num_listed = best.num_listed;
    weigh_list(num_listed, weights, min_p, s);
  }
  if (wants_top_p) {
    WeightOrder order{{weights, top_k, min_p, smallest_weight(params.top_p, vocab)}, params.top_p};
    Selection nucleus;
    if (num_listed > 0) {
      double own = 0;
      for (int32_t i = threadIdx.x; i < num_listed; i += kThreads) own += order.measure(entry_key(s.list[i]));
      order.know_total(block_sum(own, s));
      nucleus = select_listed(num_listed, order, s);
    } else {
      nucleus = select(logits, vocab, order, s);
    }
    top_p = nucleus.cut;
    num_listed = nucleus.num_listed;
  }
  if (num_listed > 0) {
    const TokenId token = draw_from_list(num_listed, params, s);
    if (threadIdx.x != 0) return;
    state.is_drawn = 1;
    state.token = token;
    args.out.tokens[row] = token;
  } else if (threadIdx.x == 0) {
    state.top_k = top_k;
    state.top_p = top_p;
  }
}

// The row's best logits in order, at the beginning of the list.
__device__ void list_best(const SampleArgs& args, int64_t row, int32_t count, FilterShared& s) {
  const Selection best = select_best(args, row, count, s);
  if (best.num_listed > 0) return;
  const Cut cut = best.cut;
  gather(
      args.logits(row), args.in.vocab, LogitOrder{},
      [=](uint32_t key, int32_t id) { return !cut.drops(LogitOrder::value(key), id); }, s);
  block_sort(s.list, count);
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSm) top_logprobs_kernel(SampleArgs args) {
  ptx::follow_previous_grid();
  __shared__ FilterShared s;
  const int64_t row = blockIdx.x;
  const SampleRow& params = args.in.rows[row];
  const int32_t num_top = min(min(params.num_logprobs, args.in.vocab), args.out.max_top);
  if (is_padding(params) || num_top <= 0 || !args.states[row].is_finite) return;
  list_best(args, row, num_top, s);
  const double log_sum = args.states[row].log_sum;
  for (int32_t i = threadIdx.x; i < num_top; i += kThreads) {
    const uint64_t entry = s.list[i];
    const int64_t at = row * args.out.max_top + i;
    args.out.top_tokens[at] = entry_id(entry);
    args.out.top_logprobs[at] = static_cast<float>(LogitOrder::value(entry_key(entry)) - log_sum);
  }
}

// A part's. Behind them stand entries that come after all others.
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) list_best_kernel(SampleArgs args, uint64_t* out) {
  ptx::follow_previous_grid();
  __shared__ FilterShared s;
  const int64_t row = blockIdx.x;
  const SampleRow& params = args.in.rows[row];
  const int32_t max_top = args.out.max_top, num_top = min(min(params.num_logprobs, args.in.vocab), max_top);
  if (is_padding(params) || num_top <= 0 || !args.states[row].is_finite) return;
  list_best(args, row, num_top, s);
  for (int32_t i = threadIdx.x; i < max_top; i += kThreads) {
    const uint64_t entry = i < num_top ? s.list[i] : 0;
    out[row * max_top + i] =
        i < num_top ? make_entry(entry_key(entry), entry_id(entry) + args.first_id) : ~uint64_t{0};
  }
}

void launch_rows(void (*kernel)(SampleArgs), const SampleArgs& args, cudaStream_t stream) {
  launch_ahead({dim3(static_cast<unsigned>(args.in.num_rows)), dim3(kThreads), 0, stream}, kernel, args);
}

}  // namespace

void launch_filter(const SampleArgs& args, cudaStream_t stream) { launch_rows(filter_kernel, args, stream); }
void launch_top_logprobs(const SampleArgs& args, cudaStream_t stream) {
  launch_rows(top_logprobs_kernel, args, stream);
}

void launch_list_best(const SampleArgs& args, uint64_t* out, cudaStream_t stream) {
  launch_ahead({dim3(static_cast<unsigned>(args.in.num_rows)), dim3(kThreads), 0, stream}, list_best_kernel, args, out);
}

}  // namespace llmb::cuda
