#include "cli/shard_options.h"

#include <CLI/CLI.hpp>
#include <string>

#include "cli/option_values.h"

namespace llmb {

void add_shard_options(CLI::App& app, Options& o) {
  const std::string group = "Shards: one input on several machines, merged by llm-batch merge";
  app.add_option("--shard", o.texts.shard,
                 "Answer the rows of shard I of N (from 0) into an output of their own; auto: as the task's number in a Slurm "
                 "array, a Kubernetes Indexed Job, AWS Batch, SkyPilot or MPI says")
      ->group(group)
      ->option_text("I/N");
  app.add_option("--shard-by", o.texts.shard_by,
                 "rows: by line numbers, from any input; prefix: rows that share a prompt's beginning together, from files, "
                 "which every shard tokenises whole")
      ->transform(one_of<ShardBy>({{"rows", ShardBy::kRows}, {"prefix", ShardBy::kPrefix}}))
      ->group(group)
      ->option_text("rows|prefix [rows]");
  app.add_option("--done", o.job.done,
                 "Leave out rows that these outputs hold, finished or partial, so that any other N finishes what is left; "
                 "behind the inputs")
      ->group(group)
      ->option_text("OUTPUT…");
}

}  // namespace llmb
