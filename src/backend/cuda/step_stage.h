// A step's plan on its way to the device: packed into pinned memory, sent by one copy, found there at addresses that
// depend only on how many rows the step is laid out for, so that a recorded step can be replayed on the next plan. The
// plan goes as it is, and is resolved there (kernels/cuda/resolve_step.h): attention's work list is made for the
// longest context that there can be.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/attention_kinds.h"
#include "backend/cuda/expanded_prefill.h"
#include "backend/cuda/sample_parts.h"
#include "core/kept_rows.h"
#include "core/rank_part.h"
#include "core/row_parts.h"
#include "core/step_plan.h"
#include "core/step_split.h"
#include "kernels/cuda/block_copy.h"
#include "kernels/cuda/expand_latents.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/paged_attention.h"
#include "kernels/cuda/paged_attention_shared.h"
#include "kernels/cuda/resolve_step.h"
#include "kernels/cuda/state_entries.h"

namespace llmb {

// The rows that a step is laid out for: its plan's, or more.
struct StepShape {
  int32_t num_tokens = 0;
  int32_t num_seqs = 0;  // of attention: entries, and rows of trees that lie behind their place
  int32_t num_samples = 0;
  StepSplit second;  // where its second part begins; row 0: the step is in one
  ExpandedSize expanded;  // nothing in a step of two parts, and in one that is recorded
  int32_t num_kept = 0;   // rows behind Ops::narrow_step(); 0: all, as in such steps
  Range own;              // rows that this rank computes of those that ranks share out; none: all of the step

  bool is_split() const { return second.row > 0; }
  bool is_shared_out() const { return own.count() > 0; }
  int32_t num_own() const { return is_shared_out() ? static_cast<int32_t>(own.count()) : num_tokens; }
  // Attention's work lists: one for each part, or for all rows and for those that are kept.
  int num_lists() const { return is_split() || num_kept > 0 ? 2 : 1; }
};

inline constexpr int kMaxStepParts = 2;

StepShape shape_of(const StepPlan& plan);

// How attention reads the prefixes that sequences share.
enum class Sharing { kNone, kMma, kWgmma };

// Which of attention's kernels a step runs.
struct StepKind {
  Sharing sharing = Sharing::kNone;
  int32_t least_window = 0;  // of layers with windows that share; 0: none of them does
  bool is_tall = false;   // there may be units of more than kTileRows rows: they go to Hopper's kernel
  bool has_tree = false;  // some rows lie behind their place
  bool is_mtp = false;    // StepPlan::is_mtp: the layer behind the last one alone

  bool shares_in(int32_t window) const {
    return sharing != Sharing::kNone && (window == 0 || (least_window > 0 && window >= least_window));
  }
  auto operator<=>(const StepKind&) const = default;
};

// The windows of a model's layers.
struct AttentionWindows {
  std::vector<int32_t> of_layers;  // each once, the widest first; 0, the widest, for layers that see all positions
  int32_t widest_group = 0;        // layer group in which layers with the first of them are
  std::vector<int32_t> of_groups = {0};  // LayerGroups::windows
};

// Device addresses. Padded tokens are of no entry, padded sample rows have token row -1, padded groups no rows.
struct StepArrays {
  StepShape shape;
  TokenId* tokens = nullptr;             // [num_tokens]
  const cuda::StepRow* rows = nullptr;   // [num_tokens]
  const StepEntry* entries = nullptr;    // [num_seqs]
  const cuda::StateRows* states = nullptr;  // [num_seqs]  where the model has recurrent states
  const int32_t* block_start = nullptr;  // [num_seqs]  into block tables
  const int32_t* sample_rows = nullptr;  // [num_samples]  rows of tokens
  SampleRow* samples = nullptr;          // [num_samples]
  const SampleGroup* groups = nullptr;   // [num_samples]
  struct AttentionList {
    int32_t num_ctas = 0;
    const int32_t* cta_start = nullptr;    // [num_ctas + 1]
    cuda::AttentionItem* items = nullptr;  // [<= max_items]
  } lists[kMaxStepParts][cuda::kMaxWorkLists];  // StepShape::num_lists() of each kind of attention
  const BlockId* block_ids = nullptr;    // [blocks of all tables, num_layer_groups]
  int32_t* positions = nullptr;          // [num_tokens]  set by resolve_step, as slots
  int32_t* slots = nullptr;              // [num_layer_groups, num_tokens]
  const TokenBias* bias = nullptr;       // what the rows' slices index: of all rows, or of a part
  TokenPenalty* penalty = nullptr;       // the same
  const uint32_t* masks = nullptr;       // [plan.num_masks(), mask_words]
  const int32_t* parent_rows = nullptr;  // [num_tokens]; null: all rows are in their place
  StepKind kind;
  cuda::SharedAttentionWork shared[kMaxStepParts];  // without positions and states
  // The members below are not part of a recorded step.
  const cuda::BlockPair* copies = nullptr;  // [num_copies], then those of swaps out and of swaps in
  int32_t num_copies = 0, num_swaps_out = 0, num_swaps_in = 0;
  const cuda::ExpandedBlock* expanded_blocks = nullptr;  // [shape.expanded.num_blocks]
  // With anything expanded: rows whose attention is over latents, of those of this rank. Valid until the next upload().
  struct RowRange {
    int64_t begin = 0, end = 0;
  };
  std::span<const RowRange> absorbed;
  // Where rows are kept; their positions in the sequences are those of `positions`.
  const int32_t* kept_rows = nullptr;            // [shape.num_kept]  rows of tokens, ascending
  const cuda::StepRow* kept_places = nullptr;    // [shape.num_kept]  as `rows`
  const int32_t* kept_sample_rows = nullptr;     // [num_samples]  as sample_rows, among these
  // Where ranks share out rows: which these are, and which sample rows (SampledParts). Valid until the next upload().
  std::span<const int64_t> row_bounds, sample_bounds;  // [ranks + 1]
  const int32_t* part_samples = nullptr;               // [num_samples]  SampledParts::rows
  const int32_t* sample_places = nullptr;              // [num_samples]
  // Not empty: the rows' biases and penalties do not fit at once. Rows are sampled part by part, after
  // upload_tables() of theirs; such a step cannot be replayed. Valid until the next upload().
  std::span<const SamplePart> parts;
};

struct StepLimits {
  int32_t max_num_tokens = 0;
  int32_t max_num_seqs = 0;  // entries
  int32_t max_num_samples = 0;
  int32_t max_blocks_per_seq = 0;  // in each layer group
  int32_t max_plans_in_flight = kMaxPlansInFlight;
  int64_t max_num_biases = 0, max_num_penalties = 0;  // of rows that are sampled at once; every row's fit
  int32_t num_layer_groups = 1;
  int32_t mask_words = 0;  // of a sample row's mask
  int32_t max_num_host_blocks = 0;  // of the host's pool
  bool has_states = false;          // entries have state slots
  bool narrows = false;           // some layers have no keys and values of their own
  int32_t part_sms = 0;  // multiprocessors that attention has in steps of two parts; 0: there are no such steps

