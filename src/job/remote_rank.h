// A rank in a process of its own, from inside: loads its part of the model, and executes the plans that rank 0 gives.
#pragma once

#include "base/descriptor.h"
#include "job/job_options.h"

namespace llmb {

// Its place, and what it has inherited.
struct RankSeat {
  int rank = 0, count = 0;
  Descriptor socket;  // to rank 0
  Descriptor memory;  // that ranks share
};

// Ends the process with `exit_code` when rank 0 has ended or any rank has failed, of which rank 0 tells. `options`:
// made of the job's command line.
[[noreturn]] void run_remote_rank(JobOptions options, RankSeat seat, int exit_code);

}  // namespace llmb
