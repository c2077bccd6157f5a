#include "job/place_sorter.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <queue>
#include <string_view>
#include <utility>

#include "base/durable_file.h"

namespace llmb {

namespace {

constexpr size_t kPlaceBytes = sizeof(RecordPlace);
constexpr size_t kMinBuffer = 64;  // places

}  // namespace

// One sorted run of the temporary file, read piece by piece.
class PlaceSorter::Run {
 public:
  Run(const PlaceSorter& sorter, int64_t first, int64_t count, size_t buffer_size)
      : sorter_(sorter), next_(first), end_(first + count), buffer_size_(buffer_size) {}

  // REQUIRES: fill() was called and is_at_end() is false.
  const RecordPlace& front() const { return buffer_[at_]; }
  bool is_at_end() const { return at_ == buffer_.size() && next_ == end_; }
  Status advance() {
    ++at_;
    return at_ == buffer_.size() ? fill() : Status();
  }

  Status fill() {
    buffer_.resize(static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(buffer_size_), end_ - next_)));
    at_ = 0;
    char* const bytes = reinterpret_cast<char*>(buffer_.data());
    for (size_t done = 0; done < buffer_.size() * kPlaceBytes;) {
      const auto count = uninterrupted([&] {
        return sorter_.ops_.pread(sorter_.fd_, bytes + done, buffer_.size() * kPlaceBytes - done,
                                  next_ * static_cast<int64_t>(kPlaceBytes) + static_cast<int64_t>(done));
      });
      if (count < 0) return io_error(sorter_.temporary_ + ": cannot read: " + std::strerror(errno));
      if (count == 0) return io_error(sorter_.temporary_ + ": became shorter while it was read");
      done += static_cast<size_t>(count);
    }
    next_ += static_cast<int64_t>(buffer_.size());
    return {};
  }

 private:
  const PlaceSorter& sorter_;
  int64_t next_;  // place in the file, that is read next
  const int64_t end_;
  const size_t buffer_size_;
  std::vector<RecordPlace> buffer_;
  size_t at_ = 0;
};

PlaceSorter::PlaceSorter(std::string temporary, FileOps& ops, size_t max_in_memory)
    : temporary_(std::move(temporary)), ops_(ops), max_in_memory_(max_in_memory) {}

PlaceSorter::~PlaceSorter() {
  if (fd_ >= 0) ops_.close(fd_);
}

Status PlaceSorter::add(const RecordPlace& place) {
  if (places_.size() == max_in_memory_) LLMB_RETURN_IF_ERROR(spill());
  places_.push_back(place);
  return {};
}

Status PlaceSorter::spill() {
  if (fd_ < 0) {
    ops_.unlink(temporary_.c_str());
    fd_ = open_retrying(ops_, temporary_, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd_ < 0) return io_error(temporary_ + ": cannot create: " + std::strerror(errno));
    ops_.unlink(temporary_.c_str());
  }
  std::sort(places_.begin(), places_.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  const std::string_view bytes(reinterpret_cast<const char*>(places_.data()), places_.size() * kPlaceBytes);
  LLMB_RETURN_IF_ERROR(write_fully(ops_, fd_, bytes, temporary_));
  run_sizes_.push_back(static_cast<int64_t>(places_.size()));
  places_.clear();
  return {};
}

Status PlaceSorter::for_each(const std::function<Status(const RecordPlace&)>& on_place) {
  if (!run_sizes_.empty()) {
    if (!places_.empty()) LLMB_RETURN_IF_ERROR(spill());
    places_ = {};
    return merge(on_place);
  }
  std::sort(places_.begin(), places_.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  for (const RecordPlace& place : places_) LLMB_RETURN_IF_ERROR(on_place(place));
  return {};
}

Status PlaceSorter::merge(const std::function<Status(const RecordPlace&)>& on_place) {
  const size_t buffer_size = std::max(kMinBuffer, max_in_memory_ / run_sizes_.size());
  std::vector<Run> runs;
  runs.reserve(run_sizes_.size());
  int64_t first = 0;
  for (const int64_t size : run_sizes_) {
    runs.emplace_back(*this, first, size, buffer_size);
    LLMB_RETURN_IF_ERROR(runs.back().fill());
    first += size;
  }
  using Head = std::pair<int64_t, size_t>;  // index of a run's front, run
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
  for (size_t i = 0; i < runs.size(); ++i) heads.emplace(runs[i].front().index, i);
  while (!heads.empty()) {
    Run& run = runs[heads.top().second];
    const size_t number = heads.top().second;
    heads.pop();
    LLMB_RETURN_IF_ERROR(on_place(run.front()));
    LLMB_RETURN_IF_ERROR(run.advance());
    if (!run.is_at_end()) heads.emplace(run.front().index, number);
  }
  return {};
}

}  // namespace llmb
