// Stages follow each other as in sample.cu. Each rank looks at its part, writes what it found where the others read it
// after the exchange, and all of them make the same of it. Bound by the latency of the exchanges.
#include "kernels/cuda/sample_parts.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/sample_mail.h"
#include "kernels/cuda/sample_orders.h"
#include "kernels/cuda/sample_state.h"

namespace llmb::cuda {

namespace {

constexpr int64_t kMaxPart = int64_t{1} << 21;  // sums of eleven bits stay below 2^32
constexpr int kThreads = 256;

// About the logits before mask, bias and penalties change them, and the scan after.
struct RawMessage : Message {
  int64_t totals, best, scans;
  RawMessage(int64_t rows, int64_t max_top)
      : totals(add(rows, sizeof(double))),
        best(add(rows * max_top, sizeof(uint64_t))),
        scans(add(rows, sizeof(ScanPartial))) {}
};

// A thread is a row.
__global__ void __launch_bounds__(kThreads) tell_scan_kernel(SampleArgs args, ScanPartial* out) {
  ptx::follow_previous_grid();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= args.in.num_rows) return;
  const RowState& state = args.states[row];
  out[row] = {state.max, state.token + args.first_id, state.has_bad};
}

// A thread is a row.
__global__ void __launch_bounds__(kThreads)
    join_scans_kernel(SampleArgs args, SampleMail mail, int64_t scans, bool edited_rows_only) {
  ptx::follow_previous_grid();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= args.in.num_rows) return;
  const SampleRow& params = args.in.rows[row];
  if (is_padding(params) || (edited_rows_only && !has_edits(params))) return;
  ScanPartial best{-kInfinity, 0, 0};
  for (int32_t r = 0; r < mail.size; ++r) {
    const ScanPartial& of_rank = mail.of<const ScanPartial>(r, scans)[row];
    best.has_bad |= of_rank.has_bad;
    if (of_rank.max > best.max) best.max = of_rank.max, best.id = of_rank.id;
  }
  RowState& state = args.states[row];
  const bool is_finite = !best.has_bad && best.max > -kInfinity;
  state.max = best.max;
  state.token = best.id - args.first_id;
  state.is_finite = is_finite;
  state.has_bad = best.has_bad;
  args.out.tokens[row] = is_finite ? best.id : 0;
  args.out.is_finite[row] = is_finite;
}

// A thread is a row, whose log_sum is its largest raw logit.
__global__ void __launch_bounds__(kThreads) join_log_sums_kernel(SampleArgs args, SampleMail mail, int64_t totals) {
  ptx::follow_previous_grid();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= args.in.num_rows) return;
  const SampleRow& params = args.in.rows[row];
  if (is_padding(params) || params.num_logprobs < 0 || !args.states[row].is_finite) return;
  double total = 0;
  for (int32_t r = 0; r < mail.size; ++r) total += mail.of<const double>(r, totals)[row];
  args.states[row].log_sum += log(total);
}

// A block is a row. An entry's place is how many entries of all ranks come before it.
__global__ void __launch_bounds__(kThreads)
    join_best_kernel(SampleArgs args, SampleMail mail, int64_t best, int32_t vocab) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x;
  const SampleRow& params = args.in.rows[row];
  const RowState& state = args.states[row];
  const int32_t max_top = args.out.max_top, num_top = min(min(params.num_logprobs, vocab), max_top);
  if (is_padding(params) || num_top <= 0 || !state.is_finite) return;
  const auto list_of = [&](int32_t r) { return mail.of<const uint64_t>(r, best) + row * max_top; };
  for (int32_t i = threadIdx.x; i < mail.size * num_top; i += kThreads) {
    const int32_t rank = i / num_top, at = i % num_top;
    const uint64_t entry = list_of(rank)[at];
    if (entry == ~uint64_t{0}) continue;
    int32_t place = at;
    for (int32_t r = 0; r < mail.size; ++r) {
      if (r == rank) continue;
      const uint64_t* list = list_of(r);
      int32_t low = 0, high = num_top;
      while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (list[middle] < entry) low = middle + 1;
        else high = middle;
      }
      place += low;
    }
    if (place >= num_top) continue;
    args.out.top_tokens[row * max_top + place] = entry_id(entry);
    args.out.top_logprobs[row * max_top + place] =
        static_cast<float>(LogitKeys::value(entry_key(entry)) - state.log_sum);
  }
}

// A warp is a row.
__global__ void __launch_bounds__(kThreads)
    take_chosen_kernel(SampleArgs args, SampleMail mail, int32_t vocab, bool has_logprobs) {
  ptx::follow_previous_grid();
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= args.in.num_rows) return;
  const int lane = threadIdx.x % kWarp;
  const SampleRow& params = args.in.rows[row];
  const RowState state = args.states[row];
  const bool is_finite = !is_padding(params) && state.is_finite;
  float logprob = 0;
  if (is_finite)
    for (int32_t r = 0; r < mail.size; ++r) {
      const ChosenToken chosen = mail.of<const ChosenToken>(r)[row];
      if (chosen.token < 0) continue;
      if (lane == 0) args.out.tokens[row] = chosen.token;
      if (params.num_logprobs >= 0) logprob = static_cast<float>(chosen.raw_logit - state.log_sum);
    }
  if (!has_logprobs) return;
  if (lane == 0) args.out.logprobs[row] = logprob;
  if (is_padding(params) || is_finite) return;
  // Mask, bias and penalties may have left no token after the best ones were found.
  const int32_t num_top = min(min(params.num_logprobs, vocab), args.out.max_top);
  for (int32_t i = lane; i < num_top; i += kWarp) {
    args.out.top_tokens[row * args.out.max_top + i] = 0;
    args.out.top_logprobs[row * args.out.max_top + i] = 0;
  }
}

