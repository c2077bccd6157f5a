// One step of the engine as a value: the scheduler makes a StepPlan, a backend turns it into a StepOutput.
//
// An entry is a run of rows of one sequence. A plan need not know what the plan before it gives: an entry may follow a
// group of the plan in flight. Its first row is then at base + the number of tokens that the group gives, and
// unseen_token(group) stands for the last of them. Positions, KV slots and context lengths are derived where the step
// runs (core/resolve_step.h); block tables hold the most that there can be.
//
// A group samples rows of an entry and gives 0 to num_rows tokens, in the order of the sequence:
//   kSample  one row: the token that is drawn for it.
//   kVerify  the entry's last rows: a known token, then draft tokens. Begins at the first row, gives the token that is
//            drawn for the row, and goes on at the row's child that holds this token, if there is one. So each token
//            given is the one that would be drawn without drafts.
//   kScore   rows in a prompt, each with a bias that leaves the next prompt token alone to be drawn: those tokens, with
//            their log-probabilities. The sequence has them; nothing follows such a group.
//   kBest    one row: its num_logprobs best tokens, best first, as candidates. Nothing follows such a group.
// A row that is not finite gives nothing and ends its group. A group that gives nothing counts as one token for what
// follows it: its sequence has ended, and nobody looks at the rows that follow.
//
// A row's parent is the row before it, unless parent_rows makes a tree of the drafts. Row i of an entry writes the slot
// of cache index first position + i. In a chain that is its position's place. An accepted row of a tree may lie behind
// its place (num_in_place); nothing is moved: what is not in place is computed again, by rows of the next entry. So
// nothing follows a tree's group, and a drafter puts the likeliest path first, which is always in place.
//
// Invariants (checked by validate_step_plan):
//  1. query_start has num_entries + 1 items, begins with 0 and increases; block_start has num_entries *
//     num_layer_groups + 1, begins with 0 and does not decrease.
//  2. base >= 0. follows names a group of the plan in flight, sampled or a verified chain, and max_ahead is the most
//     tokens that it gives; or follows is kNoGroup and max_ahead 0.
//  3. The block table of an entry in each layer group holds at least max_context_len(entry) tokens. Where the group's
//     layers see a window, a block that lies before the windows of all the entry's rows may stand for any other: what
//     is in it enters no result.
//  4. In a layer group, a block is written by one entry at most. What others read of it are the step's own writes.
//  5. parent_rows is empty, or names for each row a row before it in its entry; of the first row the row before it. Rows
//     in front of a verified group's first, and in entries without one, form a chain.
//  6. A negative token is the unseen_token() of a group in flight.
//  7. Groups' sample rows follow each other without gaps and sample consecutive rows of their entry: one, or in a
//     verified group the last ones. Slices and masks are in range. Modes that are reserved are not used.
//  8. In a row's slice of penalty, at most the last entry's token is an unseen_token(): it stands for one occurrence
//     more of that token, which the slice may name as well.
//  9. Swaps out run first: from blocks of the pool to blocks of the host's pool, each of which gets one at most. Then,
//     before the step and in no order, copies and swaps in from the host's pool: no block of the pool gets two, none is
//     copied from that gets one.
// 10. A state slot belongs to one entry. Copies of states run before the step and in no order: no slot gets two, none is
//     copied from that gets one.
// 11. A shared prefix names two entries or more whose tables in its layer group begin with the same num_blocks blocks,
//     at least one. Within a layer group an entry stands in shared_entries once, and prefixes enclose each other or are
//     apart; one that encloses others comes before them and is shorter.
// 12. hidden_rows is empty, or has an item >= 0 for each token. Then entries have one row and no blocks, nothing is
//     copied or followed, and the groups are those of all entries in turn, once for each head.
// 13. With is_mtp, entries have one row behind their sequence's first token, and follow nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/status.h"
#include "core/types.h"

