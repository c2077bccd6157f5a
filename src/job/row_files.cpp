#include "job/row_files.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace llmb {

namespace {

// Fewer bytes than asked for: the file ends there.
Result<size_t> read_at(FileOps& ops, int fd, const std::string& path, int64_t offset, char* out, size_t size) {
  size_t done = 0;
  while (done < size) {
    const auto count = uninterrupted(
        [&] { return ops.pread(fd, out + done, size - done, static_cast<off_t>(offset) + static_cast<off_t>(done)); });
    if (count < 0) return io_error(path + ": cannot read: " + std::strerror(errno));
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

Result<Descriptor> open_to_read(FileOps& ops, const std::string& path) {
  Descriptor file(ops, open_retrying(ops, path, O_RDONLY | O_CLOEXEC, 0));
  if (file.get() < 0) return io_error(path + ": cannot open: " + std::strerror(errno));
  return file;
}

Status damaged(const std::string& path, const std::string& how) {
  return data_loss(path + ": " + how +
                   "; the file was changed or damaged after it was written. Repair it, or start over with `restart`");
}

}  // namespace

Result<bool> is_npy_file(const std::string& path, FileOps& ops) {
  LLMB_ASSIGN_OR_RETURN(const Descriptor file, open_to_read(ops, path));
  char beginning[kNpyMagic.size()];
  LLMB_ASSIGN_OR_RETURN(const size_t size, read_at(ops, file.get(), path, 0, beginning, sizeof beginning));
  return std::string_view(beginning, size) == kNpyMagic;
}

Result<RowFile> RowFile::open(const std::string& path, FileOps& ops) {
  RowFile rows(path, ops);
  LLMB_ASSIGN_OR_RETURN(rows.file_, open_to_read(ops, path));
  char header[kNpyHeaderBytes];
  LLMB_ASSIGN_OR_RETURN(const size_t size, read_at(ops, rows.file_.get(), path, 0, header, sizeof header));
  const std::optional<NpyShape> shape = parse_npy_header({header, size});
  if (!shape) return damaged(path, "not a .npy file as this program writes it");
  rows.shape_ = *shape;
  struct stat st {};
  if (ops.fstat(rows.file_.get(), &st) != 0) return io_error(path + ": cannot stat it: " + std::strerror(errno));
  const int64_t expected = static_cast<int64_t>(kNpyHeaderBytes) + shape->num_rows * shape->row_bytes();
  if (st.st_size != expected)
    return damaged(path, "has " + std::to_string(st.st_size) + " bytes, not the " + std::to_string(expected) +
                             " of its " + std::to_string(shape->num_rows) + " rows");
  return rows;
}

Status RowFile::read(int64_t first, int64_t count, std::string* values) const {
  if (first < 0 || count < 0 || first > shape_.num_rows - count)
    return damaged(path_, "has no rows " + std::to_string(first) + " to " + std::to_string(first + count - 1));
  const size_t begin = values->size(), size = static_cast<size_t>(count * shape_.row_bytes());
  values->resize(begin + size);
  const int64_t offset = static_cast<int64_t>(kNpyHeaderBytes) + first * shape_.row_bytes();
  LLMB_ASSIGN_OR_RETURN(const size_t done, read_at(*ops_, file_.get(), path_, offset, values->data() + begin, size));
  return done == size ? Status() : damaged(path_, "became shorter while it was read");
}

Result<ScanResult> scan_row_index(const std::string& rows, const std::string& index, const OnRecord& on_record,
                                  FileOps& ops) {
  LLMB_ASSIGN_OR_RETURN(const RowFile file, RowFile::open(rows, ops));
  int64_t num_rows = 0;
  const auto check = [&](const RecordSummary& summary, std::string_view record) -> Status {
    const auto parsed = parse_row_record(record);
    if (!parsed || !parsed->rows.empty() || summary.error_code.has_value() == parsed->first_row.has_value())
      return data_loss("not a record of an index");
    if (parsed->first_row && *parsed->first_row != num_rows)
      return data_loss("its row is " + std::to_string(*parsed->first_row) + ", and the next one of " + rows + " is " +
                       std::to_string(num_rows));
    num_rows += parsed->num_rows;
    return on_record(summary, record);
  };
  auto scanned = scan_records(index, check, ops);
  if (scanned.ok() && scanned->torn_bytes > 0) return damaged(index, "its last line is no record");
  if (scanned.ok() && num_rows != file.shape().num_rows)
    return damaged(index, "it names " + std::to_string(num_rows) + " rows, and " + rows + " has " +
                              std::to_string(file.shape().num_rows));
  return scanned;
}

RowFilesWriter::RowFilesWriter(std::string rows, std::string index, const std::string& temporary, int64_t if_none,
                               FileOps& ops)
    : rows_path_(rows),
      rows_(std::move(rows), temporary, ops),
      index_(index, index + ".tmp", ops),
      shape_{.num_rows = 0, .width = if_none} {}

Status RowFilesWriter::open() {
  LLMB_RETURN_IF_ERROR(rows_.open());
  LLMB_RETURN_IF_ERROR(index_.open());
  return rows_.append(std::string(kNpyHeaderBytes, '\0'));  // how many rows there are shows at the end
}

Status RowFilesWriter::add(std::string_view record, const RowFile* source) {
  const std::optional<RowRecord> parsed = parse_row_record(record);
  if (!parsed) return data_loss(rows_path_ + ": a record is none of a run with `output_format` npy");
  if (parsed->rows.empty() && !parsed->first_row) return index_.append(record);
  int64_t num_rows = parsed->num_rows;
  values_.clear();
  if (!parsed->rows.empty()) {
    if (!decode_rows(parsed->rows, &values_, &num_rows))
      return data_loss(rows_path_ + ": " + std::string(parsed->head) + "}: its vectors cannot be read");
  } else if (source == nullptr) {
    return data_loss(rows_path_ + ": " + std::string(parsed->head) + "}: its vectors are not there");
  } else {
    LLMB_RETURN_IF_ERROR(source->read(*parsed->first_row, num_rows, &values_));
  }
  const auto width = static_cast<int64_t>(values_.size()) / (4 * num_rows);
  if (shape_.num_rows == 0) shape_.width = width;
  if (width != shape_.width)
    return data_loss(rows_path_ + ": " + std::string(parsed->head) + "}: its vectors have " + std::to_string(width) +
                     " values, and those before it " + std::to_string(shape_.width));
  line_.clear();
  append_index_record(*parsed, shape_.num_rows, num_rows, &line_);
  LLMB_RETURN_IF_ERROR(index_.append(line_));
  shape_.num_rows += num_rows;
  return rows_.append(values_);
}

Status RowFilesWriter::commit() {
  LLMB_RETURN_IF_ERROR(rows_.replace_beginning(npy_header(shape_)));
  LLMB_RETURN_IF_ERROR(index_.commit());
  return rows_.commit();
}

Result<FileIdentity> pack_rows(const std::string& path, const std::string& index, const std::string& temporary,
                               int64_t num_records, int64_t if_none, FileOps& ops) {
  RowFilesWriter writer(path, index, temporary, if_none, ops);
  LLMB_RETURN_IF_ERROR(writer.open());
  int64_t found = 0;
  const auto add = [&](const RecordSummary& summary, std::string_view record) -> Status {
    ++found;
    const auto parsed = parse_row_record(record);
    if (!parsed || summary.error_code.has_value() != parsed->rows.empty())
      return data_loss("no record of a run with `output_format` npy");
    return writer.add(record);
  };
  LLMB_ASSIGN_OR_RETURN(const ScanResult scanned, scan_records(path, add, ops));
  if (scanned.torn_bytes > 0 || found != num_records)
    return data_loss(path + ": was changed by something else while its rows were put together: it has " +
                     std::to_string(found) + " records, not " + std::to_string(num_records));
  LLMB_RETURN_IF_ERROR(writer.commit());
  return writer.identity();
}

Status unpack_rows(const std::string& path, const std::string& index, const std::string& temporary, FileOps& ops) {
  LLMB_ASSIGN_OR_RETURN(const RowFile rows, RowFile::open(path, ops));
  AtomicFileWriter writer(path, temporary, ops);
  LLMB_RETURN_IF_ERROR(writer.open());
  std::string values, line;
  const auto add = [&](const RecordSummary&, std::string_view record) -> Status {
    const std::optional<RowRecord> parsed = parse_row_record(record);
    if (!parsed->first_row) return writer.append(record);
    values.clear();
    line.clear();
    LLMB_RETURN_IF_ERROR(rows.read(*parsed->first_row, parsed->num_rows, &values));
    append_row_record(*parsed, values, parsed->num_rows, &line);
    return writer.append(line);
  };
  LLMB_RETURN_IF_ERROR(scan_row_index(path, index, add, ops).status());
  LLMB_RETURN_IF_ERROR(writer.commit());
  if (ops.unlink(index.c_str()) != 0 && errno != ENOENT)
    return io_error(index + ": cannot remove: " + std::strerror(errno));
  return sync_directory_of(ops, path);
}

}  // namespace llmb
