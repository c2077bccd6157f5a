#include "backend/cuda/cuda_ranks.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_weights.h"
#include "kernels/cuda/rank_parts.h"
#include "kernels/cuda/tuning.h"

namespace llmb {

namespace {

constexpr int64_t kPiece = 64;  // elements of a part, or whole multiples of them, at a time

int64_t min_divided_rows(const DeviceCollectives* tensor, const ModelConfig& whole, const CudaRanksLimits& limits) {
  if (tensor == nullptr) return INT64_MAX;
  const DividedRowsCase rows{tensor->size(), whole.hidden_size, limits.number_bytes, limits.deterministic};
  return llmb::min_divided_rows(rows, cuda::tuning::kMeetingUs);
}

}  // namespace

ModelShare share_of_gpu(const ModelConfig& config, const RankPart& part) {
  ModelShare share = share_of(config, part);
  const int64_t num_kv = config.num_key_value_heads, size = part.tensor_size, rank = part.tensor_rank();
  if (num_kv < size || config.heads_differ()) return share;
  const int64_t group = config.num_attention_heads / num_kv;
  share.kv_heads = {rank * num_kv / size, (rank + 1) * num_kv / size};
  share.q_heads = {share.kv_heads.begin * group, share.kv_heads.end * group};
  for (ModelShare::OfLayer& layer : share.of_layers) layer.kv_heads = share.kv_heads;
  return share;
}

Result<std::unique_ptr<CudaRanks>> CudaRanks::join(std::shared_ptr<RankContext> context, const ModelConfig& whole,
                                                   const CudaRanksLimits& limits, cudaStream_t stream) {
  const SharedRanks& ranks = *context->ranks;
  const RankPart& part = context->part;
  std::unique_ptr<DeviceCollectives> tensor, stages, others;
  const auto meet = [&](Collectives& host, std::unique_ptr<DeviceCollectives>* out) -> Status {
    auto made = DeviceCollectives::make(host, [&] { return !ranks.failure().ok(); });
    if (!ranks.failure().ok()) return ranks.failure();
    LLMB_RETURN_IF_ERROR(made.status());
    *out = std::move(*made);
    return {};
  };
  if (part.tensor_size > 1) LLMB_RETURN_IF_ERROR(meet(*context->tensor, &tensor));
  if (part.num_stages > 1) LLMB_RETURN_IF_ERROR(meet(*context->stages, &stages));
  if (part.context_size > 1) LLMB_RETURN_IF_ERROR(meet(*context->context, &others));
  std::unique_ptr<ContextRows> rows;
  if (others)
    rows = std::make_unique<ContextRows>(
        std::move(others), whole, config_of(whole, share_of_gpu(whole, part)),
        ContextRows::Limits{limits.max_num_tokens, limits.max_num_samples, limits.number_bytes}, stream);
  return std::unique_ptr<CudaRanks>(new CudaRanks(std::move(context), whole, limits, std::move(tensor),
                                                  std::move(stages), std::move(rows), stream));
}

CudaRanks::CudaRanks(std::shared_ptr<RankContext> context, const ModelConfig& whole, const CudaRanksLimits& limits,
                     std::unique_ptr<DeviceCollectives> tensor, std::unique_ptr<DeviceCollectives> stages,
                     std::unique_ptr<ContextRows> rows, cudaStream_t stream)
    : context_(std::move(context)),
      share_(share_of(whole, context_->part)),
      limits_(limits),
      stream_(stream),
      tensor_(std::move(tensor)),
      stages_(std::move(stages)),
      rows_(std::move(rows)),
      min_divided_rows_(min_divided_rows(tensor_.get(), whole, limits)) {
  if (tensor_) allocate_parts(whole);
  watch_.emplace(context_, [this] { abort(); });
}

void CudaRanks::allocate_parts(const ModelConfig& whole) {
  const int64_t size = tensor_->size();
  tokens_ = cuda::DeviceMemory(limits_.max_num_tokens * int64_t{sizeof(TokenId)});
  // Room for a row of all ranks at least, and for no more than a step's.
  const int64_t row_bytes = size * ceil_div(whole.hidden_size, kPiece) * kPiece * int64_t{sizeof(float)};
  const int64_t parts_bytes =
      std::clamp(limits_.max_num_tokens * row_bytes, row_bytes, std::max(row_bytes, cuda::tuning::kMaxRankPartsBytes));
  if (limits_.deterministic || divides_rows(limits_.max_num_tokens)) parts_ = cuda::DeviceMemory(parts_bytes);
  const cuda::SampleLimits sampled{static_cast<int32_t>(limits_.max_logit_rows)};
  sample_mail_ = cuda::DeviceMemory(size * cuda::sample_mail_bytes(sampled, limits_.max_top));
  cuda::check(cudaMemsetAsync(sample_mail_.data(), 0, static_cast<size_t>(sample_mail_.bytes()), stream_),
              "cudaMemsetAsync");
  sampling_ = {tensor_->rank(),  tensor_->size(),              static_cast<int32_t>(share_.vocab.begin),
               whole.vocab_size, sample_mail_.data<uint8_t>(), [this](int64_t bytes) {
                 uint8_t* const mail = sample_mail_.data<uint8_t>();
                 tensor_->all_gather(mail + tensor_->rank() * bytes, bytes, mail, stream_);
               }};
  const bool norms_states = whole.state.kind == StateKind::kMamba2 && whole.state.num_norms < size;
  if (whole.qk_norm == QkNorm::kAllHeads || norms_states)
    square_sums_ = cuda::DeviceMemory((size + 1) * (limits_.max_num_tokens + 1) * int64_t{sizeof(float)});
}

std::vector<DeviceCollectives*> CudaRanks::all_calls() const {
  std::vector<DeviceCollectives*> all;
  for (DeviceCollectives* const calls : {tensor_.get(), stages_.get(), rows_ ? &rows_->ranks() : nullptr})
    if (calls != nullptr) all.push_back(calls);
  return all;
}

// At a time: a call of one may stand in the stream behind one of another, which NCCL may wait for.
void CudaRanks::abort() {
  std::vector<std::thread> threads;
  for (DeviceCollectives* const calls : all_calls()) threads.emplace_back([calls] { calls->abort(); });
  for (std::thread& thread : threads) thread.join();
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
  if (!context_->ranks->failure().ok()) abort();
}

Status CudaRanks::failure() {
  LLMB_RETURN_IF_ERROR(context_->ranks->failure());
  for (DeviceCollectives* const calls : all_calls()) {
    const Status status = calls->status();
    if (status.ok()) continue;
    context_->ranks->fail(status.with_context(context_->ranks->place_of(context_->part.rank)));
    return context_->ranks->failure();
  }
  return {};
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
  if (!limits_.deterministic) return tensor_->all_reduce(x.data, x.dtype, count, stream_);
  with_type(x.dtype, [&]<typename T>(T) { sum_in_order(data<T>(x), count); });
}

template <typename T>
void CudaRanks::sum_in_order(T* x, int64_t count) {
  // Whole packs, so that a piece's arithmetic is that of the whole.
  const int64_t most = parts_.bytes() / (tensor_->size() * int64_t{sizeof(T)}) / kPiece * kPiece;
  LLMB_CHECK(most > 0 || count == 0);
  for (int64_t at = 0; at < count; at += most) {
    const int64_t now = std::min(most, count - at);
    tensor_->all_gather(x + at, now * int64_t{sizeof(T)}, parts_.data(), stream_);
    cuda::sum_parts(parts_.data<const T>(), tensor_->size(), now, x + at, stream_);
  }
}

void CudaRanks::sum_own_rows(Rows x, int64_t rows) {
  with_type(x.dtype, [&]<typename T>(T) { sum_own_in_order(data<T>(x), x.width, rows); });
}

// Ranks with fewer rows sum what is behind them, too, which nobody looks at.
template <typename T>
void CudaRanks::sum_own_in_order(T* x, int64_t width, int64_t rows) {
  const int64_t size = tensor_->size(), each = rows_of_each(rows, size), row_bytes = width * int64_t{sizeof(T)};
  const int64_t most = parts_.bytes() / (size * row_bytes);
  LLMB_CHECK(most > 0);
  for (int64_t at = 0; at < each; at += most) {
    const int64_t now = std::min(most, each - at);
    tensor_->exchange(x + at * width, each * row_bytes, now * row_bytes, parts_.data(), stream_);
    cuda::sum_other_parts(parts_.data<const T>(), static_cast<int32_t>(size), tensor_->rank(), now * width,
                          x + (tensor_->rank() * each + at) * width, stream_);
  }
}

void CudaRanks::share_rows(Rows x, int64_t rows) {
  const int64_t each = rows_of_each(rows, tensor_->size());
  tensor_->all_gather(x.from(tensor_->rank() * each).data, each * x.width * dtype_bytes(x.dtype), x.data, stream_);
}

const TokenId* CudaRanks::own_tokens(const TokenId* tokens, int64_t rows) {
  cuda::own_tokens(tokens, share_.vocab.begin, share_.vocab.count(), rows, tokens_.data<TokenId>(), stream_);
  return tokens_.data<const TokenId>();
}

void CudaRanks::clear_other_rows(const TokenId* tokens, int64_t rows, Rows x) {
  cuda::clear_other_rows(tokens, share_.vocab.begin, share_.vocab.count(), rows, x.width, data<float>(x), stream_);
}

void CudaRanks::rms_norm(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight, float eps,
                         int64_t rows) {
  const auto sharers = static_cast<int32_t>(tensor_->size() / num_groups);
  const int32_t first_sharer = tensor_->rank() / sharers * sharers;
  const int64_t width = weight.rows().width;
  float* const own = square_sums_.data<float>();
  float* const all = own + limits_.max_num_tokens + 1;
  LLMB_CHECK(square_sums_.bytes() > 0 && rows <= limits_.max_num_tokens);
  with_type(x.dtype, [&]<typename T>(T) {
    cuda::square_sums(data<const T>(x) + first_column, x.width, width, rows, own, stream_);
    tensor_->all_gather(own, (rows + 1) * int64_t{sizeof(float)}, all, stream_);
    cuda::norm_by_sums(data<T>(x) + first_column, x.width, width, rows, all + first_sharer * (rows + 1),
                       sharers, data<const float>(weight.rows()), eps, stream_);
  });
}

template <typename Body>
void CudaRanks::for_each_passed_on(const std::vector<Rows>& streams, int64_t rows, const Body& body) const {
  for (size_t i = 0; i < streams.size(); ++i) {
    const Range passed = i == 0 && divides_rows(rows) ? own_rows(rows) : Range{0, rows};
    const int64_t bytes = passed.count() * streams[i].width * dtype_bytes(streams[i].dtype);
    if (bytes > 0) body(streams[i].from(passed.begin).data, bytes);
  }
}

void CudaRanks::receive(const std::vector<Rows>& streams, int64_t rows) {
  const RankPart& part = context_->part;
  if (part.is_first_stage()) return;
  for_each_passed_on(streams, rows, [&](void* data, int64_t bytes) {
    stages_->receive(data, bytes, part.rank - part.stage_size(), stream_);
  });
}

void CudaRanks::send(const std::vector<Rows>& streams, int64_t rows) {
  const RankPart& part = context_->part;
  if (part.is_last_stage()) return;
  for_each_passed_on(streams, rows, [&](const void* data, int64_t bytes) {
    stages_->send(data, bytes, part.rank + part.stage_size(), stream_);
  });
}

}  // namespace llmb
