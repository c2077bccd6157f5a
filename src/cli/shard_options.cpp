#include "cli/shard_options.h"

#include <CLI/CLI.hpp>
#include <string>

namespace llmb {

void add_shard_options(CLI::App& app, Options& o) {
  const std::string group = "Shards: one input on several machines, merged by llm-batch merge";
  app.add_option("--shard", o.texts.shard,
                 "Answer the rows of shard I of N (from 0) into an output of their own; auto: as the task's number in a Slurm "
                 "array, a Kubernetes Indexed Job, AWS Batch, SkyPilot or MPI says")
      ->group(group)
      ->option_text("I/N");
  app.add_option("--done", o.job.done,
                 "Leave out rows that these outputs hold, finished or partial, so that any other N finishes what is left; "
                 "behind the inputs")
      ->group(group)
      ->option_text("OUTPUT…");
}

}  // namespace llmb
