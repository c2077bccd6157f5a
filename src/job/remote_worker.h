// A worker in a process of its own, from inside: loads the model, answers the rows that come on a socket, and ends with
// the job at its other end.
#pragma once

#include "base/descriptor.h"
#include "job/job_options.h"
#include "job/rank_team.h"
#include "job/workforce.h"

namespace llmb {

// Ends the process, with 0 where the job asked it to end. `options`: made of the job's command line.
// start_rank: of the worker's own ranks.
[[noreturn]] void run_remote_worker(JobOptions options, Descriptor socket, const BackendFactory& make_backend,
                                    StartRank start_rank);

}  // namespace llmb