  // A sequence's tokens are copied to one block at a time.
  int32_t max_num_copies() const { return 2 * max_num_seqs * num_layer_groups; }
  // Each block of the host's pool goes out and in once, but for one that is copied as it comes in.
  int64_t max_num_pairs() const { return max_num_copies() + int64_t{2} * max_num_host_blocks; }
  bool hold_copies_of(const StepPlan& plan) const;
  // Those of decode steps and of verified drafts.
  int32_t max_num_shared_tokens() const { return std::min(max_num_tokens, max_num_samples); }
};

// Latents that steps may expand.
struct ExpansionLimits {
  LatentConfig latent;
  int64_t max_blocks = 0;  // of one head; 0: nothing
};

// One thread drives it. At most limits.max_plans_in_flight steps are on their way: upload() of a step waits for nobody,
// so the step so many before it must have run.
class StepStage {
 public:
  // Throws cuda::CudaError.
  StepStage(const StepLimits& limits, const std::vector<AttentionKind>& kinds, const AttentionWindows& windows,
            const ExpansionLimits& expansion);

  // Whether some step's attention may have a launch over shared prefixes.
  bool may_share() const { return may_share_; }
  // How many kinds of steps there are in which every row is sampled.
  int32_t num_kinds(bool has_drafts, bool has_trees) const;
  // That of one token for each sequence.
  StepKind decode_kind() const;
  // The one of these with the most launches.
  StepKind fullest_decode_kind() const;

  // The part of a plan that its step expands where it is queued op by op, in one part, of StepShape's rows `own`. For the
  // next upload().
  ExpandedSize expand(const StepPlan& plan, const Range& own);

  // How many rows behind the last layer with keys and values of its own are kept of a plan that samples something and
  // has rows in their places alone; 0: all. For the next upload().
  int32_t keep(const StepPlan& plan) { return find_kept_rows(plan, &kept_) ? static_cast<int32_t>(kept_.rows.size()) : 0; }

  // The rows that rank `rank` computes of a plan whose rows are those of ranks from each bound on; for the next upload(),
  // of a step that is queued op by op, in one part.
  Range share_out(const StepPlan& plan, std::span<const int64_t> row_bounds, int rank);

  // Where a step of this shape lies.
  StepArrays arrays(const StepShape& shape, const StepKind& kind) const;

  // Queues the copy, and that of biases and penalties where there are no parts. REQUIRES: shape holds plan, limits
  // hold shape.
  StepArrays upload(const StepPlan& plan, const StepShape& shape, cudaStream_t stream);

  // Queues the copy of a group's biases and penalties to where arrays() says. They may lie in pageable memory, which
  // the copy has left when the call returns.
  void upload_tables(const SamplePart& part, cudaStream_t stream);

