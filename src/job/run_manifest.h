// A run writes this beside its output so that a later one can continue it: which settings and model files the answers
// came from, and how far the job got. A JSON object in FILE.manifest.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_identity.h"
#include "base/status.h"
#include "io/input_tally.h"

namespace llmb {

inline constexpr int64_t kManifestFormat = 1;

enum class RunState {
  kStarting,  // what stands under the output's names is to be discarded (`restart`)
  kRunning,   // records are in FILE.partial
  kComplete,  // records are in FILE
};

// A file that answers depend on. Where size, times and inode are as recorded, its content may be taken to be so too.
struct FileFingerprint {
  std::string name;       // "model/config.json": its role and its path in the model's directory
  FileIdentity identity;  // mtime_ns 0: too young when it was read to be recognised; ctime_ns 0: of an older build
  uint64_t content_hash = 0;

  bool same_identity(const FileFingerprint& other) const {
    return identity.mtime_ns != 0 && identity.ctime_ns != 0 && name == other.name && identity == other.identity;
  }
};

// Everything that results depend on, by name. Values of settings are for people and for comparison only.
struct Fingerprint {
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<FileFingerprint> files;
};

// Settings that say how a build and its processor answer, by name: outputs of builds that recorded none stay complete.
inline constexpr const char* kAnswersVersionName = "answers_version";
inline constexpr const char* kArithmeticName = "arithmetic";

// Settings of a shard: part of what a later run must agree with to continue its output, and no part of the job's
// identity, as no answer depends on them.
inline constexpr const char* kShardName = "shard";
inline constexpr const char* kShardByName = "shard_by";

// How an output's records stand in files (job/row_files.h); none: as JSON lines.
inline constexpr const char* kOutputFormatName = "output_format";

// A complete job's inputs and output. Where inputs and output still have the same size, times and inode, nothing is to
// do, however large they are.
struct CompleteJob {
  std::vector<FileFingerprint> inputs;  // as they were before they were read; content_hash is not used
  FileFingerprint output;
  int64_t num_records = 0;
  int64_t num_failed = 0;  // of them, error records
  std::optional<FileFingerprint> index = {};  // of an output of rows
};

struct RunManifest {
  std::string build;    // version of the program; told, never a reason to refuse
  int64_t created = 0;  // when the first manifest of the job was made, in seconds since 1970; 0: of an older build
  RunState state = RunState::kRunning;
  Fingerprint fingerprint;
  std::optional<InputTally> input;      // over all lines of the inputs, other shards' included; only with kComplete
  std::optional<CompleteJob> complete;  // only with kComplete, and only where all inputs were files
};

std::string format_manifest(const RunManifest& manifest);

// kDataLoss: not a manifest, or damaged; kUnsupported: of a newer format. `name` is for messages.
Result<RunManifest> parse_manifest(std::string_view text, const std::string& name);

// A hash of settings and model files' content: the same for all runs and shards of a job. Without no_metrics and what shard it is, which no
// answer depends on.
uint64_t job_hash(const Fingerprint& fingerprint);
// The same for all shards of a job.
Fingerprint without_shard(Fingerprint fingerprint);
// A setting as it was recorded; "": there is none of that name.
std::string setting_of(const Fingerprint& fingerprint, const char* name);
// Whether the output is a .npy file with an index once it is complete.
bool holds_rows(const Fingerprint& fingerprint);

// The components that differ, "temperature was 0.7 and is 0.9"; empty where none does.
std::vector<std::string> fingerprint_differences(const Fingerprint& recorded, const Fingerprint& current);

}  // namespace llmb