namespace llmb {

// Plans that a backend holds at most where one may follow another: only the one right before it. Of plans that do not it
// may hold more (core/plans_in_flight.h).
inline constexpr int32_t kMaxPlansInFlight = 2;
inline constexpr int32_t kNoGroup = -1;

// Stands in a plan for the last token that group `group` of the plan before gives.
constexpr TokenId unseen_token(int32_t group) { return -1 - group; }

struct StepEntry {
  SeqId seq = 0;
  int32_t base = 0;  // position of the first row, or what that is counted from
  int32_t follows = kNoGroup;
  int32_t max_ahead = 0;        // tokens that the group which it follows gives at most
  int32_t adapter = -1;         // -1: the base model
  int32_t state_slot = -1;      // of layers with a recurrent state; -1: none
  bool is_indivisible = false;  // all of it must be in one step (bidirectional attention)
  int32_t second_text = INT32_MAX;  // the position at which the second of a pair of texts begins (token types)

  int32_t max_base() const { return base + max_ahead; }
};

// The numbers are known to kernels.
enum class SampleMode : int32_t {
  kSample,
  kVerify,
  kBest,
  kScore,
  kPool,   // reserved: a vector
};

struct SampleGroup {
  SeqId seq = 0;                      // that gets the tokens; the entry's, or one that shares the entry's rows
  int32_t entry = 0;                  // whose rows are sampled
  int32_t row_begin = 0, row_end = 0;  // into sample_rows
  SampleMode mode = SampleMode::kSample;

  int32_t num_rows() const { return row_end - row_begin; }
};

// Everything a sampler needs for one token. Slices index the plan's shared arrays.
struct SampleRow {
  int32_t group = 0;
  int32_t token_row = 0;  // row of the plan's tokens whose logits are sampled
  uint32_t position = 0;  // that the sampled token will take; set by resolve_step
  uint32_t choice = 0;    // of the request's answers: each draws numbers of its own
  PhiloxKey rng;
  float temperature = 0;  // 0: greedy
  float top_p = 1;
  int32_t top_k = 0;  // 0: off
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t num_logprobs = -1;                   // -1: none wanted; k >= 0: the sampled token's and the k best
  int32_t mask = -1;                           // into masks: the tokens that may be chosen; -1: all
  int32_t bias_begin = 0, bias_end = 0;        // into bias
  int32_t penalty_begin = 0, penalty_end = 0;  // into penalty
};

// Added to a token's logit behind the mask, before penalties and temperature; -infinity forbids the token (min_tokens).
struct TokenBias {
  TokenId token;
  float bias;
};

// A token that the row's prompt or output holds. Each token at most once in a row's slice, but for invariant 8.
struct TokenPenalty {
  TokenId token;
  int32_t output_count;  // 0: in the prompt only
};

struct BlockCopy {
  int32_t layer_group = 0;
  BlockId from = 0, to = 0;
};

// Blocks that the tables of several entries begin with: attention may read them once for all their rows. No result
// depends on which of them are named.
struct SharedPrefix {
  int32_t layer_group = 0;
  int32_t num_blocks = 0;
  int32_t entry_begin = 0, entry_end = 0;  // into shared_entries
};

// Copies all that a sequence's tokens left in a state.
struct StateCopy {
  int32_t from = 0, to = 0;  // slots
};

struct StepPlan {
  int64_t step = 0;              // counts from 0 in a run
  int32_t block_size = 16;       // tokens per KV block
  int32_t num_layer_groups = 1;  // each has block tables of its own
  int32_t num_layers = 0;        // of the model, the first ones, then its head: to draft by; 0: all
  // To draft by the layer behind the last one (MtpConfig), which runs in place of all others: behind the hidden state
  // in the slot before each row's, a step's of all layers or one's of this kind.
  bool is_mtp = false;

  std::vector<TokenId> tokens;       // [num_tokens]  new tokens of all entries, packed; < 0: invariant 6
  std::vector<int32_t> parent_rows;  // [num_tokens], or empty: no trees
  // [num_tokens], or empty. To draft by heads behind the model's last layer, which run in its place: each token's row
  // is the hidden state behind which the token was given, as the sample row of the newest plan of all layers.
  std::vector<int32_t> hidden_rows;

