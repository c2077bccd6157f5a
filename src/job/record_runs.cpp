#include "job/record_runs.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <queue>
#include <utility>

#include "base/descriptor.h"
#include "base/durable_file.h"
#include "io/resume_scan.h"

namespace llmb {

namespace {

constexpr size_t kLeastBytes = 16 << 10, kMostBytes = 1 << 20;  // of a chunk

// A native record begins with its index; every other is parsed.
std::optional<int64_t> first_index(std::string_view record) {
  constexpr std::string_view kBegin = "{\"index\":";
  if (!record.starts_with(kBegin)) return std::nullopt;
  int64_t index = 0;
  const auto [end, error] = std::from_chars(record.data() + kBegin.size(), record.data() + record.size(), index);
  return error == std::errc() && *end == ',' ? std::optional(index) : std::nullopt;
}

Result<FileIdentity> identity_of_open(int fd, const std::string& path, FileOps& ops) {
  struct stat st {};
  if (ops.fstat(fd, &st) != 0) return io_error(path + ": cannot stat it: " + std::strerror(errno));
  return identity_of(st);
}

// A chunk in memory.
struct Loaded {
  std::unique_ptr<char[]> bytes;
  size_t size = 0, capacity = 0;
  std::string changed;

  struct Place {
    int64_t index;
    uint32_t begin, size;
  };
  std::vector<Place> places;  // by index
  size_t next = 0;
  const char* text = nullptr;

  std::string_view record() const { return {text + places[next].begin, places[next].size}; }
  size_t memory() const { return capacity + changed.capacity() + places.capacity() * sizeof(Place); }

  void reserve(size_t num_bytes) {
    if (capacity >= num_bytes) return;
    bytes = std::make_unique_for_overwrite<char[]>(num_bytes);
    capacity = num_bytes;
  }
  bool find_records(RecordParser* parser);
  void apply(const std::function<void(std::string_view record, std::string* out)>& change);
};

// False: these are not whole records.
bool Loaded::find_records(RecordParser* parser) {
  places.clear();
  next = 0;
  text = bytes.get();
  for (size_t at = 0; at < size;) {
    const void* const newline = std::memchr(text + at, '\n', size - at);
    if (newline == nullptr) return false;
    const size_t length = static_cast<size_t>(static_cast<const char*>(newline) - text) + 1 - at;
    std::optional<int64_t> index = first_index({text + at, length});
    if (!index)
      if (const auto summary = parser->parse({text + at, length})) index = summary->index;
    if (!index) return false;
    places.push_back({*index, static_cast<uint32_t>(at), static_cast<uint32_t>(length)});
    at += length;
  }
  const auto is_before = [](const Place& a, const Place& b) { return a.index < b.index; };
  if (!std::is_sorted(places.begin(), places.end(), is_before)) std::sort(places.begin(), places.end(), is_before);
  return !places.empty();
}

void Loaded::apply(const std::function<void(std::string_view, std::string*)>& change) {
  changed.clear();
  for (Place& place : places) {
    const size_t begin = changed.size();
    change({text + place.begin, place.size}, &changed);
    place = {place.index, static_cast<uint32_t>(begin), static_cast<uint32_t>(changed.size() - begin)};
  }
  text = changed.data();
}

}  // namespace

// Merges the chunks.
class RecordRuns::Merging {
 public:
  Merging(RecordRuns& runs, const OnRecord& on_record)
      : runs_(runs), on_record_(on_record), unread_(Later(), std::move(runs.chunks_)) {}

  Status run() {
    while (true) {
      LLMB_RETURN_IF_ERROR(read_ahead());
      LLMB_RETURN_IF_ERROR(take_below(lowest_unloaded(), on_record_));
      if (ahead_.empty()) return {};
      if (in_memory_ + ahead_.front()->chunk.size > runs_.max_in_memory_ && heads_.size() >= kLeastLoaded)
        LLMB_RETURN_IF_ERROR(spill());
      LLMB_RETURN_IF_ERROR(load());
    }
  }

 private:
  // Whose records another thread looks for.
  struct Ahead {
    Chunk chunk;
    std::unique_ptr<Loaded> loaded;
    RecordParser parser;
    std::future<bool> found;  // false: it is not what it was; destroyed first, which waits
  };
  struct Head {
    int64_t index;
    Loaded* chunk;
    bool operator>(const Head& other) const { return index > other.index; }
  };
  struct Later {
    bool operator()(const Chunk& a, const Chunk& b) const { return a.lowest > b.lowest; }
  };

