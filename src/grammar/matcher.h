// Follows a grammar through bytes: an Earley recogniser whose items hold expressions, so that all that needs no rule is
// one step of an automaton.
//
// An item is what is left of a rule's body, and the frame to which the rule returns. A frame stands for all calls of
// one rule at one position; its edges say what follows each of them. A state is a set of items behind some bytes.
// States are pushed on a stack: a step from state s drops what was pushed behind s.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/expr.h"

namespace llmb::grammar {

struct Item {
  ExprId expr = kNothing;
  int32_t frame = 0;
  auto operator<=>(const Item&) const = default;
};

// Behind a call: an item of the caller's, and the next edge of the same frame.
struct FrameEdge {
  Item caller;
  int32_t next = -1;
};

struct MatcherState {
  int32_t items_begin = 0, items_end = 0;
  int32_t num_frames = 0, num_edges = 0;
  bool is_complete = false;  // frame 0 has returned: the bytes so far are in the language

  bool is_dead() const { return items_begin == items_end && !is_complete; }
};

// A state by itself, in numbers that depend only on what may follow: equal ones go on equally.
// [items] (expr, frame)*, then for each frame but 0 [edges] (expr, frame)*, then 1 where it is complete.
using Configuration = std::vector<int32_t>;

// From this size of an arena on, unions of expressions are kept as several items: their number is bounded by the
// patterns' length, that of unions is not.
inline constexpr int32_t kMaxUnionsArena = 200'000;

// Arena and bodies are settled and outlive it.
class Matcher {
 public:
  Matcher(ExprArena* arena, std::span<const ExprId> bodies) : arena_(*arena), bodies_(bodies) {}

  // The stack's first state: an item that returns to frame 0, with all calls that it begins with or without them.
  MatcherState start(ExprId expr);
  MatcherState start_without_calls(ExprId expr);
  MatcherState load(const Configuration& configuration);
  Configuration save(const MatcherState& state) const;

  // False only where step() would return it.
  bool may_step(const MatcherState& from, int32_t byte_class) {
    if (arena_.size() >= kMaxUnionsArena) return true;
    for (int32_t i = from.items_begin; i < from.items_end; ++i)
      if (arena_.next(items_[i].expr, byte_class) != kNothing) return true;
    return false;
  }
  // The state behind one more byte; false where there is none.
  bool step(const MatcherState& from, int32_t byte_class, MatcherState* to);
  // The state, on top of `below`, where the rules of `frame` have returned.
  MatcherState return_from(const MatcherState& below, int32_t frame);

  std::span<const Item> items(const MatcherState& state) const {
    return {items_.data() + state.items_begin, items_.data() + state.items_end};
  }

 private:
  struct Seen {
    uint64_t position = 0;
    Item item;
  };
  struct RuleFrame {
    uint64_t position = 0;
    int32_t frame = 0;
  };

  void clear();
  void drop_behind(const MatcherState& state);
  void begin_position(MatcherState* to);
  void end_position(MatcherState* to);
  bool is_new(Item item);
  void grow_seen();
  void add(Item item);
  void follow(Item item);
  void complete(int32_t frame);
  void call(const RuleCall& call, int32_t frame);
  void add_edge(int32_t frame, Item caller);

  ExprArena& arena_;
  std::span<const ExprId> bodies_;  // [rule]
  std::vector<Item> items_;
  std::vector<int32_t> first_edge_;  // [frames]  -1: none
  std::vector<uint64_t> completed_;  // [frames]  the position at which it returned last
  std::vector<FrameEdge> edges_;
  uint64_t position_ = 0;   // names the one that is being worked out
  int32_t old_frames_ = 0;  // frames that were there before it
  bool is_complete_ = false;
  std::vector<RuleFrame> frame_of_rule_;  // [rule]
  std::vector<Seen> seen_ = std::vector<Seen>(64);
  uint32_t num_seen_ = 0;
  std::vector<Item> pending_;
  std::vector<ExprId> parts_;
};

}  // namespace llmb::grammar