  std::vector<StepEntry> entries;      // [num_entries]
  std::vector<int32_t> query_start;    // [num_entries + 1]  rows of each entry
  std::vector<int32_t> block_start;    // [num_entries * num_layer_groups + 1]  into block_ids
  std::vector<BlockId> block_ids;      // block tables, packed
  std::vector<BlockCopy> block_copies;
  std::vector<StateCopy> state_copies;
  std::vector<BlockCopy> swaps_out;  // to the host's pool
  std::vector<BlockCopy> swaps_in;   // from the host's pool

  std::vector<SharedPrefix> shared_prefixes;  // by layer group
  std::vector<int32_t> shared_entries;        // of the prefixes

  std::vector<SampleGroup> groups;     // [num_groups]
  std::vector<SampleRow> sample_rows;  // [num_samples]  of the groups in turn
  std::vector<TokenBias> bias;
  std::vector<TokenPenalty> penalty;
  std::vector<uint32_t> masks;  // [num_masks, mask_words]  bit t % 32 of word t / 32: token t may be chosen
  int32_t mask_words = 0;       // of a mask: ceil(vocab_size / 32); 0: no masks

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_entries() const { return static_cast<int32_t>(entries.size()); }
  int32_t num_groups() const { return static_cast<int32_t>(groups.size()); }
  int32_t num_samples() const { return static_cast<int32_t>(sample_rows.size()); }
  int32_t num_masks() const { return mask_words == 0 ? 0 : static_cast<int32_t>(masks.size()) / mask_words; }
  int32_t num_rows(int32_t entry) const { return query_start[entry + 1] - query_start[entry]; }
  // Tokens of the entry's sequence that are in the KV cache after the step, at most.
  int32_t max_context_len(int32_t entry) const { return entries[entry].max_base() + num_rows(entry); }
  bool empty() const { return tokens.empty(); }
  void clear();  // keeps capacity
};

// The output of a step. Log-probabilities are of the raw distribution.
struct StepOutput {
  std::vector<int32_t> token_start;  // [num_groups + 1]  into what follows
  std::vector<TokenId> tokens;       // [num_given]
  std::vector<float> logprobs;       // [num_given]  0 where none was wanted
  std::vector<int32_t> top_start;    // [num_given + 1]  into top_*
  std::vector<TokenId> top_tokens;   // best first
  std::vector<float> top_logprobs;
  std::vector<uint8_t> is_finite;  // [num_groups]  0: in the row after the last token given, a logit was NaN or +Inf
  std::vector<float> hidden;  // [num_given, width], or empty: vectors, of a backend that pools (LoadOptions::pooling)
  std::vector<TokenId> drawn;      // [num_samples], or empty: for each sample row, also behind wrong drafts
  double device_ms = 0;            // that the device worked on the step; 0: not known

  void clear();
};

// The mask of a row, from the array of a plan's masks; empty: every token may be chosen.
inline std::span<const uint32_t> mask_of(const SampleRow& row, std::span<const uint32_t> masks, int32_t mask_words) {
  return row.mask < 0 ? masks.first(0) : masks.subspan(int64_t{row.mask} * mask_words, mask_words);
}

constexpr bool is_allowed(std::span<const uint32_t> mask, TokenId token) {
  return mask.empty() || (mask[token / 32] >> (token % 32) & 1u) != 0;
}

// The most tokens that a group of the plan gives.
int32_t max_tokens_given(const StepPlan& plan, const SampleGroup& group);

// Whether some row of the group does not have the row before it as its parent.
bool is_tree(const StepPlan& plan, const SampleGroup& group);

// Counts the given tokens of a group whose rows wrote their keys and values where the sequence
// has them: at least the first. REQUIRES: there are some; drafts of a tree are seen tokens.
int32_t num_in_place(const StepPlan& plan, const SampleGroup& group, std::span<const TokenId> given);

// Ok, or the number of the invariant that does not hold and where. num_blocks bounds block ids of every layer group,
// num_host_blocks those of the host's pool; in_flight is the plan before where that is in flight, else null.
Status validate_step_plan(const StepPlan& plan, int32_t num_blocks, const StepPlan* in_flight = nullptr,
                          int32_t num_host_blocks = 0);

// A readable dump, for logs and failing tests.
std::string to_string(const StepPlan& plan);

}  // namespace llmb
