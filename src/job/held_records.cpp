#include "job/held_records.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/durable_file.h"

namespace llmb {

namespace {

constexpr const char* kMoreRoom =
    "; records that wait for earlier ones are kept there: set TMPDIR to a place with more room, or write them as they "
    "are finished (`order`)";

Status failed(const char* call, const std::string& path) {
  return io_error(path + ": cannot " + call + ": " + std::strerror(errno) + kMoreRoom);
}

}  // namespace

HeldRecords::~HeldRecords() {
  if (fd_ >= 0) ops_.close(fd_);
}

Status HeldRecords::add(int64_t ordinal, FormattedRecord& record) {
  const size_t size = record.text.size();
  if (num_bytes_ + size <= max_bytes_) {
    num_bytes_ += size;
    held_.emplace(ordinal, Held{std::move(record), 0, 0});
    return {};
  }
  LLMB_RETURN_IF_ERROR(spill(record.text));
  held_.emplace(ordinal, Held{{"", record.is_error}, end_, static_cast<int64_t>(size)});
  end_ += static_cast<int64_t>(size);
  ++num_on_disk_;
  return {};
}

Result<FormattedRecord> HeldRecords::take_first() {
  const auto first = held_.begin();
  Held& held = first->second;
  if (held.size == 0) {
    num_bytes_ -= held.record.text.size();
  } else {
    LLMB_RETURN_IF_ERROR(read(held, &held.record.text));
    if (--num_on_disk_ == 0 && uninterrupted([&] { return ops_.ftruncate(fd_, 0); }) == 0) end_ = 0;
  }
  FormattedRecord record = std::move(held.record);
  held_.erase(first);
  return record;
}

// A write that failed may have left a part behind, which the next one replaces.
Status HeldRecords::spill(std::string_view text) {
  LLMB_RETURN_IF_ERROR(open());
  while (!text.empty()) {
    const auto count = uninterrupted([&] { return ops_.write(fd_, text.data(), text.size()); });
    if (count <= 0) {
      if (count == 0) errno = EIO;
      const Status status = failed("write", path_);
      (void)uninterrupted([&] { return ops_.ftruncate(fd_, end_); });
      return status;
    }
    text.remove_prefix(static_cast<size_t>(count));
  }
  return {};
}

Status HeldRecords::open() {
  if (fd_ >= 0) return {};
  std::error_code error;
  const std::string folder = std::filesystem::temp_directory_path(error).string();
  if (error) return io_error("no place for temporary files: " + error.message() + kMoreRoom);
  constexpr int kMaxTries = 100;
  for (int i = 0; i < kMaxTries && fd_ < 0; ++i) {
    path_ = folder + "/llm-batch-order-" + std::to_string(::getpid()) + "-" + std::to_string(i);
    fd_ = open_retrying(ops_, path_, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (fd_ < 0 && errno != EEXIST) break;
  }
  if (fd_ < 0) return failed("create", path_);
  if (ops_.unlink(path_.c_str()) != 0) return failed("remove the name", path_);
  return {};
}

Status HeldRecords::read(const Held& held, std::string* text) const {
  text->resize(static_cast<size_t>(held.size));
  for (size_t done = 0; done < text->size();) {
    const auto count = uninterrupted([&] {
      return ops_.pread(fd_, text->data() + done, text->size() - done, held.offset + static_cast<int64_t>(done));
    });
    if (count < 0) return failed("read", path_);
    if (count == 0) return io_error(path_ + ": became shorter while it was read");
    done += static_cast<size_t>(count);
  }
  return {};
}

}  // namespace llmb
