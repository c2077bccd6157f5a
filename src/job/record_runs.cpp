#include "job/record_runs.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <optional>
#include <queue>
#include <utility>

#include "base/durable_file.h"
#include "io/resume_scan.h"

namespace llmb {

namespace {

constexpr size_t kLeastBytes = 16 << 10, kMostBytes = 1 << 20;

// A native record begins with its index; every other is parsed.
std::optional<int64_t> first_index(std::string_view record) {
  constexpr std::string_view kBegin = "{\"index\":";
  if (!record.starts_with(kBegin)) return std::nullopt;
  int64_t index = 0;
  const auto [end, error] = std::from_chars(record.data() + kBegin.size(), record.data() + record.size(), index);
  return error == std::errc() && *end == ',' ? std::optional(index) : std::nullopt;
}

}  // namespace

// The records of one run, read piece by piece.
class RecordRuns::Reader {
 public:
  Reader(const Run& run, FileOps& ops, size_t buffer_size)
      : file_(*run.file), ops_(ops), next_(run.begin), end_(run.end), buffer_(buffer_size) {}

  bool is_at_end() const { return size_ == 0; }
  // REQUIRES: !is_at_end()
  int64_t index() const { return index_; }
  std::string_view record() const { return {buffer_.data() + begin_, size_}; }

  // The next record, or the end.
  Status advance(RecordParser* parser) {
    begin_ += size_;
    size_ = 0;
    for (size_t searched = 0;;) {
      const char* const begin = buffer_.data() + begin_;
      const void* const newline = std::memchr(begin + searched, '\n', filled_ - begin_ - searched);
      if (newline != nullptr) {
        size_ = static_cast<size_t>(static_cast<const char*>(newline) - begin) + 1;
        return read_index(parser);
      }
      searched = filled_ - begin_;
      if (next_ == end_) return searched == 0 ? Status() : changed();
      LLMB_RETURN_IF_ERROR(fill());
    }
  }

 private:
  Status changed() const { return io_error(file_.path + ": was changed while it was read"); }

  Status read_index(RecordParser* parser) {
    if (const auto first = first_index(record())) {
      index_ = *first;
      return {};
    }
    const auto summary = parser->parse(record());
    if (!summary) return changed();
    index_ = summary->index;
    return {};
  }

  Status fill() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, filled_ - begin_);
    filled_ -= begin_;
    begin_ = 0;
    if (filled_ + RecordParser::kPadding >= buffer_.size()) buffer_.resize(2 * buffer_.size());
    const size_t room = buffer_.size() - RecordParser::kPadding - filled_;
    const auto wanted = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(room), end_ - next_));
    const auto count =
        uninterrupted([&] { return ops_.pread(file_.descriptor.get(), buffer_.data() + filled_, wanted, next_); });
    if (count < 0) return io_error(file_.path + ": cannot read: " + std::strerror(errno));
    if (count == 0) return changed();
    filled_ += static_cast<size_t>(count);
    next_ += count;
    return {};
  }

  const File& file_;
  FileOps& ops_;
  int64_t next_, end_;  // not yet read
  std::vector<char> buffer_;
  size_t begin_ = 0, size_ = 0, filled_ = 0;
  int64_t index_ = 0;
};

RecordRuns::RecordRuns(std::string temporary, FileOps& ops, size_t max_in_memory)
    : temporary_(std::move(temporary)), ops_(ops), max_in_memory_(max_in_memory) {}

RecordRuns::~RecordRuns() {
  if (writing_.valid()) writing_.wait();
}

Status RecordRuns::begin_file(const std::string& path) {
  file_ = nullptr;
  if (files_.size() == kMaxFiles) return {};
  Descriptor opened(ops_, open_retrying(ops_, path, O_RDONLY | O_CLOEXEC, 0));
  if (opened.get() < 0) return io_error(path + ": cannot open: " + std::strerror(errno));
  files_.push_back(std::make_unique<File>(File{path, std::move(opened)}));
  file_ = files_.back().get();
  file_offset_ = 0;
  last_index_ = -1;
  runs_.push_back({file_, 0, 0});
  return {};
}

Status RecordRuns::add(int64_t index, std::string_view record) {
  const auto size = static_cast<int64_t>(record.size());
  if (file_ != nullptr && index > last_index_) {
    last_index_ = index;
    runs_.back().end = file_offset_ += size;
    return {};
  }
  file_ = nullptr;
  if (!taken_.held.empty() && taken_.bytes.size() + record.size() > max_in_memory_) LLMB_RETURN_IF_ERROR(spill());
  taken_.held.push_back({index, taken_.bytes.size(), record.size()});
  taken_.bytes += record;
  return {};
}

Status RecordRuns::spill() {
  if (writing_.valid()) LLMB_RETURN_IF_ERROR(writing_.get());
  if (!spilled_) {
    ops_.unlink(temporary_.c_str());
    Descriptor file(ops_, open_retrying(ops_, temporary_, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.get() < 0) return io_error(temporary_ + ": cannot create: " + std::strerror(errno));
    ops_.unlink(temporary_.c_str());
    spilled_ = std::make_unique<File>(File{temporary_, std::move(file)});
  }
  const auto end = spilled_bytes_ + static_cast<int64_t>(taken_.bytes.size());
  runs_.push_back({spilled_.get(), spilled_bytes_, end});
  spilled_bytes_ = end;
  writing_ = std::async(std::launch::async, [this, records = std::exchange(taken_, Records())]() mutable {
    return write_run(std::move(records));
  });
  return {};
}

Status RecordRuns::write_run(Records records) {
  std::sort(records.held.begin(), records.held.end(), [](const Held& a, const Held& b) { return a.index < b.index; });
  std::string buffer;
  const auto write = [&] {
    const Status status = write_fully(ops_, spilled_->descriptor.get(), buffer, temporary_);
    buffer.clear();
    return status;
  };
  for (const Held& record : records.held) {
    buffer.append(records.bytes, record.begin, record.size);
    if (buffer.size() >= kMostBytes) LLMB_RETURN_IF_ERROR(write());
  }
  return write();
}

Status RecordRuns::for_each(const OnRecord& on_record) {
  if (!taken_.held.empty()) LLMB_RETURN_IF_ERROR(spill());
  if (writing_.valid()) LLMB_RETURN_IF_ERROR(writing_.get());
  std::erase_if(runs_, [](const Run& run) { return run.begin == run.end; });
  const size_t share = max_in_memory_ / std::max<size_t>(1, runs_.size());
  std::vector<Reader> readers;
  readers.reserve(runs_.size());
  RecordParser parser;
  using Head = std::pair<int64_t, size_t>;  // index of a run's front, run
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
  for (size_t i = 0; i < runs_.size(); ++i) {
    readers.emplace_back(runs_[i], ops_, std::clamp(share, kLeastBytes, kMostBytes));
    LLMB_RETURN_IF_ERROR(readers[i].advance(&parser));
    if (!readers[i].is_at_end()) heads.emplace(readers[i].index(), i);
  }
  while (!heads.empty()) {
    const size_t number = heads.top().second;
    heads.pop();
    Reader& reader = readers[number];
    // A run's records often follow each other.
    do {
      LLMB_RETURN_IF_ERROR(on_record(reader.index(), reader.record()));
      LLMB_RETURN_IF_ERROR(reader.advance(&parser));
    } while (!reader.is_at_end() && (heads.empty() || reader.index() < heads.top().first));
    if (!reader.is_at_end()) heads.emplace(reader.index(), number);
  }
  return {};
}

}  // namespace llmb
