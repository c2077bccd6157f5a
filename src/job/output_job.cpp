#include "job/output_job.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/durable_file.h"
#include "base/log.h"
#include "io/request_parser.h"
#include "io/resume_scan.h"
#include "job/record_order.h"
#include "job/row_files.h"

namespace llmb {

namespace {

// Without a content hash. nullopt: not a file.
std::optional<FileFingerprint> identify(FileOps& ops, const std::string& path) {
  struct stat st {};
  if (path == "-" || ops.stat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return std::nullopt;
  return FileFingerprint{path, identity_of(st), 0};
}

// Empty where one of them is no file. A young file may change again without a new time, and gets none.
std::vector<FileFingerprint> identify_inputs(FileOps& ops, const std::vector<std::string>& paths) {
  std::vector<FileFingerprint> inputs;
  for (const std::string& path : paths) {
    auto file = identify(ops, path);
    if (!file) return {};
    if (is_young(file->identity, change_times_at(path))) file->identity.mtime_ns = 0;
    inputs.push_back(std::move(*file));
  }
  return inputs;
}

}  // namespace

Result<std::unique_ptr<OutputJob>> OutputJob::open(const JobOptions& options, const OutputTarget& target,
                                                   KeepGoing keep_going, FileOps& ops) {
  std::unique_ptr<OutputJob> job(new OutputJob(options, target, std::move(keep_going), ops));
  LLMB_ASSIGN_OR_RETURN(job->manifest_file_, ManifestFile::lock(target.manifest(), target.path, ops));
  job->inputs_ = identify_inputs(ops, options.inputs);
  if (options.output.restart || job->manifest_file_->content().empty()) return job;
  LLMB_ASSIGN_OR_RETURN(job->recorded_, parse_manifest(job->manifest_file_->content(), target.manifest()));
  return job;
}

// Another version of answers is no reason to refuse what is complete, only to answer more lines by it.
Status OutputJob::check_fingerprint(Fingerprint current) {
  Fingerprint recorded = recorded_->fingerprint;
  const auto take = [](Fingerprint& from, const char* name) {
    std::optional<std::string> value;
    std::erase_if(from.settings, [&](const auto& setting) {
      if (setting.first == name) value = setting.second;
      return setting.first == name;
    });
    return value;
  };
  const auto before = take(recorded, kAnswersVersionName), now = take(current, kAnswersVersionName);
  if (before != now) {
    take(recorded, kArithmeticName);  // older builds had no such name
    take(current, kArithmeticName);
    cannot_grow_ = conflict(target_.path + ": begun by llm-batch " + recorded_->build +
                            ", which gives different answers (answers_version was " + before.value_or("not known") +
                            " and is " + now.value_or("not known") +
                            "). Continue with that version, choose another output, or start over with `restart`");
    if (!is_complete()) return cannot_grow_;
  }
  const std::vector<std::string> differences = fingerprint_differences(recorded, current);
  if (differences.empty()) return {};
  std::string message = target_.path + ": begun with different settings: ";
  for (size_t i = 0; i < std::min<size_t>(differences.size(), 3); ++i) message += (i > 0 ? "; " : "") + differences[i];
  if (differences.size() > 3) message += "; and " + std::to_string(differences.size() - 3) + " more";
  return conflict(message + ". Run with the same settings, choose another output, or start over with `restart`");
}

Status OutputJob::examine(const Fingerprint& current, const OnErrorRecord& on_error_record) {
  if (recorded_) {
    LLMB_RETURN_IF_ERROR(check_fingerprint(current));
    if (recorded_->build != options_.build)
      log_warning(target_.path + ": begun by version " + recorded_->build + " and continued by " + options_.build);
  }
  LLMB_RETURN_IF_ERROR(choose_source());
  if (has_rows() && source_ != Source::kNone) {
    LLMB_ASSIGN_OR_RETURN(is_packed_, is_npy_file(source_path(), ops_));
    LLMB_ASSIGN_OR_RETURN(const auto index, identify_file(ops_, target_.index()));
    if (is_packed_ && !index)
      return conflict(target_.index() +
                      ": the index of the output's rows is gone; put it back, or start over with `restart`");
    if (!is_packed_ && source_ == Source::kFile)
      return data_loss(target_.path + ": no .npy file any more; put it back, or start over with `restart`");
  }
  is_untouched_ = check_untouched();
  if (is_untouched_) {
    num_done_ = recorded_->complete->num_records;
    num_failed_ = recorded_->complete->num_failed;
    return {};
  }
  return source_ == Source::kNone ? Status() : scan(on_error_record);
}

Status OutputJob::choose_source() {
  const auto file = identify_file(ops_, target_.path), partial = identify_file(ops_, target_.partial());
  for (const auto* found : {&file, &partial})  // one that cannot be looked at is not "none": it would be overwritten
    if (!found->ok()) return found->status();
  seen_file_ = *file;
  seen_partial_ = *partial;
  const bool has_file = seen_file_ && seen_file_->size > 0, has_partial = seen_partial_ && seen_partial_->size > 0;
  if (options_.output.restart || (recorded_ && recorded_->state == RunState::kStarting)) {
    discard_ = true;
    return {};
  }
  const std::string start_over = "; move it away, or replace it with `restart`";
  if (!recorded_) {
    LLMB_ASSIGN_OR_RETURN(const bool is_taken, has_rows() ? has_index() : Result<bool>(false));
    if (is_taken)
      return conflict(target_.index() + ": exists, and is the name of the output's index" + start_over);
    for (const std::string& path : {target_.path, target_.partial()})
      if (path == target_.path ? has_file : has_partial)
        return conflict(path + ": exists, but " + target_.manifest() + " does not say where it comes from" +
                        start_over);
    return {};
  }
  if (recorded_->state == RunState::kComplete) {
    if (!seen_file_)
      return conflict(target_.path +
                      ": the output was complete and is gone; put it back, or start over with `restart`");
    if (has_partial) return conflict(target_.partial() + ": exists beside a complete output" + start_over);
    source_ = Source::kFile;
    return {};
  }
  if (seen_partial_ && has_file)
    return conflict(target_.path + ": exists beside an unfinished " + target_.partial() + start_over);
  // Without a partial file the last run ended between its rename and its last word in the manifest.
  source_ = seen_partial_ ? Source::kPartial : has_file ? Source::kFile : Source::kNone;
  return {};
}

// Whether something stands where the index is to be.
Result<bool> OutputJob::has_index() const {
  LLMB_ASSIGN_OR_RETURN(const auto found, identify_file(ops_, target_.index()));
  return found && found->size > 0;
}

bool OutputJob::check_untouched() const {
  if (source_ != Source::kFile || recorded_->state != RunState::kComplete || !recorded_->complete) return false;
  // Whoever asks for the errors needs a look at the records.
  if (!options_.output.retry_errors.empty() || !options_.output.error_file.empty()) return false;
  const CompleteJob& before = *recorded_->complete;
  const auto output = identify(ops_, target_.path);
  const auto index = has_rows() ? identify(ops_, target_.index()) : std::nullopt;
  if (!output || output->identity != before.output.identity) return false;
  if (has_rows() && (!index || !before.index || index->identity != before.index->identity)) return false;
  return !inputs_.empty() && std::equal(inputs_.begin(), inputs_.end(), before.inputs.begin(), before.inputs.end(),
                                        [](const auto& a, const auto& b) { return a.same_identity(b); });
}

bool OutputJob::is_retried(std::string_view error_code) const {
  if (options_.output.retry_errors == "*") return true;
  const std::string codes = "," + options_.output.retry_errors + ",";
  return codes.find("," + std::string(error_code) + ",") != std::string::npos && !error_code.empty();
}

Status OutputJob::scan(const OnErrorRecord& on_error_record) {
  const std::string& path = source_path();
  const auto on_record = [&](const RecordSummary& record, std::string_view bytes) -> Status {
    if (!keep_going_()) return cancelled("interrupted");
    if (record.error_code && is_retried(*record.error_code)) {
      num_retried_++;
      return {};
    }
    if (!completed_.add(record.index, record.content_hash))
      return data_loss("a second record for input line index " + std::to_string(record.index));
    found_in_order_ = found_in_order_ && record.index == completed_.last_index();
    kept_bytes_ += static_cast<int64_t>(bytes.size());
    if (!record.error_code) return {};
    num_failed_++;
    if (*record.error_code != kIncompleteLine) return on_error_record(bytes);
    incomplete_.emplace(record.index, bytes);
    return {};
  };
  const auto scanned =
      is_packed_ ? scan_row_index(path, target_.index(), on_record, ops_) : scan_records(path, on_record, ops_);
  LLMB_RETURN_IF_ERROR(scanned.status());
  num_done_ = completed_.size();
  if (scanned->torn_bytes == 0) return {};
  if (source_ == Source::kFile)
    return data_loss(path +
                     ": the last line of a complete output is not a result record; the file was changed or damaged. " +
                     "Repair it, or start over with `restart`");
  log_warning(path + ": dropping a torn record of " + std::to_string(scanned->torn_bytes) +
              " bytes at the end, left by a run that was cut off");
  return {};
}

std::set<int64_t> OutputJob::incomplete_lines() const {
  std::set<int64_t> indices;
  for (const auto& [index, record] : incomplete_) indices.insert(index);
  return indices;
}

Status OutputJob::settle_incomplete(const std::set<int64_t>& grown, const OnErrorRecord& on_error_record) {
  for (const auto& [index, record] : incomplete_) {
    if (!grown.contains(index)) {
      LLMB_RETURN_IF_ERROR(on_error_record(record));
      continue;
    }
    completed_.remove(index);
    kept_bytes_ -= static_cast<int64_t>(record.size());
    num_done_--;
    num_failed_--;
    num_retried_++;
  }
  return {};
}

Status OutputJob::write_manifest(RunState state) {
  manifest_.state = state;
  manifest_.build = options_.build;
  return manifest_file_->replace(format_manifest(manifest_));
}

int64_t OutputJob::created(int64_t now) {
  const bool goes_on = recorded_ && recorded_->created != 0 && !discard_;
  return manifest_.created = goes_on ? recorded_->created : now;
}

Status OutputJob::remove(const std::string& path) const {
  if (ops_.unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return io_error(path + ": cannot remove: " + std::strerror(errno));
}

Result<std::unique_ptr<OutputSink>> OutputJob::begin(const Fingerprint& fingerprint, const Clock& clock) {
  manifest_.fingerprint = fingerprint;
  LLMB_RETURN_IF_ERROR(check_unchanged());
  if (discard_) {
    LLMB_RETURN_IF_ERROR(write_manifest(RunState::kStarting));
    bool has_index = has_rows();
    if (seen_file_ && !has_index) {
      LLMB_ASSIGN_OR_RETURN(has_index, is_npy_file(target_.path, ops_));
    }
    LLMB_RETURN_IF_ERROR(remove(target_.path));
    if (has_index) LLMB_RETURN_IF_ERROR(remove(target_.index()));
  } else if (source_ == Source::kFile) {
    LLMB_RETURN_IF_ERROR(write_manifest(RunState::kRunning));
    LLMB_RETURN_IF_ERROR(move_durably(ops_, target_.path, target_.partial(), seen_partial_));
  }
  if (is_packed_) LLMB_RETURN_IF_ERROR(unpack_rows(partial_, target_.index(), temporary(), ops_));
  else if (has_rows()) LLMB_RETURN_IF_ERROR(remove(target_.index()));  // of a run that was killed while it packed
  if (num_retried_ > 0) {
    const auto stays = [&](const RecordSummary& record) {
      return completed_.contains(record.index) && !(record.error_code && is_retried(*record.error_code));
    };
    LLMB_RETURN_IF_ERROR(rewrite_records(target_.partial(), temporary(), stays, ops_));
  } else {
    ops_.unlink(temporary().c_str());  // of a run that was killed while it rewrote records
  }
  if (is_packed_) {  // what was counted are the index's records
    LLMB_ASSIGN_OR_RETURN(const auto unpacked, identify_file(ops_, partial_));
    kept_bytes_ = unpacked ? unpacked->size : 0;
  }
  OutputSinkOptions sink_options;
  sink_options.path = target_.path;
  sink_options.inputs = options_.inputs;
  sink_options.keep_bytes = kept_bytes_;
  LLMB_ASSIGN_OR_RETURN(auto sink, OutputSink::open(std::move(sink_options), clock, ops_));
  LLMB_RETURN_IF_ERROR(sink->begin());
  // Last: it says that whatever is in the partial file is this job's.
  LLMB_RETURN_IF_ERROR(write_manifest(RunState::kRunning));
  return sink;
}

// Hours may lie between the look at what is there and the first change of it.
Status OutputJob::check_unchanged() const {
  const std::pair<std::string, const std::optional<FileIdentity>*> names[] = {{target_.path, &seen_file_},
                                                                              {target_.partial(), &seen_partial_}};
  for (const auto& [path, seen] : names) {
    LLMB_ASSIGN_OR_RETURN(const auto now, identify_file(ops_, path));
    if (now != *seen)
      return io_error(path + ": was made, changed or removed by something else since this run looked at it; nothing " +
                      "was touched: run again to start from what is there now");
  }
  return {};
}

// Records of earlier runs may stand anywhere.
Result<std::optional<FileIdentity>> OutputJob::put_in_order(bool is_in_order) {
  const bool stays_in_order = is_in_order && (!is_continued() || stays_in_order_);
  if (options_.output.order != OutputOrder::kInput || stays_in_order)
    return std::optional<FileIdentity>();
  return sort_records(target_.partial(), temporary(), ops_);
}

Status OutputJob::complete(OutputSink& sink, int64_t num_records, int64_t num_failed, bool is_in_order) {
  LLMB_RETURN_IF_ERROR(sink.sync_all());
  LLMB_ASSIGN_OR_RETURN(auto rewritten, put_in_order(is_in_order));
  if (has_rows()) {
    LLMB_ASSIGN_OR_RETURN(const bool is_taken, has_index());
    if (is_taken)
      return io_error(target_.index() +
                      ": something else has made this file meanwhile; it is left as it is: move it away");
    LLMB_ASSIGN_OR_RETURN(rewritten, pack_rows(partial_, target_.index(), temporary(), num_records,
                                               options_.output.row_width, ops_));
  }
  LLMB_RETURN_IF_ERROR(sink.finish(rewritten));
  return mark_complete(sink.identity(), num_records, num_failed);
}

// `output`: as it was when it was known to be whole, so that a later change of it is seen.
Status OutputJob::mark_complete(const FileIdentity& output, int64_t num_records, int64_t num_failed) {
  const FileFingerprint file = {target_.path, output, 0};
  if (!inputs_.empty()) manifest_.complete = CompleteJob{inputs_, file, num_records, num_failed};
  if (manifest_.complete && has_rows()) manifest_.complete->index = identify(ops_, target_.index());
  return write_manifest(RunState::kComplete);
}

OutputJob::Kept OutputJob::count_kept() const {
  Kept kept;
  const auto count = [&](const RecordSummary& record, std::string_view) {
    kept.num_records++;
    kept.num_failed += record.error_code.has_value();
    return Status();
  };
  const auto is_packed = has_rows() ? is_npy_file(partial_, ops_) : Result<bool>(false);
  const std::string records = is_packed.ok() && *is_packed ? target_.index() : partial_;
  (void)scan_records(records, count, ops_);  // up to where it is damaged, or gone
  return kept;
}

Result<bool> OutputJob::complete_as_found(const Fingerprint& fingerprint, const Clock& clock) {
  if (is_untouched_) return true;
  manifest_.created = recorded_->created;
  const bool was_complete = source_ == Source::kFile && recorded_->state == RunState::kComplete;
  if (source_ == Source::kPartial) {
    LLMB_ASSIGN_OR_RETURN(auto sink, begin(fingerprint, clock));
    LLMB_RETURN_IF_ERROR(complete(*sink, num_done_, num_failed_, /*is_in_order=*/true));
    return false;
  }
  manifest_.fingerprint = fingerprint;
  if (was_complete) manifest_.fingerprint.settings = recorded_->fingerprint.settings;  // its answers are those still
  // Also where it was complete: the next run finds what it need not read.
  LLMB_RETURN_IF_ERROR(mark_complete(*seen_file_, num_done_, num_failed_));
  return was_complete;
}

}  // namespace llmb