  std::optional<int64_t> lowest_unloaded() const;
  Status take_below(std::optional<int64_t> bound, const OnRecord& take);
  Status read_ahead();
  Status read(const Chunk& chunk, Loaded* loaded);
  Status read_bytes(int fd, const std::string& path, const Chunk& chunk, char* bytes);
  Status load();
  Status spill();
  Status open_temporary();
  Status changed(const Chunk& chunk) const {
    return io_error((chunk.file ? chunk.file->path : runs_.temporary_) + ": was changed while it was read");
  }
  static void prefetch(std::string_view record) {
    for (size_t at = 0; at < std::min<size_t>(record.size(), 512); at += 64) __builtin_prefetch(record.data() + at);
  }

  RecordRuns& runs_;
  const OnRecord& on_record_;
  std::priority_queue<Chunk, std::vector<Chunk>, Later> unread_;
  std::deque<std::unique_ptr<Ahead>> ahead_;
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads_;  // one for each chunk in memory
  std::vector<std::unique_ptr<Loaded>> loaded_, free_;
  size_t in_memory_ = 0;
  Descriptor spilled_;
  int64_t spilled_bytes_ = 0;
};

std::optional<int64_t> RecordRuns::Merging::lowest_unloaded() const {
  std::optional<int64_t> lowest;
  if (!unread_.empty()) lowest = unread_.top().lowest;
  for (const auto& ahead : ahead_) lowest = std::min(lowest.value_or(ahead->chunk.lowest), ahead->chunk.lowest);
  return lowest;
}

// nullopt: all of them.
Status RecordRuns::Merging::take_below(std::optional<int64_t> bound, const OnRecord& take) {
  while (!heads_.empty() && (!bound || heads_.top().index < *bound)) {
    Loaded& chunk = *heads_.top().chunk;
    heads_.pop();
    int64_t index = 0;
    // A chunk's records often follow each other.
    do {
      LLMB_RETURN_IF_ERROR(take(chunk.places[chunk.next].index, chunk.record()));
      if (++chunk.next == chunk.places.size()) break;
      index = chunk.places[chunk.next].index;
    } while ((!bound || index < *bound) && (heads_.empty() || index < heads_.top().index));
    if (chunk.next < chunk.places.size()) {
      prefetch(chunk.record());
      heads_.push({index, &chunk});
      continue;
    }
    in_memory_ -= chunk.memory();
    const auto at = std::find_if(loaded_.begin(), loaded_.end(), [&](const auto& one) { return one.get() == &chunk; });
    if (chunk.capacity <= 2 * runs_.chunk_bytes_) free_.push_back(std::move(*at));
    loaded_.erase(at);
  }
  return {};
}

Status RecordRuns::Merging::read_ahead() {
  while (ahead_.size() < kMostAhead && !unread_.empty()) {
    auto next = std::make_unique<Ahead>();
    next->chunk = unread_.top();
    unread_.pop();
    if (free_.empty()) free_.push_back(std::make_unique<Loaded>());
    next->loaded = std::move(free_.back());
    free_.pop_back();
    LLMB_RETURN_IF_ERROR(read(next->chunk, next->loaded.get()));
    const bool is_alone = ahead_.empty() && unread_.empty();
    // Without a policy, a system that has no thread left is none the worse for it.
    const auto find = [to = next.get()] {
      Loaded& loaded = *to->loaded;
      if (!loaded.find_records(&to->parser) || loaded.places[0].index != to->chunk.lowest) return false;
      if (to->chunk.file != nullptr && to->chunk.file->change) loaded.apply(to->chunk.file->change);
      return true;
    };
    next->found = is_alone ? std::async(std::launch::deferred, find) : std::async(find);
    ahead_.push_back(std::move(next));
  }
  return {};
}

Status RecordRuns::Merging::read(const Chunk& chunk, Loaded* loaded) {
  loaded->reserve(chunk.size + RecordParser::kPadding);
  loaded->size = chunk.size;
  if (chunk.file == nullptr) return read_bytes(spilled_.get(), runs_.temporary_, chunk, loaded->bytes.get());
  const Descriptor file(runs_.ops_, open_retrying(runs_.ops_, chunk.file->path, O_RDONLY | O_CLOEXEC, 0));
  if (file.get() < 0) return io_error(chunk.file->path + ": cannot open: " + std::strerror(errno));
  LLMB_RETURN_IF_ERROR(read_bytes(file.get(), chunk.file->path, chunk, loaded->bytes.get()));
  LLMB_ASSIGN_OR_RETURN(const FileIdentity now, identity_of_open(file.get(), chunk.file->path, runs_.ops_));
  return now == chunk.file->identity ? Status() : changed(chunk);
}

Status RecordRuns::Merging::read_bytes(int fd, const std::string& path, const Chunk& chunk, char* bytes) {
  for (size_t done = 0; done < chunk.size;) {
    const auto count = uninterrupted([&] {
      return runs_.ops_.pread(fd, bytes + done, chunk.size - done, chunk.begin + static_cast<int64_t>(done));
    });
    if (count < 0) return io_error(path + ": cannot read: " + std::strerror(errno));
    if (count == 0) return changed(chunk);
    done += static_cast<size_t>(count);
  }
  return {};
}

Status RecordRuns::Merging::load() {
  const std::unique_ptr<Ahead> next = std::move(ahead_.front());
  ahead_.pop_front();
  if (!next->found.get()) return changed(next->chunk);
  in_memory_ += next->loaded->memory();
  heads_.push({next->chunk.lowest, next->loaded.get()});
  loaded_.push_back(std::move(next->loaded));
  return {};
}

Status RecordRuns::Merging::spill() {
  if (spilled_.get() < 0) LLMB_RETURN_IF_ERROR(open_temporary());
  std::string bytes;
  int64_t lowest = 0;
  const auto write = [&]() -> Status {
    LLMB_RETURN_IF_ERROR(write_fully(runs_.ops_, spilled_.get(), bytes, runs_.temporary_));
    unread_.push({nullptr, spilled_bytes_, bytes.size(), lowest});
    spilled_bytes_ += static_cast<int64_t>(bytes.size());
    bytes.clear();
    return {};
  };
  const auto add = [&](int64_t index, std::string_view record) -> Status {
    if (!bytes.empty() && bytes.size() + record.size() > runs_.chunk_bytes_) LLMB_RETURN_IF_ERROR(write());
    if (bytes.empty()) lowest = index;
    bytes += record;
    return {};
  };
  LLMB_RETURN_IF_ERROR(take_below(std::nullopt, add));
  return write();
}

Status RecordRuns::Merging::open_temporary() {
  const std::string& path = runs_.temporary_;
  runs_.ops_.unlink(path.c_str());
  spilled_ = Descriptor(runs_.ops_, open_retrying(runs_.ops_, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (spilled_.get() < 0) return io_error(path + ": cannot create: " + std::strerror(errno));
  runs_.ops_.unlink(path.c_str());
  return {};
}

RecordRuns::RecordRuns(std::string temporary, size_t num_files, FileOps& ops, size_t max_in_memory)
    : temporary_(std::move(temporary)),
      ops_(ops),
      max_in_memory_(max_in_memory),
      chunk_bytes_(std::clamp(max_in_memory / (4 * std::max<size_t>(1, num_files)), kLeastBytes, kMostBytes)) {}

Status RecordRuns::begin_file(const std::string& path, Change change) {
  const Descriptor file(ops_, open_retrying(ops_, path, O_RDONLY | O_CLOEXEC, 0));
  if (file.get() < 0) return io_error(path + ": cannot open: " + std::strerror(errno));
  LLMB_ASSIGN_OR_RETURN(const FileIdentity identity, identity_of_open(file.get(), path, ops_));
  files_.push_back(std::make_unique<File>(File{path, identity, std::move(change)}));
  end_ = 0;
  return {};
}

void RecordRuns::add(int64_t index, size_t size) {
  const File* const file = files_.back().get();
  const bool is_new = end_ == 0 || chunks_.back().size + size > chunk_bytes_;
  if (is_new) chunks_.push_back({file, end_, 0, index});
  Chunk& chunk = chunks_.back();
  chunk.size += size;
  chunk.lowest = std::min(chunk.lowest, index);
  end_ += static_cast<int64_t>(size);
}

Status RecordRuns::for_each(const OnRecord& on_record) { return Merging(*this, on_record).run(); }

}  // namespace llmb
