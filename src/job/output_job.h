// Finds out what earlier runs left under the output's name, and continues it. Only for outputs that are files.
//
// On disk:   nothing → (manifest running, FILE.partial) → FILE → manifest complete; and back again for an input that
//            grew: manifest running → FILE renamed to FILE.partial → …
// With rows (row_files.h): … FILE.partial → (index, FILE.partial that is a .npy file) → FILE; and back again, by which
//            the index goes.
// A crash between any two of these steps leaves a state that examine() knows, and continuing is idempotent.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/durable_file.h"
#include "base/status.h"
#include "io/input_tally.h"
#include "job/completed_lines.h"
#include "job/job_options.h"
#include "job/manifest_file.h"
#include "job/output_sink.h"
#include "job/run_manifest.h"

namespace llmb {

// Not thread-safe. Calls in this order: open, examine, settle_incomplete, then either begin … complete, or
// complete_as_found. Holds the lock of the output for its life.
//
// Status codes: kConflict, kDataLoss, kUnsupported: the output cannot be continued (exit 7) · kBusy (8) · kIoError (6).
class OutputJob {
 public:
  // `options` and `ops` outlive the job and the sink that begin() gives.
  static Result<std::unique_ptr<OutputJob>> open(const JobOptions& options, const OutputTarget& target,
                                                 KeepGoing keep_going, FileOps& ops = real_file_ops());

  // The recorded fingerprint; null where this run starts afresh, whatever stands there.
  const Fingerprint* recorded() const { return recorded_ ? &recorded_->fingerprint : nullptr; }

  using OnErrorRecord = std::function<Status(std::string_view record)>;

  // Why no new line can be answered into this output, though what is there is complete; else ok. After examine().
  const Status& cannot_grow() const { return cannot_grow_; }
  bool is_complete() const { return recorded_ && recorded_->state == RunState::kComplete; }

  // Looks at what is there; changes nothing. on_error_record gets the error records that stay, but for those of
  // incomplete_lines(). kCancelled: keep_going said no.
  Status examine(const Fingerprint& current, const OnErrorRecord& on_error_record);

  // Indices of lines that were answered before they were written to their end; part of completed().
  std::set<int64_t> incomplete_lines() const;
  // Those of them that have grown are to be answered again, the others stay as they are.
  Status settle_incomplete(const std::set<int64_t>& grown, const OnErrorRecord& on_error_record);

  // The job is complete, and neither its inputs nor its output were touched since: completed() was not filled.
  bool is_untouched() const { return is_untouched_; }
  bool is_continued() const { return source_ != Source::kNone; }  // there is an output of ours
  const CompletedLines& completed() const { return completed_; }  // lines that need no run
  int64_t num_done() const { return num_done_; }                  // their number
  int64_t num_failed() const { return num_failed_; }              // of them, error records

  // When the job's first manifest was made, which is `now` where this run makes it; before begin().
  int64_t created(int64_t now);

  // Changes what is on disk so that records can be appended. `fingerprint` goes into the manifest.
  Result<std::unique_ptr<OutputSink>> begin(const Fingerprint& fingerprint, const Clock& clock);
  // The lines that this run answers begin here; not called where that is not known.
  void set_first_new(int64_t index) { stays_in_order_ = found_in_order_ && index > completed_.last_index(); }
  // Over all lines of the inputs; before complete() or complete_as_found().
  void set_input(const InputTally& input) { manifest_.input = input; }
  // All lines are answered: `sink` becomes the complete output, in the order that was asked for, and the manifest says
  // so. num_records and num_failed: all records of the output, and the error records among them. is_in_order: the sink
  // got its records so.
  Status complete(OutputSink& sink, int64_t num_records, int64_t num_failed, bool is_in_order);
  // The records in the partial file now, where something else has changed it.
  struct Kept {
    int64_t num_records = 0, num_failed = 0;
  };
  Kept count_kept() const;
  // No line is new: makes what is there the complete output. True: it was already.
  Result<bool> complete_as_found(const Fingerprint& fingerprint, const Clock& clock);

 private:
  enum class Source { kNone, kPartial, kFile };

  OutputJob(const JobOptions& options, OutputTarget target, KeepGoing keep_going, FileOps& ops)
      : options_(options), target_(std::move(target)), keep_going_(std::move(keep_going)), ops_(ops) {}
  Status check_fingerprint(Fingerprint current);
  Status choose_source();
  Status check_unchanged() const;
  Result<std::optional<FileIdentity>> put_in_order(bool is_in_order);
  Status mark_complete(const FileIdentity& output, int64_t num_records, int64_t num_failed);
  bool has_rows() const { return options_.output.format == OutputFormat::kNpy; }
  const std::string& source_path() const { return source_ == Source::kFile ? target_.path : partial_; }
  Result<bool> has_index() const;
  Status remove(const std::string& path) const;
  bool check_untouched() const;
  Status scan(const OnErrorRecord& on_error_record);
  bool is_retried(std::string_view error_code) const;
  Status write_manifest(RunState state);
  std::string temporary() const { return target_.partial() + ".tmp"; }

  const JobOptions& options_;
  const OutputTarget target_;
  const std::string partial_ = target_.partial();
  const KeepGoing keep_going_;
  FileOps& ops_;
  std::unique_ptr<ManifestFile> manifest_file_;
  std::optional<RunManifest> recorded_;
  RunManifest manifest_;  // of this run
  Source source_ = Source::kNone;
  bool discard_ = false;  // what stands under the output's names
  bool is_packed_ = false;  // the source is a .npy file
  // As choose_source() saw them: what is decided later holds only while they stay so.
  std::optional<FileIdentity> seen_file_, seen_partial_;
  std::vector<FileFingerprint> inputs_;  // as they were found; empty where one is no file
  bool is_untouched_ = false;
  Status cannot_grow_;
  CompletedLines completed_;
  std::map<int64_t, std::string> incomplete_;  // index → error record of a line without an end
  int64_t num_done_ = 0;
  int64_t num_failed_ = 0;
  int64_t num_retried_ = 0;  // error records to be dropped
  int64_t kept_bytes_ = 0;   // of the records that stay
  bool found_in_order_ = true, stays_in_order_ = false;
};

}  // namespace llmb
