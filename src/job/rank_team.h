// Ranks in processes of their own that compute one model together with this process, which is rank 0.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/ranks/ranked_backend.h"
#include "base/descriptor.h"
#include "base/status.h"
#include "core/rank_part.h"
#include "job/job_ending.h"
#include "job/job_model.h"
#include "job/job_options.h"
#include "job/worker_messages.h"
#include "job/worker_process.h"

namespace llmb {

// Starts rank `rank` of `count`, which finds the memory that ranks share by an inherited copy of `memory`. It ends with
// the thread that starts it.
using StartRank = std::function<Result<StartedProcess>(int rank, int count, int memory)>;

// A worker's ranks.
struct RankOptions {
  RankPart grid;  // of one rank: the worker computes the whole model by itself
  StartRank start;
  std::vector<WorkerOrder> orders;  // [num_ranks]
  std::string build;                // of the program
  DeviceKind device = DeviceKind::kCpu;  // of each rank
};

// Settings that all ranks must agree on, by name. Which members of LoadOptions are among them is said for each.
using RankSettings = std::vector<std::pair<std::string, std::string>>;
RankSettings rank_settings(const std::string& build, const ModelConfig& config, const LoadOptions& load);
// The first setting that differs: "max_model_len is 512, on rank 0 1024".
Status check_settings(const RankSettings& own, const RankSettings& of_rank_0);

// Rank 0's words to another rank, first.
struct RankOrder {
  WorkerOrder order;
  RankSettings settings;
  int32_t num_blocks = 0;  // LoadOptions::num_blocks_override
};
std::string pack_rank_order(const RankOrder& order);
RankOrder unpack_rank_order(std::string_view bytes);

// How long a rank waits for another one within a step before it gives up; 0: any time. A little less than whoever
// watches the step from outside waits, who cannot say which rank hangs.
double rank_patience_ms(const WorkerOrder& order);

RankPart rank_grid(const JobOptions& options);  // as rank 0 of it

// The end of a job whose device, model or options do not go with several ranks, by name.
std::optional<JobStop> check_rank_options(const JobOptions& options, DeviceKind device, const ModelFiles& model);

// REQUIRES: the job's arithmetic is chosen
RankOptions rank_options(const JobOptions& options, const JobModel& model,
                         const std::vector<std::string>& merged_adapters, StartRank start);

// Not loaded yet. Sets the threads of `load` to rank 0's. The calling thread runs on rank 0's cores from now on, and so
// do those that it starts.
Result<std::unique_ptr<RankedBackend>> make_rank_team(const RankOptions& options, LoadOptions* load);

}  // namespace llmb
