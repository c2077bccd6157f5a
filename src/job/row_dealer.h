// Deals the rows of a run to several workers: each gets rows that follow each other in the plan, so that what their
// prompts share is computed by one worker, and none has more work in hand than its part of what is left, so that all end
// together. Workers that are yet to start, or to start again, have a part like the others.
//
// A worker's portion is a stretch of the rows that were taken so far, cut where two rows share least. It gets them one
// by one as it has room; one that has nothing left takes the second half of the largest portion of another.
//
// The rows in hand of a worker that dies are dealt again, before all others. A row that was in the hands of
// kSuspectDeaths dying workers is dealt alone; where kGuiltyDeaths workers die of it, while other rows are answered,
// the row is what kills them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/request_source.h"

namespace llmb {

// Not thread-safe. Invariant: a row is in one place: waiting, in one worker's hands, or given back by finish() or
// lose().
class RowDealer {
 public:
  static constexpr int kSuspectDeaths = 2, kGuiltyDeaths = 3;

  // num_slots: rows that a worker runs at one time. A few more are in its hands, so that it never waits for one.
  RowDealer(int num_workers, int num_slots);

  // Whether more rows should be taken from the source, so that portions can be cut well.
  bool wants_rows() const;
  void add(WorkItem row);

  // A worker that lives; all are dead at first. Its portion and rows in hand are those of nobody once it is not.
  void set_alive(int worker) { workers_[worker].is_alive = true; }
  // It will not live again: no part is kept for it. REQUIRES: it is dead
  void give_up(int worker) { workers_[worker].is_given_up = true; }
  // The worker has died: its rows are dealt again. Those that killed it, as far as that is known, are given back.
  std::vector<WorkItem> lose(int worker);

  // The next row for the worker; nullopt: it has enough in hand, or there is none. REQUIRES: it lives.
  const WorkItem* deal(int worker);
  // The worker has answered the row; nullopt: it is not in its hands.
  std::optional<WorkItem> finish(int worker, int64_t ordinal);

  size_t num_in_hand(int worker) const { return workers_[worker].in_hand.size(); }
  size_t num_in_hand() const { return num_in_hand_; }
  size_t num_waiting() const;  // not in any worker's hands
  // It gets nothing before it has answered what it has in hand, unless more rows are added.
  bool has_all(int worker) const { return workers_[worker].is_alone || num_waiting() == suspects_.size(); }
  // Forgets those that wait, and says how many they were.
  size_t drop_waiting();

 private:
  struct Row {
    WorkItem work;
    int64_t cost = 0;                 // about that of so many tokens of answers
    int num_deaths = 0;               // of workers that had it in hand
    int num_lonely_deaths = 0;        // that had nothing else
    int64_t num_finished_before = 0;  // rows, before the first of these
  };
  struct Worker {
    bool is_alive = false;
    bool is_given_up = false;
    std::deque<Row> portion;
    std::unordered_map<int64_t, Row> in_hand;
    int64_t cost_in_hand = 0;
    bool is_alone = false;  // it has one suspect in hand, and gets nothing else
  };

  size_t num_expected() const;
  bool has_its_part(const Worker& worker) const;
  std::optional<Row> next_row(Worker& worker);
  void cut_portion(Worker& worker);
  void take_over(Worker& worker);

  const size_t max_in_hand_;
  std::vector<Worker> workers_;
  std::deque<Row> stream_;    // in the order of the plan, of no portion yet
  std::deque<Row> returned_;  // of workers that died
  std::deque<Row> suspects_;
  size_t num_in_hand_ = 0;
  int64_t cost_left_ = 0;  // of rows that are not given back
  int64_t num_finished_ = 0;
  size_t num_stream_bytes_ = 0;
};

}  // namespace llmb
