#include "job/merge.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/durable_file.h"
#include "io/resume_scan.h"
#include "job/completed_lines.h"
#include "job/done_rows.h"
#include "job/manifest_file.h"
#include "job/output_target.h"
#include "job/record_runs.h"
#include "job/row_files.h"
#include "job/run_manifest.h"

namespace llmb {

namespace {

// The record of a line in OpenAI's form says when its job began: the shard's time becomes the whole job's. Inside a
// JSON string every quote has a backslash before it, so the first key of that name is the response's own.
void append_with_created(std::string_view record, const std::string& from, const std::string& to, std::string* out) {
  const bool is_native = record.starts_with("{\"index\":");
  for (const char* name : {",\"created\":", ",\"created_at\":"}) {
    const std::string before = name + from + ",";
    const size_t at = is_native ? record.npos : record.find(before);
    if (at == record.npos) continue;
    out->append(record, 0, at).append(name).append(to).append(",").append(record, at + before.size());
    return;
  }
  *out += record;
}

class Merge {
 public:
  Merge(const MergeOptions& options, const KeepGoing& keep_going, FileOps& ops)
      : options_(options), keep_going_(keep_going), ops_(ops) {}

  Result<MergeResult> run() {
    LLMB_ASSIGN_OR_RETURN(target_, resolve_output(options_.output, {}, ops_));
    if (target_.is_stream) return invalid_argument("merge: " + options_.output + " is no file; name a file");
    LLMB_RETURN_IF_ERROR(find_shards());
    LLMB_RETURN_IF_ERROR(compare_shards());
    LLMB_ASSIGN_OR_RETURN(manifest_file_, ManifestFile::lock(target_.manifest(), target_.path, ops_));
    LLMB_ASSIGN_OR_RETURN(result_.was_complete, look_at_output());
    if (!result_.was_complete) LLMB_RETURN_IF_ERROR(write());
    return result_;
  }

 private:
  Status find_shards();
  Status compare_shards();
  Result<bool> look_at_output() const;
  Status write();
  // Gives a shard's records the time when the whole job began. Null: they stay as they are.
  RecordRuns::Change change_of(const FoundOutput& shard) const;
  using BeginShard = std::function<Status(const FoundOutput& shard)>;
  using OnChecked = std::function<Status(int64_t index, std::string_view record)>;
  Status check_records(const BeginShard& begin_shard, const OnChecked& on_checked);
  // Many records at a time.
  using Append = std::function<Status(std::string_view records)>;
  Status append_in_input_order(const Append& append);
  Status append_as_completed(const Append& append);
  Status write_records(const Append& append);
  Status add_rows(std::string_view records, RowFilesWriter* writer) const;
  // Behind it a crash leaves an output that a run or a merge of the same job goes on with.
  Status begin_replacing();
  Status check_double(const FoundOutput& shard, const RecordSummary& record) const;
  Status check_all_there() const;
  std::string missing_shards() const;
  Status write_manifest(RunState state);

