#include "job/done_rows.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "base/descriptor.h"
#include "base/durable_file.h"
#include "base/whole_file.h"
#include "io/resume_scan.h"
#include "job/output_target.h"
#include "job/row_files.h"

namespace llmb {

namespace {

constexpr size_t kMaxManifestBytes = 16 << 20;

// Held while an output is read: a run that writes it would answer rows that are not seen here.
Result<Descriptor> share_manifest(const std::string& output, const std::string& manifest, FileOps& ops) {
  Descriptor file(ops, open_retrying(ops, manifest, O_RDONLY | O_CLOEXEC, 0));
  if (file.get() < 0)
    return conflict(output + ": is no output of llm-batch: " + manifest + ": " + std::strerror(errno));
  if (uninterrupted([&] { return ops.flock(file.get(), LOCK_SH | LOCK_NB); }) == 0) return file;
  if (errno != EWOULDBLOCK) return io_error(manifest + ": cannot lock: " + std::strerror(errno));
  return busy(output + ": another run is writing this output; wait for it, or leave it out");
}

Status add_records(const std::string& path, const KeepGoing& keep_going, FileOps& ops, DoneRows* done) {
  const auto add = [&](const RecordSummary& record, std::string_view) -> Status {
    if (!keep_going()) return cancelled("interrupted");
    if (done->lines.match(record.index, record.content_hash) == CompletedLines::Match::kEdited)
      return conflict(path + ": answers another line of index " + std::to_string(record.index) +
                      " than an output before it; all outputs of `done` must be of one input");
    done->lines.add(record.index, record.content_hash);
    return {};
  };
  return scan_records(path, add, ops).status();
}

}  // namespace

std::optional<std::string> output_named(const std::string& path) {
  if (file_exists(OutputTarget{.path = path}.manifest())) return path;
  for (const char* suffix : {".manifest.json", ".metrics.jsonl", ".index.jsonl", ".tmp"})
    if (path.ends_with(suffix)) return std::nullopt;
  const std::string partial = ".partial";
  return path.ends_with(partial) ? path.substr(0, path.size() - partial.size()) : path;
}

std::string canonical_path(const std::string& path) {
  std::error_code unknown;
  const std::filesystem::path full = std::filesystem::weakly_canonical(path, unknown);
  return unknown ? path : full.string();
}

Result<FoundOutput> find_output(const std::string& path, FileOps& ops) {
  const OutputTarget target = {.path = path};
  FoundOutput found = {path};
  LLMB_ASSIGN_OR_RETURN(found.lock, share_manifest(path, target.manifest(), ops));
  LLMB_ASSIGN_OR_RETURN(const std::string text, read_whole_file(target.manifest(), kMaxManifestBytes));
  LLMB_ASSIGN_OR_RETURN(found.manifest, parse_manifest(text, target.manifest()));
  if (found.manifest.state == RunState::kStarting) return found;
  if (file_exists(path)) found.records = path;
  else if (file_exists(target.partial())) found.records = target.partial();
  if (found.manifest.state == RunState::kComplete && found.records != path)
    return conflict(path + ": the output was complete and is gone; put it back");
  if (!holds_rows(found.manifest.fingerprint) || found.records.empty()) return found;
  LLMB_ASSIGN_OR_RETURN(const bool is_packed, is_npy_file(found.records, ops));
  if (!is_packed) return found;
  found.rows = std::exchange(found.records, target.index());
  if (!file_exists(found.records))
    return conflict(found.records + ": the index of the output's rows is gone; put it back");
  return found;
}

Result<DoneRows> read_done_rows(const std::vector<std::string>& paths, const std::string& own,
                                const KeepGoing& keep_going, FileOps& ops) {
  DoneRows done;
  std::set<std::string> seen = {canonical_path(own)};
  for (const std::string& path : paths) {
    const auto output = output_named(path);
    if (!output || !seen.insert(canonical_path(*output)).second) continue;
    LLMB_ASSIGN_OR_RETURN(const FoundOutput found, find_output(*output, ops));
    done.outputs.emplace_back(*output, without_shard(found.manifest.fingerprint));
    if (!found.records.empty()) LLMB_RETURN_IF_ERROR(add_records(found.records, keep_going, ops, &done));
  }
  return done;
}

Status check_done_settings(const DoneRows& done, const Fingerprint& current) {
  for (const auto& [output, fingerprint] : done.outputs) {
    const auto differences = fingerprint_differences(fingerprint, without_shard(current));
    if (!differences.empty())
      return conflict(output + ": made with different settings: " + differences.front() +
                      ". Run with the same settings, or leave it out of `done`");
  }
  return {};
}

}  // namespace llmb