// A call, stage by stage.
class PartSampler {
 public:
  PartSampler(const SampleArgs& args, const SampleNeeds& needs, const SampleRanks& ranks, cudaStream_t stream)
      : args_(args), needs_(needs), ranks_(ranks), rows_(args.in.num_rows), stream_(stream) {}

  void run() {
    scan();
    if (needs_.logprobs || needs_.edits) edit();
    if (needs_.filters) {
      find_cuts(launch_top_k_digit);
      find_cuts(launch_top_p_digit);
    }
    if (needs_.draws) draw();
    if (needs_.draws || needs_.logprobs) choose();
  }

 private:
  SampleMail mail(const Message& message) const { return {ranks_.mail, message.bytes, ranks_.rank, ranks_.size}; }
  template <class T>
  T* own(const Message& message, int64_t at) const {
    return mail(message).of<T>(ranks_.rank, at);
  }
  template <class... Parameters, class... Arguments>
  void launch(int rows_per_block, void (*kernel)(Parameters...), Arguments... arguments) {
    const auto blocks = static_cast<unsigned>(ceil_div(rows_, rows_per_block));
    launch_ahead({dim3(blocks), dim3(kThreads), 0, stream_}, kernel, arguments...);
  }

  void scan() {
    Message message;
    const int64_t scans = message.add(rows_, sizeof(ScanPartial));
    launch_scan(args_, false, stream_);
    launch(kThreads, tell_scan_kernel, args_, own<ScanPartial>(message, scans));
    ranks_.exchange(message.bytes);
    launch(kThreads, join_scans_kernel, args_, mail(message), scans, false);
  }

  void edit() {
    const RawMessage message(rows_, needs_.top_logprobs ? args_.out.max_top : 0);
    SampleArgs raw = args_;
    raw.totals = own<double>(message, message.totals);
    if (needs_.logprobs) launch_log_sum(raw, stream_);
    if (needs_.top_logprobs) launch_list_best(args_, own<uint64_t>(message, message.best), stream_);
    if (needs_.edits) {
      launch_mask(args_, stream_);
      launch_edit(args_, stream_);
      launch_scan(args_, true, stream_);
      launch(kThreads, tell_scan_kernel, args_, own<ScanPartial>(message, message.scans));
    }
    ranks_.exchange(message.bytes);
    if (needs_.edits) launch(kThreads, join_scans_kernel, args_, mail(message), message.scans, true);
    if (needs_.logprobs) launch(kThreads, join_log_sums_kernel, args_, mail(message), message.totals);
    if (needs_.top_logprobs) launch(1, join_best_kernel, args_, mail(message), message.best, ranks_.vocab);
  }

  // Takes over the digit before, and looks at one.
  using LaunchDigit = void (*)(const SampleArgs&, const SampleMail&, const BinsMessage&, int32_t vocab, int digit,
                               cudaStream_t);
  void find_cuts(LaunchDigit launch_digit) {
    const BinsMessage message(rows_);
    for (int digit = 0; digit <= kBinDigits; ++digit) {
      launch_digit(args_, mail(message), message, ranks_.vocab, digit, stream_);
      if (digit < kBinDigits) ranks_.exchange(message.bytes);
    }
  }

  void draw() {
    Message message;
    const int64_t totals = message.add(rows_, sizeof(double));
    SampleArgs drawing = args_;
    drawing.totals = own<double>(message, totals);
    launch_draw(drawing, stream_);
    ranks_.exchange(message.bytes);
    launch_draw_in_part(args_, mail(message), stream_);
  }

  void choose() {
    Message message;
    const int64_t chosen = message.add(rows_, sizeof(ChosenToken));
    launch_choose(args_, own<ChosenToken>(message, chosen), stream_);
    ranks_.exchange(message.bytes);
    launch(kThreads / kWarp, take_chosen_kernel, args_, mail(message), ranks_.vocab, needs_.logprobs);
  }

  const SampleArgs args_;
  const SampleNeeds needs_;
  const SampleRanks& ranks_;
  const int64_t rows_;
  const cudaStream_t stream_;
};

}  // namespace

int64_t sample_mail_bytes(const SampleLimits& limits, int32_t max_top) {
  return std::max(RawMessage(limits.max_rows, max_top).bytes, BinsMessage(limits.max_rows).bytes);
}

void sample_parts(const SampleInput& input, const SampleNeeds& needs, const SampleResult& result,
                  const SampleLimits& limits, void* workspace, const SampleRanks& ranks, cudaStream_t stream) {
  LLMB_CHECK(input.vocab >= 1 && input.vocab <= kMaxPart && input.vocab == limits.vocab);
  LLMB_CHECK(ranks.first_token % 32 == 0 && ranks.first_token + input.vocab <= ranks.vocab);
  LLMB_CHECK(input.num_rows >= 0 && input.num_rows <= limits.max_rows);
  LLMB_CHECK(!needs.top_logprobs || (needs.logprobs && result.max_top <= kMaxListedLogprobs));
  if (input.num_rows == 0) return;
  SampleArgs args = make_args(input, result, limits, workspace);
  if (args.in.masks != nullptr) args.in.masks += ranks.first_token / 32;
  args.mask_words = static_cast<int32_t>(ceil_div(ranks.vocab, 32));
  args.first_id = ranks.first_token;
  PartSampler(args, needs, ranks, stream).run();
}

}  // namespace llmb::cuda
