// Records that wait for earlier ones, where they are written in input order: in memory, and beyond that on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

struct FormattedRecord {
  std::string text;  // ends with "\n"
  bool is_error = false;
};

// Not thread-safe. Texts take at most max_bytes of memory; those beyond it stand in a file without a name in the system's
// place for temporary files, which takes no more room once none of them is left. Each record takes some 100 bytes besides.
class HeldRecords {
 public:
  // `ops` outlives them.
  explicit HeldRecords(size_t max_bytes, FileOps& ops = real_file_ops()) : max_bytes_(max_bytes), ops_(ops) {}
  ~HeldRecords();
  HeldRecords(const HeldRecords&) = delete;
  HeldRecords& operator=(const HeldRecords&) = delete;

  // Where it fails, the record is not taken, and `record` is as it was. Each ordinal once.
  Status add(int64_t ordinal, FormattedRecord& record);
  // The record of the lowest ordinal, which is held no more. REQUIRES: size() > 0
  Result<FormattedRecord> take_first();

  size_t size() const { return held_.size(); }
  std::optional<int64_t> first() const { return held_.empty() ? std::nullopt : std::optional(held_.begin()->first); }
  size_t num_on_disk() const { return num_on_disk_; }

 private:
  struct Held {
    FormattedRecord record;  // its text empty: on disk
    int64_t offset = 0, size = 0;
  };
  Status spill(std::string_view text);
  Status open();
  Status read(const Held& held, std::string* text) const;

  const size_t max_bytes_;
  FileOps& ops_;
  std::map<int64_t, Held> held_;
  size_t num_bytes_ = 0;  // of texts in memory
  size_t num_on_disk_ = 0;
  std::string path_;  // of the file, for messages
  int fd_ = -1;
  int64_t end_ = 0;  // of the file
};

}  // namespace llmb
