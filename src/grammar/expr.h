// Languages of byte strings as expressions. Equal expressions are stored once, so ids compare them. What a language
// holds behind a byte is its derivative by this byte (Brzozowski, JACM 1964): again an expression, so expressions are
// the states of an automaton that is built as it is walked. A call stands for the language of a rule, which may be
// recursive; calls are not derived but handed to the matcher.
//
// Invariants:
//  1. Members of an expression have smaller ids than it.
//  2. Once settle() returned ok, an expression other than kNothing that a rule's body leads to is not empty, provided
//  that
//     the called rules are not. So what is not kNothing can be completed.
//  3. Until settle() has returned, work and memory are counted, the same everywhere: what takes more than
//     kMaxCompileWork or kMaxArenaBytes throws OverBudget. Every member may throw it until then.
// Not thread-safe.
#pragma once

#include <bitset>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace llmb::grammar {

using ExprId = int32_t;
using RuleId = int32_t;
using ByteSet = std::bitset<256>;

inline constexpr ExprId kNothing = 0;      // no string
inline constexpr ExprId kEmptyString = 1;  // ""
inline constexpr int32_t kUnlimited = -1;

// In texts that describe a language.
inline constexpr int32_t kMaxNestedGroups = 200, kMaxRepeats = 100'000;

// The most that one grammar may take until it is settled. A unit of work is about an expression looked at. All units took 12 to
// 95 ms of the forms in tests/support/hostile_forms.cpp that are refused (2026-11-23, AMD EPYC family 25 model 17,
// other work beside it): so the limit stands for 100 ms, and what is refused does not depend on the machine.
inline constexpr int64_t kMaxCompileWork = 1'000'000;
inline constexpr size_t kMaxArenaBytes = size_t{64} << 20;

// Thrown inside, a Status outside: over_budget().
struct OverBudget {};
Status over_budget();

// `rule` and behind it `rest`.
struct RuleCall {
  RuleId rule = 0;
  ExprId rest = kEmptyString;
  bool operator==(const RuleCall&) const = default;
};

class ExprArena {
 public:
  ExprArena();

  // Counts work that its users do.
  void spend(int64_t units) {
    if ((work_left_ -= units) < 0) throw OverBudget();
  }
  int64_t work_left() const { return work_left_; }

  // ---- building
  ExprId bytes(const ByteSet& set);
  ExprId byte(uint8_t value) { return byte_range(value, value); }
  ExprId byte_range(uint8_t first, uint8_t last);
  ExprId literal(std::string_view text, ExprId rest = kEmptyString);
  // One of the texts, which it sorts: shares beginnings, so that many are cheap.
  ExprId one_of(std::vector<std::string_view> texts);
  ExprId concat(ExprId first, ExprId second);
  ExprId sequence(std::span<const ExprId> parts);
  ExprId either(std::vector<ExprId> members);
  ExprId either(ExprId a, ExprId b) { return either(std::vector<ExprId>{a, b}); }
  ExprId optional(ExprId e) { return either(e, kEmptyString); }
  ExprId repeat(ExprId e, int32_t min, int32_t max);  // max: kUnlimited, or >= min
  ExprId star(ExprId e) { return repeat(e, 0, kUnlimited); }
  // The strings of all members, of none. REQUIRES: no calls.
  ExprId both(std::vector<ExprId> members);
  ExprId both(ExprId a, ExprId b) { return both(std::vector<ExprId>{a, b}); }
  ExprId complement(ExprId e);
  // Decimal digits, and with decimals > 0 perhaps a point and up to `decimals` more, whose value times 10^decimals is a
  // multiple of `modulus`. Says nothing of leading zeros. REQUIRES: modulus >= 1.
  ExprId multiple_of(int32_t modulus, int32_t decimals);
  ExprId call(RuleId rule);

  // ---- what they are
  bool is_nullable(ExprId e) const { return (nodes_[e].flags & kNullable) != 0; }
  bool has_call(ExprId e) const { return (nodes_[e].flags & kHasCall) != 0; }
  // Some string of it begins with a byte, without a call.
  bool starts_with_byte(ExprId e) const { return (nodes_[e].flags & kStartsWithByte) != 0; }
  // It can only go on by a byte: not nullable, begins with no call.
  bool is_plain(ExprId e) const { return (nodes_[e].flags & (kNullable | kStartsWithCall)) == 0; }
  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  size_t num_bytes() const;  // of memory, about

  // ---- rewriting, before settle()
  // `e` with each byte set replaced by the bytes of `keep` in it.
  ExprId restrict_bytes(ExprId e, const ByteSet& keep);
  // The strings that with `end` behind them are in `e`. REQUIRES: no call, both() or complement() in e.
  ExprId without_last_byte(ExprId e, uint8_t end);
  // The strings of e that begin with `first`, without it. REQUIRES: as above.
  ExprId without_first_byte(ExprId e, uint8_t first);
  // Puts the bodies of rules that call none in the place of their calls, and so on.
  void fold_rules(std::vector<ExprId>* bodies);
  // There is no string in e; false where that takes too long to find out. REQUIRES: no call.
  bool is_empty(ExprId e);
  // The string is in e. REQUIRES: no call.
  bool contains(ExprId e, std::string_view text);

  // Ends building: finds the classes of bytes that no expression tells apart, and what is empty. Calls of rules that
  // have no string become kNothing. bodies: [rule]. resource_exhausted where intersections have too many states, and
  // where all that takes too much work or memory. Nothing is counted behind it.
  Status settle(std::vector<ExprId>* bodies);

