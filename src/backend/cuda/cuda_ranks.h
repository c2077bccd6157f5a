// A rank's side of the ops in which ranks on GPUs meet, tensor parallel, and of the residual stream's way from stage to
// stage (core/rank_part.h). Those of ranks that share out rows are in context_rows.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/cuda/context_rows.h"
#include "backend/cuda/device_collectives.h"
#include "backend/cuda/divided_rows.h"
#include "backend/cuda/rank_watch.h"
#include "backend/ranks/rank_context.h"
#include "core/model_config.h"
#include "core/rank_part.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/sample_parts.h"
#include "model/ops.h"

namespace llmb {

// As share_of(), but where there are as many sets of keys and values as ranks, their groups of heads are not parted, as
// attention's kernels take whole ones. A rank needs no more of them for it.
ModelShare share_of_gpu(const ModelConfig& config, const RankPart& part);

struct CudaRanksLimits {
  int64_t max_num_tokens = 0;
  int64_t max_logit_rows = 0;
  int32_t max_top = 0;  // of the best tokens of a row
  bool deterministic = false;  // sums are added in the order of ranks, whatever NCCL would do
  int64_t number_bytes = 2;    // of activations
  int64_t max_num_samples = 0;
};

// Calls queue work and return; they can be recorded. Driven by one thread. Throws CudaError.
class CudaRanks {
 public:
  // All ranks call it at a time. kDeviceError: no NCCL, or a rank has failed.
  static Result<std::unique_ptr<CudaRanks>> join(std::shared_ptr<RankContext> context, const ModelConfig& whole,
                                                 const CudaRanksLimits& limits, cudaStream_t stream);

  ~CudaRanks();
  CudaRanks(const CudaRanks&) = delete;
  CudaRanks& operator=(const CudaRanks&) = delete;

  // A step is queued; the oldest one has ended, and took the device so long.
  void begin_step(int64_t step);
  void end_step(const Status& status, double device_ms);
  // The error that ends steps of all ranks; ok: none.
  Status failure();
  // The least of all ranks' numbers, and their sum: they wait for each other.
  int32_t least(int32_t own);
  int64_t total(int64_t own);

  // Whether ranks have parts of the same layers: the ops that follow are these ranks'.
  bool has_parts() const { return tensor_ != nullptr; }
  int32_t size() const { return tensor_->size(); }  // ranks that divide layers
  int32_t num_stages() const { return context_->part.num_stages; }
  ContextRows* context_rows() const { return rows_.get(); }  // null: no others have this one's part of the model
  // Each element is the sum of all ranks'. fp32: one rank's at most is not zero
  void sum(Rows x, int64_t rows);
  // Whether each rank sums its own of so many rows alone, which then are alone in what is added to them.
  bool divides_rows(int64_t rows) const { return rows >= min_divided_rows_; }
  Range own_rows(int64_t rows) const { return rows_of_rank(rows, tensor_->size(), tensor_->rank()); }
  // This rank's rows are the sums of all ranks', in the order of ranks; the others are not. REQUIRES, of this and the
  // next one: x has room for the ranks' rows as rows_with_room() says
  void sum_own_rows(Rows x, int64_t rows);
  // Gives the others this rank's rows, and takes theirs.
  void share_rows(Rows x, int64_t rows);
  int64_t rows_with_room(int64_t rows) const { return rows_of_each(rows, tensor_->size()) * tensor_->size(); }
  // The tokens as rows of this rank's part of the vocabulary, and zeros where they are in another one's.
  const TokenId* own_tokens(const TokenId* tokens, int64_t rows);
  void clear_other_rows(const TokenId* tokens, int64_t rows, Rows x);
  // Sampling rows of this rank's logits needs it: they are of a part of the vocabulary.
  const cuda::SampleRanks& sampling() const { return sampling_; }
  // Ops::rms_norm_over_ranks.
  void rms_norm(Rows x, int64_t first_column, int64_t num_groups, const DeviceBuffer& weight, float eps, int64_t rows);

  // From the rank in this one's place in the stage before, and to that in the next stage; nothing where there is none.
  // Where rows are divided, the first stream, the residual's, has this rank's rows alone.
  void receive(const std::vector<Rows>& streams, int64_t rows);
  void send(const std::vector<Rows>& streams, int64_t rows);

 private:
  CudaRanks(std::shared_ptr<RankContext> context, const ModelConfig& whole, const CudaRanksLimits& limits,
            std::unique_ptr<DeviceCollectives> tensor, std::unique_ptr<DeviceCollectives> stages,
            std::unique_ptr<ContextRows> rows, cudaStream_t stream);
  void allocate_parts(const ModelConfig& whole);
  std::vector<DeviceCollectives*> all_calls() const;
  void abort();
  template <typename T>
  void sum_in_order(T* x, int64_t count);
  template <typename T>
  void sum_own_in_order(T* x, int64_t width, int64_t rows);
  // Calls body(data, bytes) for what passes from stage to stage.
  template <typename Body>
  void for_each_passed_on(const std::vector<Rows>& streams, int64_t rows, const Body& body) const;

  const std::shared_ptr<RankContext> context_;
  const ModelShare share_;
  const CudaRanksLimits limits_;
  const cudaStream_t stream_;
  const std::unique_ptr<DeviceCollectives> tensor_;  // of those with parts of the same layers; null: it has them whole
  const std::unique_ptr<DeviceCollectives> stages_;  // of all; null: there is one stage
  const std::unique_ptr<ContextRows> rows_;  // null: all rows of each step are this one's
  const int64_t min_divided_rows_;
  cuda::DeviceMemory tokens_;       // [max_num_tokens]
  cuda::DeviceMemory parts_;        // of sums, of all ranks
  cuda::DeviceMemory sample_mail_;  // [size, sample_mail_bytes]
  cuda::SampleRanks sampling_;
  cuda::DeviceMemory square_sums_;  // [max_num_tokens + 1] fp32, then [size, max_num_tokens + 1]; where norms need it
  std::optional<RankWatch> watch_;   // last: it uses the rest
};

}  // namespace llmb
