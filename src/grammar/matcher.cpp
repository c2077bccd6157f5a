#include "grammar/matcher.h"

#include <algorithm>

namespace llmb::grammar {

void Matcher::clear() {
  items_.clear(), edges_.clear();
  first_edge_.assign(1, -1);
  completed_.assign(1, 0);
}

void Matcher::drop_behind(const MatcherState& state) {
  items_.resize(static_cast<size_t>(state.items_end));
  first_edge_.resize(static_cast<size_t>(state.num_frames));
  completed_.resize(static_cast<size_t>(state.num_frames));
  edges_.resize(static_cast<size_t>(state.num_edges));
}

void Matcher::begin_position(MatcherState* to) {
  ++position_;
  num_seen_ = 0;
  is_complete_ = false;
  old_frames_ = static_cast<int32_t>(first_edge_.size());
  frame_of_rule_.resize(bodies_.size());
  to->items_begin = static_cast<int32_t>(items_.size());
}

void Matcher::end_position(MatcherState* to) {
  while (!pending_.empty()) {
    const Item item = pending_.back();
    pending_.pop_back();
    follow(item);
  }
  to->items_end = static_cast<int32_t>(items_.size());
  to->num_frames = static_cast<int32_t>(first_edge_.size());
  to->num_edges = static_cast<int32_t>(edges_.size());
  to->is_complete = is_complete_;
}

bool Matcher::is_new(Item item) {
  const size_t mask = seen_.size() - 1;
  size_t slot = (static_cast<size_t>(item.expr) * 0x9E3779B1u + static_cast<size_t>(item.frame) * 0x85EBCA6Bu) & mask;
  for (; seen_[slot].position == position_; slot = (slot + 1) & mask)
    if (seen_[slot].item == item) return false;
  seen_[slot] = {position_, item};
  if (++num_seen_ * 2 > seen_.size()) grow_seen();
  return true;
}

void Matcher::grow_seen() {
  std::vector<Seen> old(seen_.size() * 2);
  old.swap(seen_);
  num_seen_ = 0;
  for (const Seen& entry : old)
    if (entry.position == position_) is_new(entry.item);
}

void Matcher::add(Item item) {
  if (item.expr == kNothing || !is_new(item)) return;
  if (arena_.starts_with_byte(item.expr)) items_.push_back(item);
  if (!arena_.is_plain(item.expr)) pending_.push_back(item);
}

void Matcher::follow(Item item) {
  if (arena_.is_nullable(item.expr)) complete(item.frame);
  const auto calls = arena_.calls(item.expr);
  for (size_t i = 0; i < calls.size(); ++i) call(calls[i], item.frame);
}

void Matcher::complete(int32_t frame) {
  if (completed_[frame] == position_) return;
  completed_[frame] = position_;
  if (frame == 0) is_complete_ = true;
  for (int32_t e = first_edge_[frame]; e >= 0; e = edges_[e].next) add(edges_[e].caller);
}

void Matcher::call(const RuleCall& call, int32_t frame) {
  RuleFrame& known = frame_of_rule_[call.rule];
  if (known.position != position_) {
    known = {position_, static_cast<int32_t>(first_edge_.size())};
    first_edge_.push_back(-1);
    completed_.push_back(0);
    add({bodies_[call.rule], known.frame});
  }
  // A call that ends its rule returns where the rule returns, so that recursion at the end costs nothing. The edges of
  // an old frame are all there.
  if (call.rest == kEmptyString && frame != 0 && frame < old_frames_) {
    for (int32_t e = first_edge_[frame]; e >= 0; e = edges_[e].next) add_edge(known.frame, edges_[e].caller);
  } else {
    add_edge(known.frame, {call.rest, frame});
  }
}

void Matcher::add_edge(int32_t frame, Item caller) {
  for (int32_t e = first_edge_[frame]; e >= 0; e = edges_[e].next)
    if (edges_[e].caller == caller) return;
  edges_.push_back({caller, first_edge_[frame]});
  first_edge_[frame] = static_cast<int32_t>(edges_.size()) - 1;
  if (completed_[frame] == position_) add(caller);
}

MatcherState Matcher::start(ExprId expr) {
  clear();
  MatcherState state;
  begin_position(&state);
  add({expr, 0});
  end_position(&state);
  return state;
}

MatcherState Matcher::start_without_calls(ExprId expr) {
  clear();
  items_.push_back({expr, 0});
  return {.items_end = 1, .num_frames = 1};
}

bool Matcher::step(const MatcherState& from, int32_t byte_class, MatcherState* to) {
  if (from.items_end - from.items_begin == 1) {
    const Item item = items_[from.items_begin];
    const ExprId next = arena_.next(item.expr, byte_class);
    if (next == kNothing) return false;
    if (arena_.is_plain(next)) {
      drop_behind(from);
      *to = {from.items_end, from.items_end + 1, from.num_frames, from.num_edges, false};
      items_.push_back({next, item.frame});
      return true;
    }
  }
  drop_behind(from);
  begin_position(to);
  const bool may_union = arena_.size() < kMaxUnionsArena;
  for (int32_t i = from.items_begin; i < from.items_end; ++i) {
    const Item item = items_[i];
    if (may_union) {
      add({arena_.next(item.expr, byte_class), item.frame});
      continue;
    }
    parts_.clear();
    arena_.next_parts(item.expr, byte_class, &parts_);
    for (const ExprId part : parts_) add({part, item.frame});
  }
  end_position(to);
  return !to->is_dead();
}

MatcherState Matcher::return_from(const MatcherState& below, int32_t frame) {
  drop_behind(below);
  MatcherState state;
  begin_position(&state);
  complete(frame);
  end_position(&state);
  return state;
}

// Frames are numbered in the order in which they are reached from the items.
Configuration Matcher::save(const MatcherState& state) const {
  std::vector<Item> list(items(state).begin(), items(state).end());
  std::sort(list.begin(), list.end());
  std::vector<int32_t> number(first_edge_.size(), -1), order = {0};
  number[0] = 0;
  Configuration out;
  const auto put = [&](Item item) {
    if (number[item.frame] < 0) {
      number[item.frame] = static_cast<int32_t>(order.size());
      order.push_back(item.frame);
    }
    out.push_back(item.expr);
    out.push_back(number[item.frame]);
  };
  out.push_back(static_cast<int32_t>(list.size()));
  for (const Item& item : list) put(item);
  std::vector<Item> callers;
  for (size_t i = 1; i < order.size(); ++i) {
    callers.clear();
    for (int32_t e = first_edge_[order[i]]; e >= 0; e = edges_[e].next) callers.push_back(edges_[e].caller);
    std::sort(callers.begin(), callers.end());
    out.push_back(static_cast<int32_t>(callers.size()));
    for (const Item& caller : callers) put(caller);
  }
  if (state.is_complete) out.push_back(1);
  return out;
}

MatcherState Matcher::load(const Configuration& in) {
  clear();
  size_t at = 0;
  const auto read_item = [&] {
    at += 2;
    return Item{in[at - 2], in[at - 1]};
  };
  int32_t num_frames = 1;
  const auto count = [&](Item item) {
    num_frames = std::max(num_frames, item.frame + 1);
    return item;
  };
  for (int32_t left = in [at++]; left > 0; --left) items_.push_back(count(read_item()));
  for (int32_t frame = 1; frame < num_frames; ++frame) {
    first_edge_.push_back(-1);
    completed_.push_back(0);
    for (int32_t left = in [at++]; left > 0; --left) {
      edges_.push_back({count(read_item()), first_edge_[frame]});
      first_edge_[frame] = static_cast<int32_t>(edges_.size()) - 1;
    }
  }
  const auto num_items = static_cast<int32_t>(items_.size());
  return {0, num_items, num_frames, static_cast<int32_t>(edges_.size()), at < in.size()};
}

}  // namespace llmb::grammar