  const MergeOptions& options_;
  const KeepGoing& keep_going_;
  FileOps& ops_;
  OutputTarget target_;
  std::vector<FoundOutput> shards_;
  std::vector<std::optional<RowFile>> row_files_;  // of the shards whose records are an index
  std::unique_ptr<ManifestFile> manifest_file_;
  RunManifest manifest_;  // of the output
  CompletedLines lines_;
  InputTally tally_;  // of the records
  MergeResult result_;
};

Status Merge::find_shards() {
  std::set<std::string> seen;
  for (const std::string& path : options_.shards) {
    const auto output = output_named(path);
    if (!output || !seen.insert(canonical_path(*output)).second) continue;
    if (canonical_path(*output) == canonical_path(target_.path))
      return invalid_argument("merge: " + *output +
                              " is a shard and the output; name the output first, then the shards");
    LLMB_ASSIGN_OR_RETURN(FoundOutput shard, find_output(*output, ops_));
    std::optional<RowFile>& rows = row_files_.emplace_back();
    if (!shard.rows.empty()) {
      LLMB_ASSIGN_OR_RETURN(rows, RowFile::open(shard.rows, ops_));
    }
    shards_.push_back(std::move(shard));
    result_.shards.push_back(*output);
  }
  if (shards_.empty()) return invalid_argument("merge: no shard is named: llm-batch merge OUT SHARD…");
  return {};
}

// One set of settings, one input.
Status Merge::compare_shards() {
  manifest_.fingerprint = without_shard(shards_[0].manifest.fingerprint);
  const FoundOutput* complete = nullptr;
  for (const FoundOutput& shard : shards_) {
    const RunManifest& m = shard.manifest;
    const auto differences = fingerprint_differences(manifest_.fingerprint, without_shard(m.fingerprint));
    if (!differences.empty())
      return conflict("merge: " + shards_[0].path + " and " + shard.path + " are not of one job: " + differences[0] +
                      (differences.size() > 1 ? "; and " + std::to_string(differences.size() - 1) + " more" : ""));
    if (m.created != 0 && (manifest_.created == 0 || m.created < manifest_.created)) manifest_.created = m.created;
    if (!m.input) continue;
    if (complete != nullptr && *complete->manifest.input != *m.input)
      return conflict("merge: " + complete->path + " (an input of " +
                      std::to_string(complete->manifest.input->num_lines) + " lines) and " + shard.path + " (" +
                      std::to_string(m.input->num_lines) + " lines) answer different inputs");
    if (complete == nullptr) complete = &shard;
  }
  if (complete == nullptr)
    return conflict(
        "merge: no shard is finished, so it is not known which rows there are; finish one: run its command again");
  manifest_.input = complete->manifest.input;
  manifest_.complete = complete->manifest.complete;
  for (const FoundOutput& shard : shards_) {
    const auto& other = shard.manifest.complete;
    const bool is_same = !other || (manifest_.complete &&
                                    std::equal(other->inputs.begin(), other->inputs.end(),
                                               manifest_.complete->inputs.begin(), manifest_.complete->inputs.end(),
                                               [](const auto& a, const auto& b) { return a.same_identity(b); }));
    if (!is_same) manifest_.complete.reset();  // copies on other machines: a later run reads its input to see
  }
  return {};
}

// Whether the merge was done before. kConflict: something else stands there.
Result<bool> Merge::look_at_output() const {
  if (options_.restart) return false;
  LLMB_ASSIGN_OR_RETURN(const auto partial, identify_file(ops_, target_.partial()));
  const std::string advice = "; move it away, choose another output, or replace it with `restart`";
  if (partial && partial->size > 0) return conflict(target_.partial() + ": an unfinished run's output" + advice);
  LLMB_ASSIGN_OR_RETURN(const auto output, identify_file(ops_, target_.path));
  if (!output || output->size == 0) return false;
  const std::string& text = manifest_file_->content();
  if (text.empty()) return conflict(target_.path + ": exists, but there is no manifest of it" + advice);
  LLMB_ASSIGN_OR_RETURN(const RunManifest before, parse_manifest(text, target_.manifest()));
  if (!fingerprint_differences(before.fingerprint, manifest_.fingerprint).empty() ||
      (before.state == RunState::kComplete && before.input != manifest_.input))
    return conflict(target_.path + ": exists, and is of another job or input" + advice);
  return before.state == RunState::kComplete;
}

Status Merge::check_double(const FoundOutput& shard, const RecordSummary& record) const {
  std::string other = shard.path;
  for (const FoundOutput& before : shards_) {
    if (&before == &shard) break;
    const auto find = [&](const RecordSummary& r, std::string_view) {
      return r.index == record.index ? cancelled("found") : Status();
    };
    if (!before.records.empty() && scan_records(before.records, find, ops_).status().code() == StatusCode::kCancelled)
      other = before.path;
  }
  return conflict("merge: " + other + " and " + shard.path + " both have a record of the row with index " +
                  std::to_string(record.index) + "; leave one of them out, or do its rows again without the other's");
}

RecordRuns::Change Merge::change_of(const FoundOutput& shard) const {
  if (!shard.rows.empty())
    return [file = static_cast<int32_t>(&shard - shards_.data())](std::string_view record, std::string* out) {
      if (const auto parsed = parse_row_record(record)) append_with_file(*parsed, file, out);
    };
  if (shard.manifest.created == manifest_.created) return {};
  if (setting_of(manifest_.fingerprint, "no_metrics") == "true") return {};
  return [from = std::to_string(shard.manifest.created), to = std::to_string(manifest_.created)](
             std::string_view record, std::string* out) { append_with_created(record, from, to, out); };
}

Status Merge::check_records(const BeginShard& begin_shard, const OnChecked& on_checked) {
  for (const FoundOutput& shard : shards_) {
    if (shard.records.empty()) continue;
    LLMB_RETURN_IF_ERROR(begin_shard(shard));
    const auto on_record = [&](const RecordSummary& record, std::string_view bytes) -> Status {
      if (!keep_going_()) return cancelled("interrupted");
      if (!lines_.add(record.index, record.content_hash)) return check_double(shard, record);
      tally_.add(record.index, record.content_hash);
      ++result_.num_records;
      result_.num_failed += record.error_code.has_value();
      return on_checked(record.index, bytes);
    };
    const auto scanned = shard.rows.empty() ? scan_records(shard.records, on_record, ops_)
                                            : scan_row_index(shard.rows, shard.records, on_record, ops_);
    LLMB_RETURN_IF_ERROR(scanned.status());
    if (scanned->torn_bytes > 0 && shard.records == shard.path)
      return data_loss(shard.path +
                       ": the last line of a complete output is no record; the file was changed or cut short");
  }
  return check_all_there();
}

Status Merge::append_in_input_order(const Append& append) {
  RecordRuns runs(target_.partial() + ".sort", shards_.size(), ops_);
  const auto begin_shard = [&](const FoundOutput& shard) { return runs.begin_file(shard.records, change_of(shard)); };
  const auto add = [&](int64_t index, std::string_view record) {
    runs.add(index, record.size());
    return Status();
  };
  LLMB_RETURN_IF_ERROR(check_records(begin_shard, add));
  return runs.for_each([&](std::string_view records) {
    return keep_going_() ? append(records) : cancelled("interrupted");
  });
}

Status Merge::append_as_completed(const Append& append) {
  RecordRuns::Change change;
  std::string changed;
  const auto begin_shard = [&](const FoundOutput& shard) {
    change = change_of(shard);
    return Status();
  };
  const auto on_checked = [&](int64_t, std::string_view record) -> Status {
    if (!change) return append(record);
    changed.clear();
    change(record, &changed);
    return append(changed);
  };
  return check_records(begin_shard, on_checked);
}

Status Merge::write_records(const Append& append) {
  return options_.order == OutputOrder::kInput ? append_in_input_order(append) : append_as_completed(append);
}

// Each says which shard's file has its rows, or holds them.
Status Merge::add_rows(std::string_view records, RowFilesWriter* writer) const {
  while (!records.empty()) {
    const std::string_view record = records.substr(0, records.find('\n') + 1);
    records.remove_prefix(record.size());
    const auto parsed = parse_row_record(record);
    const auto file = static_cast<size_t>(parsed ? parsed->file : 0);
    const bool is_named = parsed && parsed->first_row && file < row_files_.size() && row_files_[file];
    LLMB_RETURN_IF_ERROR(writer->add(record, is_named ? &*row_files_[file] : nullptr));
  }
  return {};
}

// "shard 2/7, 5/7"; "" where each number of shards is there whole.
std::string Merge::missing_shards() const {
  std::map<int64_t, std::set<int64_t>> found;  // count → indices
  for (const FoundOutput& shard : shards_)
    if (const auto one = parse_shard(setting_of(shard.manifest.fingerprint, kShardName)); one.ok())
      found[one->count].insert(one->index);
  std::string names;
  int64_t num_missing = 0;
  for (const auto& [count, indices] : found)
    for (int64_t i = 0; i < count; ++i)
      if (!indices.contains(i) && ++num_missing <= 8) names += (names.empty() ? "" : ", ") + shard_text({i, count});
  return num_missing > 8 ? names + " and " + std::to_string(num_missing - 8) + " more" : names;
}

Status Merge::check_all_there() const {
  const InputTally& input = *manifest_.input;
  if (tally_ == input) return {};
  if (tally_.num_lines > input.num_lines)
    return conflict("merge: " + std::to_string(tally_.num_lines) + " records for the " +
                    std::to_string(input.num_lines) + " rows of the input: a partial output is of another input");
  if (tally_.num_lines == input.num_lines)
    return conflict(
        "merge: a partial output answers lines that are not those of the input: another file, or one that was "
        "edited; do its shard again with `restart`");
  std::string message = "merge: " + std::to_string(input.num_lines - tally_.num_lines) + " of " +
                        std::to_string(input.num_lines) + " rows have no record";
  std::string unfinished;
  for (const FoundOutput& shard : shards_)
    if (shard.manifest.state != RunState::kComplete) unfinished += (unfinished.empty() ? "" : ", ") + shard.path;
  if (const std::string missing = missing_shards(); !missing.empty()) message += "; missing: shard " + missing;
  if (!unfinished.empty()) message += "; not finished: " + unfinished;
  return conflict(message +
                  ". Run these shards, or any other number of shards with `done` and all outputs that there are");
}

Status Merge::write_manifest(RunState state) {
  manifest_.state = state;
  manifest_.build = options_.build;
  RunManifest manifest = manifest_;
  if (state != RunState::kComplete) manifest.complete.reset(), manifest.input.reset();
  return manifest_file_->replace(format_manifest(manifest));
}

Status Merge::begin_replacing() {
  LLMB_RETURN_IF_ERROR(write_manifest(RunState::kRunning));
  if (ops_.unlink(target_.partial().c_str()) == 0 || errno == ENOENT) return {};
  return io_error(target_.partial() + ": cannot remove: " + std::strerror(errno));
}

Status Merge::write() {
  const std::string temporary = target_.partial() + ".tmp";
  FileIdentity identity;
  std::optional<FileFingerprint> index;
  if (holds_rows(manifest_.fingerprint)) {
    int64_t width = 0;  // where there are no rows
    for (const auto& rows : row_files_) width = rows ? std::max(width, rows->shape().width) : width;
    RowFilesWriter writer(target_.path, target_.index(), temporary, width, ops_);
    LLMB_RETURN_IF_ERROR(writer.open());
    LLMB_RETURN_IF_ERROR(write_records([&](std::string_view records) { return add_rows(records, &writer); }));
    LLMB_RETURN_IF_ERROR(begin_replacing());
    LLMB_RETURN_IF_ERROR(writer.commit());
    identity = writer.identity();
    LLMB_ASSIGN_OR_RETURN(const auto written, identify_file(ops_, target_.index()));
    if (written) index = FileFingerprint{target_.index(), *written, 0};
  } else {
    AtomicFileWriter writer(target_.path, temporary, ops_);
    LLMB_RETURN_IF_ERROR(writer.open());
    LLMB_RETURN_IF_ERROR(write_records([&](std::string_view records) { return writer.append(records); }));
    LLMB_RETURN_IF_ERROR(begin_replacing());
    LLMB_RETURN_IF_ERROR(writer.commit());
    identity = writer.identity();
  }
  if (manifest_.complete) {
    manifest_.complete->output = {target_.path, identity, 0};
    manifest_.complete->index = std::move(index);
    manifest_.complete->num_records = result_.num_records;
    manifest_.complete->num_failed = result_.num_failed;
  }
  return write_manifest(RunState::kComplete);
}

}  // namespace

Result<MergeResult> merge_outputs(const MergeOptions& options, const KeepGoing& keep_going, FileOps& ops) {
  return Merge(options, keep_going, ops).run();
}

}  // namespace llmb
