// A finished output of vectors is a .npy file of rows with an index beside it (io/row_records.h); an unfinished one
// holds them in its records. Here one becomes the other.
//
// Both directions go through temporary files, and the file of rows is replaced last: an output whose file does not
// begin as a .npy file does is one of records, whatever an index says that stands beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/descriptor.h"
#include "base/durable_file.h"
#include "base/file_ops.h"
#include "base/status.h"
#include "io/npy.h"
#include "io/resume_scan.h"
#include "io/row_records.h"

namespace llmb {

// Whether the file begins as a .npy file does. kIoError: it cannot be read.
Result<bool> is_npy_file(const std::string& path, FileOps& ops);

// The rows of a .npy file of ours. `ops` outlives it.
class RowFile {
 public:
  // kDataLoss: another kind of file, or one that was cut short.
  static Result<RowFile> open(const std::string& path, FileOps& ops);

  const NpyShape& shape() const { return shape_; }
  // Appends the values of these rows. kDataLoss: there are no such.
  Status read(int64_t first, int64_t count, std::string* values) const;

 private:
  RowFile(std::string path, FileOps& ops) : path_(std::move(path)), ops_(&ops) {}
  std::string path_;
  FileOps* ops_;
  Descriptor file_;
  NpyShape shape_;
};

// scan_records() over the index of a .npy file. kDataLoss also where it does not name each row of the file once, in
// order.
Result<ScanResult> scan_row_index(const std::string& rows, const std::string& index, const OnRecord& on_record,
                                  FileOps& ops);

// Writes a .npy file and its index, record by record. Not thread-safe. `ops` outlives it.
class RowFilesWriter {
 public:
  // `temporary`: a name that is free to be used for a moment. if_none: the rows' length where there are none.
  RowFilesWriter(std::string rows, std::string index, const std::string& temporary, int64_t if_none, FileOps& ops);

  Status open();
  // A record that holds its vectors, or names rows of `source`, or is an error's. kDataLoss: none of them, or a vector
  // of another length than those before it.
  Status add(std::string_view record, const RowFile* source = nullptr);
  // Ok: both are on stable storage under their names, the index first.
  Status commit();
  const FileIdentity& identity() const { return rows_.identity(); }  // of the .npy file, after commit()
  const NpyShape& shape() const { return shape_; }

 private:
  const std::string rows_path_;
  AtomicFileWriter rows_, index_;
  NpyShape shape_;
  std::string values_, line_;
};

// The records of `path` become rows, in its place, and an index. Its new identity. kDataLoss: not num_records records.
Result<FileIdentity> pack_rows(const std::string& path, const std::string& index, const std::string& temporary,
                               int64_t num_records, int64_t if_none, FileOps& ops);

// The .npy file `path` becomes records again, in its place; the index goes.
Status unpack_rows(const std::string& path, const std::string& index, const std::string& temporary, FileOps& ops);

}  // namespace llmb
