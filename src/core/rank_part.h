// Which part of a model each of several ranks computes.
//
// Tensor parallel (Shoeybi et al. 2019, arXiv:1909.08053): each rank has some heads of q, k and v, some columns of the
// MLP, some experts and some of the vocabulary. What its O and down projections and its experts give is a part of a sum
// over ranks. Ranks share one set of keys and values where there are fewer of these than ranks, or where that makes
// their numbers of query heads even. Ranks wait for each other behind attention and behind the MLP, so each of the two
// is divided evenly by itself. Routers are every rank's. Behind such sums each adds a part of the rows to the residual
// stream and norms it, where there are enough of them (sequence parallel: backend/cpu/cpu_ops_rows.cpp and
// backend/cuda/divided_rows.h).
//
// Pipeline parallel (Narayanan et al. 2021, arXiv:2104.04473): stages of ranks have some layers each, one behind the
// other, and hand the residual stream on. The first stage embeds tokens, the last one draws them, and has what lies behind
// the last layer: heads, and a layer that drafts. Layers that attend to another one's keys and values stand in its stage.
//
// Context parallel: ranks with the same part of the model share out the rows of each step, prompts' above all, and give
// each other keys and values (backend/cpu/step_rows.h, backend/cuda/context_rows.h). Each keeps those of all positions, or
// with divided keys and values those of its slice of each block (backend/cpu/kv_slices.h,
// backend/cuda/gathered_slices.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"
#include "core/stage_cut.h"

namespace llmb {

// Raised whenever ranks get other parts than before: sums over ranks round otherwise then.
inline constexpr int64_t kTensorPartsVersion = 2;

// Positions in a rank's slice of a block, where ranks divide keys and values: they are a segment of attention.
inline constexpr int32_t kSliceTokens = 256;

struct Range {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
  bool holds(int64_t i) const { return i >= begin && i < end; }
};

// The work that stages of a pipeline are balanced for, as far as a job knows it: nothing of it changes a result.
struct StageRows {
  int32_t prompt_permille = 0;  // of the time that layers take, in steps of prompts, whose rows need no logits
  int32_t mean_position = 0;
  int32_t answer_rows = 0;  // of a step of answers; 0: not known
  StageCosts costs = {};    // of these rows, as rank 0 measured them; none: as counted
};

// One rank of so many. Ranks of a stage are neighbours, and in a stage those that have its parts of layers.
struct RankPart {
  int32_t rank = 0;
  int32_t tensor_size = 1;  // ranks that have a part of each layer of their stage
  int32_t num_stages = 1;
  int32_t context_size = 1;  // ranks that have the same part of the model
  bool divides_kv = false;   // among these, by position
  StageRows rows = {};

  int32_t stage_size() const { return tensor_size * context_size; }  // in ranks
  int32_t num_ranks() const { return stage_size() * num_stages; }
  int32_t tensor_rank() const { return rank % tensor_size; }
  int32_t context_rank() const { return rank / tensor_size % context_size; }
  int32_t stage() const { return rank / stage_size(); }
  int32_t num_slices() const { return divides_kv ? context_size : 1; }  // of a block's positions
  bool is_first_stage() const { return stage() == 0; }
  bool is_last_stage() const { return stage() + 1 == num_stages; }
};

// Its part of a model.
struct ModelShare {
  Range q_heads, kv_heads;
  Range mlp;         // columns of dense MLPs
  Range shared_mlp;  // of the expert that all tokens go through
  Range experts;
  Range vocab;
  Range layers;
  Range state_keys, state_values;    // heads of recurrent states; of kShortConv's one value head, its channels
  bool adds_biases = true;           // to sums over ranks: one rank does
  bool embeds = true, draws = true;  // tokens: the first stage, and the last
  struct OfLayer {
    Range kv_heads, mlp;
  };
  std::vector<OfLayer> of_layers = {};  // [num_used_layers()] of the model, where they differ in these; else empty

  const Range& kv_heads_of(int32_t layer) const { return of_layers.empty() ? kv_heads : of_layers[layer].kv_heads; }
  const Range& mlp_of(int32_t layer) const { return of_layers.empty() ? mlp : of_layers[layer].mlp; }
};

// kUnsupported, naming what of the model cannot be divided so. quantization: of weights, as they are loaded. REQUIRES: all
// sizes are at least 1
Status check_ranks(const ModelConfig& config, int32_t tensor_size, int32_t num_stages, int32_t context_size = 1,
                   Quantization quantization = Quantization::kNone);

// REQUIRES: check_ranks() is ok
ModelShare share_of(const ModelConfig& config, const RankPart& part);

// The config that a rank's forward pass follows: sizes are its own, but for num_experts.
ModelConfig config_of(const ModelConfig& config, const ModelShare& share);

}  // namespace llmb
