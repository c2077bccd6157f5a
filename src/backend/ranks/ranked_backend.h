// A backend whose model several ranks compute together. Rank 0 is where the engine is: it gives every plan to the
// others as the value that it is, and all of them execute it with their part of the model. All ranks draw the same
// tokens, so nobody asks rank 0 for anything.
#pragma once

#include <functional>
#include <memory>

#include "backend/backend.h"
#include "backend/ranks/rank_context.h"
#include "base/status.h"
#include "core/rank_times.h"

namespace llmb {

// The other ranks, as rank 0 sees them. The destructor ends them.
class RankPeers {
 public:
  virtual ~RankPeers() = default;
  // They begin to load. `options`: rank 0's
  virtual Status begin_load(const ModelConfig& config, const LoadOptions& options) = 0;
  // Until all have loaded. The error of one that could not.
  virtual Status await_load() = 0;
};

class RankedBackend : public Backend {
 public:
  // How busy all ranks were in the steps so far. Any thread may ask where a step hangs.
  virtual RankTimes times() const = 0;
};

// local: rank 0's part of the work, made with the same context. patience_ms: how long a step may take (0: any time).
// A rank that fails, dies or hangs ends what is in flight with kDeviceError, or the error that it met.
std::unique_ptr<RankedBackend> make_ranked_backend(std::unique_ptr<Backend> local, std::shared_ptr<RankContext> context,
                                                   std::unique_ptr<RankPeers> peers, double patience_ms);

// Another rank's work: loads, says so by `on_loaded`, and executes the plans that rank 0 gives until there is an error,
// which is returned. All ranks learn of it.
Status serve_rank(Backend& backend, RankContext& context, const ModelConfig& config, const LoadOptions& options,
                  double patience_ms, const std::function<void()>& on_loaded);

}  // namespace llmb