  // ---- walking, after settle()
  // Keeps what is there now; forget_walk() forgets the rest. An expression made later may get a forgotten one's id.
  void keep_settled();
  void forget_walk();
  int32_t byte_class(uint8_t byte) const { return class_of_[byte]; }
  // The derivative by the bytes of a class.
  ExprId next(ExprId e, int32_t byte_class) {
    const int32_t row = nodes_[e].row;
    if (row >= 0) {
      const ExprId known = rows_[static_cast<size_t>(row) + byte_class];
      if (known >= 0) return known;
    }
    return derive(e, byte_class);
  }
  // For many bytes of one expression: its row of derivatives, and what is known there of a class; negative: nothing.
  int32_t row(ExprId e) {
    if (nodes_[e].row < 0) add_row(e);
    return nodes_[e].row;
  }
  ExprId known_in(int32_t row, int32_t byte_class) const { return rows_[static_cast<size_t>(row) + byte_class]; }
  int32_t num_classes() const { return static_cast<int32_t>(class_byte_.size()); }
  // The same as several expressions, of which there are few in all, however many unions of them occur.
  void next_parts(ExprId e, int32_t byte_class, std::vector<ExprId>* parts);
  // `e` without the limits of what is repeated at its beginning, or at those of its members where these are few: upper ones
  // of at least least_upper times, and lower ones of more than most_needed, in whose place there are so many.
  // *num_bytes is set to how long beginnings may be for both to agree on them: which go on, and which are whole.
  // Unlimited where there was none. Never less than min(least_upper, most_needed - 1).
  ExprId without_limits(ExprId e, int32_t least_upper, int32_t most_needed, int32_t* num_bytes);
  // The same text for the same expression in every arena; "" where it has calls or many parts.
  std::string written(ExprId e) const;
  // Calls that strings of e begin with. Valid until the next call of a member.
  std::span<const RuleCall> calls(ExprId e);

 private:
  enum class Kind : uint8_t { kNone, kEmpty, kBytes, kConcat, kEither, kRepeat, kBoth, kComplement, kMultiple, kCall };
  enum Flag : uint8_t { kNullable = 1, kHasCall = 2, kStartsWithCall = 4, kStartsWithByte = 8, kIsSet = 16 };
  // kBytes: a is the set. kConcat: a b. kEither, kBoth: members a to a + b of lists_. kRepeat: a, b to c times.
  // kComplement: a. kMultiple: modulus a, remainder b, c the decimals left, + kFraction behind the point, + kFirst.
  // kCall: a.
  struct Node {
    Kind kind = Kind::kNone;
    uint8_t flags = 0;
    bool is_dead = false;  // known to be empty
    int32_t a = 0, b = 0, c = 0;
    int32_t row = -1;    // of next expressions, into rows_
    int32_t calls = -1;  // into calls_
  };

  static constexpr int32_t kFraction = 32, kFirst = 64;  // of kMultiple's c

  ExprId intern(Node node, std::span<const ExprId> members);
  uint8_t flags_of(const Node& node, std::span<const ExprId> members) const;
  std::span<const ExprId> members(const Node& node) const {
    return {lists_.data() + node.a, static_cast<size_t>(node.b)};
  }
  bool same(const Node& a, std::span<const ExprId> a_members, const Node& b) const;
  static size_t hash_of(const Node& node, std::span<const ExprId> members);
  void grow_table();
  void normalise_list(Kind kind, std::vector<ExprId>& list);
  void merge_byte_sets(std::vector<ExprId>& list);
  ExprId one_of_sorted(std::span<const std::string_view> texts, size_t begin);
  // Makes each expression below `limit` anew, members first; leaf(id, node) gives what replaces it, or -1.
  std::vector<ExprId> rebuild(ExprId limit, const std::function<ExprId(ExprId, const Node&)>& leaf);

  Status settle_counted(std::vector<ExprId>* bodies);
  void try_walk(std::span<const ExprId> bodies);
  void try_paths(ExprId body);
  bool write(ExprId e, int32_t* num_left, std::string* out) const;
  ExprId sequence_without_limits(ExprId e, int32_t least_upper, int32_t most_needed, int32_t* num_bytes);
  void add_row(ExprId e);
  ExprId derive(ExprId e, int32_t byte_class);
  ExprId derive_now(ExprId e, int32_t byte_class);
  ExprId derive_sequence(Node node, int32_t byte_class);
  ExprId derive_multiple(const Node& node, uint8_t byte);
  void find_classes();
  Status find_empty_sets(std::span<const ExprId> bodies);
  Status explore(ExprId start, int32_t* budget);
  std::vector<bool> productive_rules(std::span<const ExprId> bodies);

  std::vector<Node> nodes_;
  std::vector<ExprId> lists_;
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, int32_t> index_of_set_;
  std::vector<int32_t> table_;  // open addressing, of ids
  int32_t class_of_[256] = {};
  std::vector<uint8_t> class_byte_;  // [classes]  one of each
  std::vector<ExprId> rows_;         // [rows * classes]  -1: not known yet
  std::vector<std::vector<RuleCall>> calls_;
  size_t num_classified_sets_ = 0;  // when classes were found last
  bool has_numbers_ = false, classified_numbers_ = false;
  int64_t work_left_ = kMaxCompileWork;
  size_t num_kept_nodes_ = 0, num_kept_lists_ = 0;  // by forget_walk()
};

// States of intersections and complements that one grammar may have.
inline constexpr int32_t kMaxSetStates = 50'000;

}  // namespace llmb::grammar
