// Which prefixes have a snapshot of the recurrent state behind them (core/state_layout.h), and in which state slot. Ids
// only, never memory; references to slots are the caller's.
//
// A snapshot belongs to a node of the prefix cache and the tokens that end there. A node's serial number says whether it
// is still that node: a snapshot of one that is gone is never found, and gives way when its turn has come.
//
// A sequence that waits may want one, which then does not give way.
//
// Not thread-safe. Invariant: at most max_count snapshots; of those that nobody wants the one that was used longest ago
// gives way.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "cache/prefix_cache.h"

namespace llmb {

class StateSnapshots {
 public:
  explicit StateSnapshots(int32_t max_count) : max_count_(max_count) {}  // >= 0

  // The slot that holds the state behind the node's tokens, or -1.
  int32_t find(NodeId node, uint32_t serial) const;
  void use(NodeId node);  // it is the newest now. REQUIRES: it was found

  // The state behind the node's tokens is in `slot`. Returns the slot of a snapshot that there is no longer, or -1. That
  // may be `slot`: where the node has a snapshot already, or there is no room.
  int32_t add(NodeId node, uint32_t serial, int32_t slot);

  bool has_room() const;  // for one more, which another may give way to
  int32_t make_room();    // for the next one, now; as add() returns. REQUIRES: has_room()
  // Until unwant(), as often. REQUIRES: it was found, and the node stays
  void want(NodeId node) { ++snapshots_.at(node).num_wanted; }
  void unwant(NodeId node) { --snapshots_.at(node).num_wanted; }

  std::vector<int32_t> slots() const;  // of all snapshots, in no order

 private:
  struct Snapshot {
    uint32_t serial = 0;
    int32_t slot = -1;
    int64_t last_use = 0;
    int32_t num_wanted = 0;
  };

  const int32_t max_count_;
  std::unordered_map<NodeId, Snapshot> snapshots_;
  int64_t num_uses_ = 0;
};

}  // namespace llmb
