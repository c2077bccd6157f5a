// Rows that other outputs hold, finished or partial: a run that is given them leaves these rows out.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/file_ops.h"
#include "base/status.h"
#include "job/completed_lines.h"
#include "job/job_options.h"
#include "job/run_manifest.h"

namespace llmb {

// The output that a file belongs to: itself, or of a partial file the finished one. nullopt: a file beside an output that
// holds no rows (a manifest, metrics), so that `out.*` may name all of them.
std::optional<std::string> output_named(const std::string& path);

// An output and what its manifest says, as long as nobody writes it.
struct FoundOutput {
  std::string path;
  std::string records;  // the file that holds them, finished or partial; "": there is none
  std::string rows;     // the .npy file of which `records` is the index; "": records hold all that there is
  RunManifest manifest;
  Descriptor lock;  // shared
};
// kConflict: it is no output of ours; kBusy: a run is writing it; else as parse_manifest().
Result<FoundOutput> find_output(const std::string& path, FileOps& ops = real_file_ops());

// The same for all names of one file.
std::string canonical_path(const std::string& path);

struct DoneRows {
  CompletedLines lines;
  std::vector<std::pair<std::string, Fingerprint>> outputs;  // by name; without what shard they are
};

// Reads outputs and their manifests; `own`, the output of this run, is passed over. kConflict: a name is no output of
// ours, or two of them answer different inputs; kBusy: a run is writing one; kDataLoss: it is damaged; kCancelled.
Result<DoneRows> read_done_rows(const std::vector<std::string>& paths, const std::string& own,
                                const KeepGoing& keep_going, FileOps& ops = real_file_ops());

// kConflict: an output was made by other settings than these.
Status check_done_settings(const DoneRows& done, const Fingerprint& current);

}  // namespace llmb
