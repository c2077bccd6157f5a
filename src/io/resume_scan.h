// Reads an output that an earlier run left: what it answers, where it is torn, whether it is damaged.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// The facts of one result record that resume needs (result_writer.h has the forms).
struct RecordSummary {
  int64_t index = 0;
  uint64_t content_hash = 0;
  std::optional<std::string_view> error_code;  // of an error record; valid until the next parse()
};

// Not thread-safe: keeps a parser's buffers.
class RecordParser {
 public:
  RecordParser();
  ~RecordParser();

  // kPadding bytes behind the record must be readable. nullopt: not a whole record of ours, whatever else it may be.
  static constexpr size_t kPadding = 64;
  std::optional<RecordSummary> parse(std::string_view record);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct ScanResult {
  int64_t whole_bytes = 0;  // up to the end of the last whole record
  int64_t torn_bytes = 0;   // behind it: a record that was being written when the run ended
};

// Calls on_record(summary, record with its "\n") for each record in order. A tail is torn where the last line has no
// "\n" or is no record; anything else that is not a record is kDataLoss, with its line. Errors of on_record end the
// scan. Memory: a few times the longest record, and that at most kMaxRecordBytes.
inline constexpr size_t kMaxRecordBytes = size_t{256} << 20;
using OnRecord = std::function<Status(const RecordSummary&, std::string_view record)>;
Result<ScanResult> scan_records(const std::string& path, const OnRecord& on_record, FileOps& ops = real_file_ops());

// Replaces the file by its records for which keep() is true, atomically: at any moment it is whole, old or new.
// Ok: on stable storage. `temporary`: a name beside it, free to be overwritten.
Status rewrite_records(const std::string& path, const std::string& temporary,
                       const std::function<bool(const RecordSummary&)>& keep, FileOps& ops = real_file_ops());

}  // namespace llmb
