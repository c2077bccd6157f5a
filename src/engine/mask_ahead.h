// Masks for the next step, worked out on other threads while a device that is not the host's cores runs a step. The
// next mask depends on the token that this step gives, so those behind likely tokens are: the ones that rows got most
// often. What was worked out is found at once when it is asked for (a form keeps its masks), and nothing else depends
// on it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "core/token_constraint.h"
#include "core/types.h"

namespace llmb {

// The tokens that come most often in a sequence of them, by Space-Saving (Metwally et al., ICDT 2005).
class FrequentTokens {
 public:
  void add(TokenId token);
  // The most frequent first, so many at most.
  std::vector<TokenId> best(size_t num_tokens) const;

 private:
  struct Entry {
    TokenId token = 0;
    int64_t count = 0;
  };
  std::vector<Entry> entries_;
};

// Driven by one thread. Its own threads hold clones of states only between begin() and end().
class MaskAhead {
 public:
  struct Row {
    const TokenConstraint* form = nullptr;
    const ConstraintState* state = nullptr;
    std::span<const TokenId> drafts = {};  // a chain, which the form allows behind the state
  };

  // num_threads: of its own, 0: it does nothing. They are started by the first begin().
  explicit MaskAhead(int num_threads) : num_threads_(num_threads) {}
  ~MaskAhead();
  bool is_used() const { return num_threads_ > 0; }

  // A row got the token.
  void add(TokenId token) { frequent_.add(token); }
  // A step runs; the rows' states wait for its tokens: for each draft that it verifies, as far as these are right, and
  // for one more. REQUIRES: end() since the last begin()
  void begin(std::span<const Row> rows);
  // The step has ended. Returns once the masks that are being worked out are there: nobody works on others.
  void end();

  int64_t num_masks() const { return num_masks_; }  // that were asked for, in all

 private:
  struct Followed {
    const TokenConstraint* form = nullptr;
    std::unique_ptr<ConstraintState> state;  // behind the drafts
  };

  void run();
  void find_form(size_t first_row);

  const int num_threads_;
  FrequentTokens frequent_;
  std::vector<Followed> rows_;  // those of a form side by side, as they share a lock
  std::vector<size_t> forms_;  // where each form's rows begin
  std::vector<TokenId> tokens_;
  std::atomic<bool> is_over_ = true;
  std::atomic<int64_t> num_masks_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_work_ = false, is_closed_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace llmb
