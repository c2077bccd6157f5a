// Heads that guess tokens from the last hidden state, each for a place further behind the next token (Medusa: Cai et
// al. 2024, arXiv:2401.10774). A head is some blocks x + SiLU(W x + b) and an LM head of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"
#include "core/rank_part.h"
#include "formats/safetensors.h"
#include "model/ops.h"

namespace llmb {

struct MedusaHead {
  std::vector<std::unique_ptr<LinearWeight>> blocks;  // [hidden_size, hidden_size], with bias
  std::unique_ptr<LinearWeight> lm_head;              // [vocab_size, hidden_size], of a rank its part
};

// A folder as published: config.json with medusa_num_heads and medusa_num_layers, and medusa_lm_head.safetensors with
// HEAD.BLOCK.linear.weight, .bias and HEAD.BLOCKS.weight, all of them perhaps behind "medusa_head.".
class MedusaFiles {
 public:
  // Only headers are read. Every tensor is there, in the shape that heads of this model have. kNotFound, kDataLoss,
  // kInvalidArgument (another model's heads), kUnsupported (a pickled file; the message says how to convert it).
  static Result<MedusaFiles> open(const std::string& dir, const ModelConfig& model);

  int32_t num_heads() const { return num_heads_; }
  // vocab: the tokens whose rows of LM heads are wanted
  Result<std::vector<MedusaHead>> load(WeightMaker& maker, const Range& vocab) const;

 private:
  MedusaFiles(std::string dir, const ModelConfig& model, Checkpoint checkpoint)
      : dir_(std::move(dir)), model_(model), checkpoint_(std::move(checkpoint)) {}
  Status read_config();
  Status check_shapes() const;
  std::string name(int32_t head, int32_t part) const;

  std::string dir_;
  ModelConfig model_;
  Checkpoint checkpoint_;
  std::string prefix_;  // of all names
  int32_t num_heads_ = 0, num_blocks_ = 0;
};

// The heads behind a transformer: keeps the hidden states of its sample rows, and guesses from those that a plan of
// heads names. Memory is allocated in the constructor only. One thread drives it.
class MedusaHeads {
 public:
  // `ops` outlives it. A plan has at most max_rows rows, a step as many sample rows.
  MedusaHeads(const ModelConfig& model, std::vector<MedusaHead> heads, Ops& ops, int64_t max_rows);

  // Where the transformer leaves the last norm's output for its sample rows.
  Rows hidden() const { return hidden_->rows(); }
  // Samples rows_per_head rows for each of the first heads. The step's sample rows name rows of hidden(). `logits`:
  // room for max_logit_rows.
  void forward(int64_t rows_per_head, int64_t num_samples, Rows logits, int64_t max_logit_rows);

 private:
  void run_head(const MedusaHead& head, int64_t rows);

  const std::vector<MedusaHead> heads_;
  Ops& ops_;
  std::unique_ptr<DeviceBuffer> hidden_;          // [max_rows, hidden_size]
  std::unique_ptr<DeviceBuffer> gathered_;        // [max_rows, hidden_size]
  std::unique_ptr<DeviceBuffer> zeros_;           // [max_rows, hidden_size] fp32
  std::unique_ptr<DeviceBuffer> sum_;             // [max_rows, hidden_size] fp32  a block's x
  std::unique_ptr<DeviceBuffer> x_;               // [max_rows, hidden_size]  the same, rounded
  std::unique_ptr<DeviceBuffer> linear_, delta_;  // [max_rows, hidden_size]
};

}  // namespace llmb