 private:
  struct Layout;  // byte offsets of a shape's arrays
  Layout layout(const StepShape& shape) const;
  void pack(const StepPlan& plan, const StepShape& shape, const Layout& at, uint8_t* out);
  void upload_masks(const StepPlan& plan, cudaStream_t stream);
  void pack_samples(const StepPlan& plan, const StepShape& shape, const Layout& at, uint8_t* out) const;
  void pack_attention(const StepPlan& plan, const StepShape& shape, const Layout& at, uint8_t* out);
  void pack_states(const StepPlan& plan, const StepShape& shape, uint8_t* out);
  void pack_kept(const StepPlan& plan, const StepShape& shape, const Layout& at, uint8_t* out);
  void pack_expanded(const StepPlan& plan, const StepShape& shape, cuda::ExpandedBlock* blocks);
  bool is_expanded(size_t kind) const { return kinds_[kind].shape.joined_value_dim > 0; }
  // A kind's, of what the step expands.
  cuda::AttentionShape attention_shape(size_t kind, const StepShape& shape) const;
  struct SharedLayout;
  SharedLayout shared_layout() const;
  // Entries of a plan, which are a part's: all of them, or up to the border or from it on.
  struct Entries {
    int32_t begin = 0, end = 0;
    bool hold(int32_t entry) const { return entry >= begin && entry < end; }
  };
  // Which rows of a part share reads -> shared_schedules_[part].
  bool schedule_shared(const StepPlan& plan, const cuda::AttentionBatch& batch, int part, const Entries& own,
                       int32_t ctas);
  void find_least_positions(const StepPlan& plan);
  int32_t num_shared_positions(const StepPlan& plan, std::span<const int32_t> entries, const SharedPrefix& prefix) const;
  void upload_shared(int num_parts, cudaStream_t stream);
  StepKind kind_of(const StepShape& shape) const;
  int32_t num_ctas(size_t kind, bool is_split) const;
  void add_sequences(const StepPlan& plan, const StepSplit& second);
  void add_own_sequences(const StepPlan& plan, const Range& own);
  // body(entry, first row, row behind the last one) for each entry with rows among `own`; none: of all rows
  template <typename Body>
  static void for_own_entries(const StepPlan& plan, const Range& own, const Body& body) {
    for (int32_t e = 0; e < plan.num_entries(); ++e) {
      const int64_t begin = plan.query_start[e], end = plan.query_start[e + 1];
      if (own.count() == 0) body(e, static_cast<int32_t>(begin), static_cast<int32_t>(end));
      else if (begin < own.end && end > own.begin)
        body(e, static_cast<int32_t>(std::max(begin, own.begin)), static_cast<int32_t>(std::min(end, own.end)));
    }
  }
  void place_rows(const StepPlan& plan);
  void place_tables(const StepPlan& plan);
  // The group with its biases and penalties in pinned memory.
  SamplePart staged(const SamplePart& part);

  const StepLimits limits_;
  const std::vector<AttentionKind> kinds_;
  const cuda::AttentionShape attention_;  // the first kind's, which is the only one where prefixes are shared
  const int32_t num_ctas_;                // the same, of steps in one part
  const AttentionWindows windows_;
  const ExpansionLimits expansion_;
  const bool may_share_;
  std::vector<cuda::AttentionSchedule> schedules_[kMaxStepParts];  // of each kind
  cuda::SharedAttentionSchedule shared_schedules_[kMaxStepParts];
  std::vector<cuda::SharedPositions> shared_positions_;
  std::vector<int32_t> sharing_seqs_;  // that these index
  std::vector<int32_t> least_position_;  // [num_entries]  of the first row, wherever the step is resolved
  int32_t least_windows_[kMaxStepParts] = {};  // StepKind's
  std::vector<cuda::PinnedMemory> host_, host_tables_, host_masks_, host_shared_;  // [max_plans_in_flight]  in turn
  cuda::DeviceMemory device_, device_tables_, device_masks_, device_shared_;
  cuda::DeviceMemory places_;  // [1 + num_layer_groups, max_num_tokens]  positions and slots
  // The last plan's.
  std::vector<SamplePart> parts_;
  std::vector<cuda::StepRow> rows_;
  std::vector<int32_t> num_drafts_;  // [num_entries]
  // Block i of an entry's table in layer group g is at (table_start_[entry] + i) * num_layer_groups + g.
  std::span<const int32_t> table_start_;  // [num_entries]
  std::span<const BlockId> block_ids_;
  std::vector<int32_t> joined_start_;  // what these view where there are several groups
  std::vector<BlockId> joined_ids_;
  bool has_tree_ = false;                                         // some row is not in its place
  std::vector<int32_t> query_start_, context_len_, block_start_;  // of attention's sequences
  std::vector<uint8_t> expanded_seqs_, absorbed_seqs_;  // of attention's sequences
  std::vector<int32_t> expanded_start_;  // the first of a sequence's expanded blocks
  std::vector<StepArrays::RowRange> absorbed_;
  KeptRows kept_;
  std::vector<int64_t> row_bounds_;
  SampledParts sampled_;
  int32_t second_seq_ = 0;                                        // the first of the second part
  size_t turn_ = 0;
};

}  // namespace llmb
