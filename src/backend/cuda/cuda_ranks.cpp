#include "backend/cuda/cuda_ranks.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_weights.h"
#include "kernels/cuda/rank_parts.h"

namespace llmb {

namespace {

constexpr int64_t kPartsBytes = int64_t{64} << 20;  // of all ranks' parts of a sum, at a time
constexpr int64_t kPiece = 64;  // elements of a part, or whole multiples of them, at a time

}  // namespace

Result<std::unique_ptr<CudaRanks>> CudaRanks::join(std::shared_ptr<RankContext> context, const ModelConfig& whole,
                                                   const CudaRanksLimits& limits, cudaStream_t stream) {
  const SharedRanks& ranks = *context->ranks;
  auto collectives = DeviceCollectives::make(*context->tensor, [&] { return !ranks.failure().ok(); });
  if (!ranks.failure().ok()) return ranks.failure();
  LLMB_RETURN_IF_ERROR(collectives.status());
  return std::unique_ptr<CudaRanks>(
      new CudaRanks(std::move(context), whole, limits, std::move(*collectives), stream));
}

CudaRanks::CudaRanks(std::shared_ptr<RankContext> context, const ModelConfig& whole, const CudaRanksLimits& limits,
                     std::unique_ptr<DeviceCollectives> collectives, cudaStream_t stream)
    : context_(std::move(context)),
      share_(share_of(whole, context_->part)),
      limits_(limits),
      stream_(stream),
      collectives_(std::move(collectives)),
      tokens_(limits.max_num_tokens * int64_t{sizeof(TokenId)}) {
  const int64_t size = collectives_->size();
  for (RankPart part = context_->part; vocab_ends_.size() < static_cast<size_t>(size);) {
    part.rank = static_cast<int32_t>(vocab_ends_.size());
    const Range vocab = share_of(whole, part).vocab;
    most_vocab_ = std::max(most_vocab_, vocab.count());
    vocab_ends_.push_back(static_cast<int32_t>(vocab.end));
  }
  if (limits.deterministic)
    parts_ = cuda::DeviceMemory(std::min(
        kPartsBytes,
        size * ceil_div(limits.max_num_tokens * whole.hidden_size, kPiece) * kPiece * int64_t{sizeof(float)}));
  logit_parts_ = cuda::DeviceMemory(size * limits.max_logit_rows * most_vocab_ * int64_t{sizeof(float)});
  logits_ = cuda::DeviceMemory(limits.max_logit_rows * int64_t{whole.vocab_size} * int64_t{sizeof(float)});
  if (whole.qk_norm == QkNorm::kAllHeads)
    square_sums_ = cuda::DeviceMemory((size + 1) * (limits.max_num_tokens + 1) * int64_t{sizeof(float)});
  watch_.emplace(context_, [this] { collectives_->abort(); });
}

void CudaRanks::begin_step(int64_t step) {
  context_->ranks->set_step(context_->part.rank, step);
  watch_->begin_step();
}

// A failure is all ranks'; nothing where another one has failed before.
void CudaRanks::end_step(const Status& status, double device_ms) {
  SharedRanks& ranks = *context_->ranks;
  watch_->end_step();
  if (status.ok()) ranks.add_busy_ms(context_->part.rank, device_ms);
  else ranks.fail(status.with_context(ranks.place_of(context_->part.rank)));
}

// Calls of ranks that have failed would wait for ever.
CudaRanks::~CudaRanks() {
  watch_.reset();
  if (!context_->ranks->failure().ok()) collectives_->abort();
}

Status CudaRanks::failure() {
  LLMB_RETURN_IF_ERROR(context_->ranks->failure());
  const Status status = collectives_->status();
  if (status.ok()) return {};
  context_->ranks->fail(status.with_context(context_->ranks->place_of(context_->part.rank)));
  return context_->ranks->failure();
}

int32_t CudaRanks::least(int32_t own) {
  std::vector<int32_t> all(static_cast<size_t>(context_->all->size()));
  context_->all->all_gather(&own, sizeof own, all.data());
  return *std::min_element(all.begin(), all.end());
}

int64_t CudaRanks::total(int64_t own) {
  std::vector<int64_t> all(static_cast<size_t>(context_->all->size()));
  context_->all->all_gather(&own, sizeof own, all.data());
  int64_t sum = 0;
  for (const int64_t of_rank : all) sum += of_rank;
  return sum;
}

void CudaRanks::sum(Rows x, int64_t rows) {
  const int64_t count = rows * x.width;
  if (!limits_.deterministic) return collectives_->all_reduce(x.data, x.dtype, count, stream_);
  with_type(x.dtype, [&]<typename T>(T) { sum_in_order(data<T>(x), count); });
}

template <typename T>
void CudaRanks::sum_in_order(T* x, int64_t count) {
  // Whole packs, so that a piece's arithmetic is that of the whole.
  const int64_t most = parts_.bytes() / (collectives_->size() * int64_t{sizeof(T)}) / kPiece * kPiece;
  LLMB_CHECK(most > 0 || count == 0);
  for (int64_t at = 0; at < count; at += most) {
    const int64_t now = std::min(most, count - at);
    collectives_->all_gather(x + at, now * int64_t{sizeof(T)}, parts_.data(), stream_);
    cuda::sum_parts(parts_.data<const T>(), collectives_->size(), now, x + at, stream_);
  }
}

const TokenId* CudaRanks::own_tokens(const TokenId* tokens, int64_t rows) {
  cuda::own_tokens(tokens, share_.vocab.begin, share_.vocab.count(), rows, tokens_.data<TokenId>(), stream_);
  return tokens_.data<const TokenId>();
}

void CudaRanks::clear_other_rows(const TokenId* tokens, int64_t rows, Rows x) {
  cuda::clear_other_rows(tokens, share_.vocab.begin, share_.vocab.count(), rows, x.width, data<float>(x), stream_);
}

Rows CudaRanks::whole_logits(Rows own, int64_t rows) {
  LLMB_CHECK(rows <= limits_.max_logit_rows && own.width == share_.vocab.count());
  const int64_t part = rows * most_vocab_;  // as much of each rank
  float* const own_part = logit_parts_.data<float>() + collectives_->rank() * part;
  cuda::check(cudaMemcpyAsync(own_part, own.data, static_cast<size_t>(rows * own.width) * sizeof(float),
                              cudaMemcpyDeviceToDevice, stream_),
              "cudaMemcpyAsync");
  collectives_->all_gather(own_part, part * int64_t{sizeof(float)}, logit_parts_.data(), stream_);
  cuda::join_columns(logit_parts_.data<const float>(), vocab_ends_, most_vocab_, rows, logits_.data<float>(), stream_);
  return {logits_.data(), DType::kF32, vocab_ends_.back()};
}

void CudaRanks::rms_norm(Rows x, int64_t first_column, const DeviceBuffer& weight, float eps, int64_t rows) {
  const int64_t width = weight.rows().width;
  float* const own = square_sums_.data<float>();
  float* const all = own + limits_.max_num_tokens + 1;
  LLMB_CHECK(square_sums_.bytes() > 0 && rows <= limits_.max_num_tokens);
  with_type(x.dtype, [&]<typename T>(T) {
    cuda::square_sums(data<const T>(x) + first_column, x.width, width, rows, own, stream_);
    collectives_->all_gather(own, (rows + 1) * int64_t{sizeof(float)}, all, stream_);
    cuda::norm_by_sums(data<T>(x) + first_column, x.width, width, rows, all, collectives_->size(),
                       data<const float>(weight.rows()), eps, stream_);
  });
}

}  // namespace llmb
