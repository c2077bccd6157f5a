// How a job's workers and ranks are started: as this program again, with the same arguments behind two of its own.
#pragma once

#include <optional>

#include "job/rank_team.h"
#include "job/remote_rank.h"
#include "job/worker_process.h"

namespace llmb {

// The program's arguments outlive it. num_ranks: of each worker, which sees as many GPUs
StartWorker worker_starter(int argc, const char* const* argv, int num_ranks);
StartRank rank_starter(int argc, const char* const* argv);

// In a process that was started so: takes the two arguments away, and sets up the process as that worker. None: it is no
// worker. Before other threads are started.
std::optional<Descriptor> take_worker_arguments(int* argc, const char* const** argv);
// The same of a rank.
std::optional<RankSeat> take_rank_arguments(int* argc, const char* const** argv);

}  // namespace llmb
