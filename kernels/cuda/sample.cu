#include "kernels/cuda/sample.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/sample_state.h"

namespace llmb::cuda {

namespace {

constexpr int64_t kMaxVocab = int64_t{1} << 22;  // sums of ten bits stay below 2^32

int32_t count_segments(int32_t vocab) { return static_cast<int32_t>(ceil_div(vocab, kSegment)); }
int32_t count_blocks(int32_t vocab) { return static_cast<int32_t>(ceil_div(vocab, kBlock)); }

// Hands out parts of the workspace; without one it only counts bytes.
class Parts {
 public:
  explicit Parts(void* memory) : memory_(static_cast<uint8_t*>(memory)) {}

  template <class T>
  T* take(int64_t count) {
    constexpr int64_t kAlignment = 256;
    const int64_t begin = bytes_;
    bytes_ += ceil_div(count * static_cast<int64_t>(sizeof(T)), kAlignment) * kAlignment;
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + begin);
  }
  int64_t bytes() const { return bytes_; }

 private:
  uint8_t* memory_;
  int64_t bytes_ = 0;
};

int64_t divide_workspace(const SampleLimits& limits, void* workspace, SampleArgs* args) {
  Parts parts(workspace);
  const int64_t rows = limits.max_rows;
  args->num_segments = count_segments(limits.vocab);
  args->num_blocks = count_blocks(limits.vocab);
  args->counters = parts.take<uint32_t>(rows);
  args->states = parts.take<RowState>(rows);
  args->scans = parts.take<ScanPartial>(rows * args->num_segments);
  args->maxima = parts.take<float>(rows * args->num_blocks);
  args->sums = parts.take<double>(rows * args->num_blocks);
  args->penalty_logits = parts.take<float>(limits.max_penalties);
  args->bias_logits = parts.take<float>(limits.max_biases);
  args->borders = parts.take<PartBorder>(rows);
  return parts.bytes();
}

}  // namespace

bool SampleNeeds::covers(const SampleNeeds& other) const {
  return draws >= other.draws && filters >= other.filters && edits >= other.edits && logprobs >= other.logprobs &&
         top_logprobs >= other.top_logprobs;
}

SampleNeeds sample_needs(std::span<const SampleRow> rows) {
  SampleNeeds needs;
  for (const SampleRow& row : rows) {
    needs.draws |= row.temperature > 0;
    needs.filters |= row.temperature > 0 && (row.top_k > 0 || row.top_p < 1);
    needs.edits |= row.mask >= 0 || row.penalty_begin < row.penalty_end || row.bias_begin < row.bias_end;
    needs.logprobs |= row.num_logprobs >= 0;
    needs.top_logprobs |= row.num_logprobs > 0;
  }
  return needs;
}

int64_t sample_workspace_bytes(const SampleLimits& limits) {
  SampleArgs args{};
  return divide_workspace(limits, nullptr, &args);
}

SampleArgs make_args(const SampleInput& input, const SampleResult& result, const SampleLimits& limits,
                     void* workspace) {
  SampleArgs args{};
  divide_workspace(limits, workspace, &args);
  args.in = input;
  args.out = result;
  args.mask_words = static_cast<int32_t>(ceil_div(input.vocab, 32));
  return args;
}

void sample(const SampleInput& input, const SampleNeeds& needs, const SampleResult& result, const SampleLimits& limits,
            void* workspace, cudaStream_t stream) {
  LLMB_CHECK(input.vocab >= 1 && input.vocab <= kMaxVocab && input.vocab == limits.vocab);
  LLMB_CHECK(input.num_rows >= 0 && input.num_rows <= limits.max_rows);
  LLMB_CHECK(!needs.top_logprobs || (needs.logprobs && result.max_top <= kMaxListedLogprobs));
  if (input.num_rows == 0) return;
  const SampleArgs args = make_args(input, result, limits, workspace);
  // Log probabilities are of the raw logits: before mask, bias and penalties change them.
  launch_scan(args, false, stream);
  if (needs.logprobs) launch_log_sum(args, stream);
  if (needs.top_logprobs) launch_top_logprobs(args, stream);
  if (needs.edits) {
    launch_mask(args, stream);
    launch_edit(args, stream);
    launch_scan(args, true, stream);
  }
  if (needs.filters) launch_filter(args, stream);
  if (needs.draws) launch_draw(args, stream);
  if (needs.logprobs) launch_finish(args, stream);
}

}  // namespace llmb::cuda
