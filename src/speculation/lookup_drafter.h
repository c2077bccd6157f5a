// Drafts by looking up how a text went on before: prompt lookup (Saxena 2023) and inference with reference (Yang et al.
// 2023), over suffix automata: whatever length the match has, in constant time (as SAM decoding, Hu et al. 2024).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/types.h"
#include "speculation/acceptance.h"
#include "speculation/drafter.h"
#include "speculation/suffix_automaton.h"

namespace llmb {

// Looks in a sequence's own prompt and output, in a corpus, and in answers that have ended, and takes where it expects
// most. Where the sequence's last token is new in its own text, three rules say where that goes on; the one that lately
// was right most often counts. Memory: about 50 bytes for each token of sequences that run, of the corpus and of the
// newest answers (max_answer_tokens).
class LookupDrafter final : public Drafter {
 public:
  // max_answer_tokens: of ended answers that are kept, the newest; 0: none. guesses_trees: what other places say, too.
  // The clock outlives it.
  explicit LookupDrafter(const Clock& clock, int32_t max_answer_tokens = 1 << 19, bool guesses_trees = false);

  void add_to_corpus(std::span<const TokenId> text);
  int32_t num_corpus_tokens() const { return corpus_.size(); }

  std::string name() const override { return "lookup"; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override;
  void learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) override;
  bool guesses_one_by_one() const override { return true; }
  bool guesses_while_steps_run() const override { return true; }
  double take_invested_ms() override { return std::exchange(invested_ms_, 0); }
  void forget(const Sequence& sequence) override;

 private:
  enum Source {
    kOwnText,
    kCorpus,
    kAnswers,
    kOlderAnswers,
    // Rules for a last token that is new: as if it stood for another one behind the last match; as behind the last token
    // before it that was new; and it is repeated.
    kReplaced,
    kBehindNew,
    kRepeated,
    kNumSources
  };
  static constexpr int32_t kNumTexts = kOlderAnswers + 1;
  static constexpr std::array<Source, kNumSources> kSources = {kOwnText,  kCorpus,    kAnswers, kOlderAnswers,
                                                               kReplaced, kBehindNew, kRepeated};
  // Matches up to 16 tokens by length, then 17 to 32 and longer ones.
  static constexpr int32_t kNumLengths = 18;
  // The own text, others, each rule.
  static constexpr int32_t kNumSourceClasses = 2 + kNumSources - kNumTexts, kNumKinds = 2 * kNumSourceClasses * kNumLengths;
  struct Row {
    SuffixAutomaton text;
    std::array<SuffixAutomaton::Cursor, kNumTexts> cursors;  // but for the own text
    int64_t generation = 0;                                  // of the answers that the cursors are in
    // Places in the text, 0: none: behind its newest match and as many tokens as are new since; behind the newest token
    // that had not stood before, and behind the one before that.
    int32_t behind_match = 0, behind_new = 0, behind_new_before = 0;
  };

  static bool is_rule(Source source) { return source >= kNumTexts; }
  SuffixAutomaton::Match match(Source source, const Row& row) const;
  void draft_one(const Sequence& sequence, int32_t max_tokens, Guess* guess);
  void add_continuation(Source source, const Row& row, int32_t max_tokens, Guess* guess);
  void catch_up(const Sequence& sequence, Row* row);
  void append(TokenId token, Row* row);
  void judge_rules(const Row& row, TokenId token);
  const SuffixAutomaton& automaton(Source source, const Row& row) const;
  static int32_t kind_of(Source source, int32_t match_length, bool is_other);
  // By judge_rules().
  static bool is_judged_anyway(int32_t kind) {
    return kind / kNumLengths >= 2 && kind / kNumLengths < kNumSourceClasses && kind % kNumLengths == 0;
  }
  void take_in_answers();
  void take_in_newest_answer();
  void take_in(std::span<const TokenId> answer);

  const Clock& clock_;
  const int32_t max_answer_tokens_;
  const bool guesses_trees_;
  SuffixAutomaton corpus_, answers_, older_answers_;
  int64_t generation_ = 0;                   // how often answers_ became older_answers_
  std::deque<std::vector<TokenId>> ended_;  // answers that are in no automaton yet
  int64_t num_ended_tokens_ = 0;
  double invested_ms_ = 0;  // in prompts and in answers of others
  std::unordered_map<SeqId, Row> rows_;
  std::vector<Acceptance> acceptance_;  // by kind
  std::vector<TokenId> continuation_;   // scratch
};

}  // namespace llmb
