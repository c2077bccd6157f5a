#include "job/record_order.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/durable_file.h"
#include "io/resume_scan.h"

namespace llmb {

namespace {

constexpr uint32_t kCopyBytes = 256 << 10;

struct Place {
  int64_t index;
  int64_t offset;
  uint32_t size;  // at most kMaxRecordBytes
};

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
  if (!scanned.ok()) return scanned.status();
  if (scanned->torn_bytes > 0) return data_loss(path + ": its last line is not a result record");
  return in_order;
}

Result<std::vector<Place>> find_places(const std::string& path, FileOps& ops) {
  std::vector<Place> places;
  int64_t offset = 0;
  const auto scanned = scan_records(
      path,
      [&](const RecordSummary& record, std::string_view bytes) {
        places.push_back({record.index, offset, static_cast<uint32_t>(bytes.size())});
        offset += static_cast<int64_t>(bytes.size());
        return Status();
      },
      ops);
  if (!scanned.ok()) return scanned.status();
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.index < b.index; });
  return places;
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
Status copy_records(const std::vector<Place>& places, int fd, const std::string& path, AtomicFileWriter* writer,
                    FileOps& ops) {
  std::vector<char> buffer;
  for (size_t i = 0; i < places.size();) {
    const int64_t begin = places[i].offset;
    int64_t size = 0;
    do size += places[i++].size;
    while (i < places.size() && places[i].offset == begin + size && size + places[i].size <= kCopyBytes);
    buffer.resize(static_cast<size_t>(size));
    LLMB_RETURN_IF_ERROR(read_at(ops, fd, path, begin, &buffer));
    LLMB_RETURN_IF_ERROR(writer->append({buffer.data(), buffer.size()}));
  }
  return {};
}

}  // namespace

Status sort_records(const std::string& path, const std::string& temporary, FileOps& ops) {
  const Result<bool> in_order = is_in_order(path, ops);
  if (!in_order.ok() || *in_order) return in_order.status();
  const Result<std::vector<Place>> places = find_places(path, ops);
  if (!places.ok()) return places.status();
  const int fd = open_retrying(ops, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return io_error(path + ": cannot open: " + std::strerror(errno));
  AtomicFileWriter writer(path, temporary, ops);
  Status status = writer.open();
  if (status.ok()) status = copy_records(*places, fd, path, &writer, ops);
  ops.close(fd);
  LLMB_RETURN_IF_ERROR(std::move(status));
  return writer.commit();
}

}  // namespace llmb
