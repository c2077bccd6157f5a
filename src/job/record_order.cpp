#include "job/record_order.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/durable_file.h"
#include "io/resume_scan.h"
#include "job/place_sorter.h"

namespace llmb {

namespace {

constexpr int64_t kCopyBytes = 256 << 10;

Result<bool> is_in_order(const std::string& path, FileOps& ops) {
  int64_t last_index = -1;
  bool in_order = true;
  const auto scanned = scan_records(
      path,
      [&](const RecordSummary& record, std::string_view) {
        in_order = in_order && record.index > last_index;
        last_index = record.index;
        return Status();
      },
      ops);
  LLMB_RETURN_IF_ERROR(scanned.status());
  if (scanned->torn_bytes > 0) return data_loss(path + ": its last line is not a result record");
  return in_order;
}

Status find_places(const std::string& path, FileOps& ops, PlaceSorter* places) {
  int64_t offset = 0;
  const auto scanned = scan_records(
      path,
      [&](const RecordSummary& record, std::string_view bytes) {
        const auto size = static_cast<int64_t>(bytes.size());
        offset += size;
        return places->add({record.index, offset - size, size});
      },
      ops);
  return scanned.status();
}

Status read_at(FileOps& ops, int fd, const std::string& path, int64_t offset, std::vector<char>* out) {
  for (size_t done = 0; done < out->size();) {
    const auto count = uninterrupted([&] {
      return ops.pread(fd, out->data() + done, out->size() - done,
                       static_cast<off_t>(offset) + static_cast<off_t>(done));
    });
    if (count < 0) return io_error(path + ": cannot read: " + std::strerror(errno));
    if (count == 0) return io_error(path + ": became shorter while it was read");
    done += static_cast<size_t>(count);
  }
  return {};
}

// Records that follow each other in both orders are copied together.
Status copy_records(PlaceSorter* places, int fd, const std::string& path, AtomicFileWriter* writer, FileOps& ops) {
  std::vector<char> buffer;
  int64_t begin = 0, size = 0;
  const auto copy = [&]() -> Status {
    buffer.resize(static_cast<size_t>(size));
    LLMB_RETURN_IF_ERROR(read_at(ops, fd, path, begin, &buffer));
    return writer->append({buffer.data(), buffer.size()});
  };
  const auto take = [&](const RecordPlace& place) -> Status {
    if (place.offset == begin + size && size + place.size <= kCopyBytes) {
      size += place.size;
      return {};
    }
    LLMB_RETURN_IF_ERROR(copy());
    begin = place.offset;
    size = place.size;
    return {};
  };
  LLMB_RETURN_IF_ERROR(places->for_each(take));
  return copy();
}

}  // namespace

Result<std::optional<FileIdentity>> sort_records(const std::string& path, const std::string& temporary, FileOps& ops) {
  LLMB_ASSIGN_OR_RETURN(const bool in_order, is_in_order(path, ops));
  if (in_order) return std::optional<FileIdentity>();
  PlaceSorter places(temporary, ops);
  LLMB_RETURN_IF_ERROR(find_places(path, ops, &places));
  const int fd = open_retrying(ops, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return io_error(path + ": cannot open: " + std::strerror(errno));
  AtomicFileWriter writer(path, temporary, ops);
  Status status = writer.open();
  if (status.ok()) status = copy_records(&places, fd, path, &writer, ops);
  ops.close(fd);
  LLMB_RETURN_IF_ERROR(std::move(status));
  LLMB_RETURN_IF_ERROR(writer.commit());
  return std::optional(writer.identity());
}

}  // namespace llmb
