#include "job/record_runs.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <iterator>
#include <optional>
#include <queue>
#include <utility>

#include "base/descriptor.h"
#include "base/durable_file.h"
#include "job/loaded_records.h"

namespace llmb {

namespace {

constexpr size_t kLeastBytes = 16 << 10, kMostBytes = LoadedRecords::kHugePage - RecordParser::kPadding;  // of a chunk
constexpr size_t kPieceBytes = 1 << 20;  // of records in order, that go on together

Result<FileIdentity> identity_of_open(int fd, const std::string& path, FileOps& ops) {
  struct stat st {};
  if (ops.fstat(fd, &st) != 0) return io_error(path + ": cannot stat it: " + std::strerror(errno));
  return identity_of(st);
}

}  // namespace

// Merges the chunks.
class RecordRuns::Merging {
 public:
  Merging(RecordRuns& runs, const OnRecords& on_records)
      : runs_(runs), on_records_(on_records), unread_(Later(), std::move(runs.chunks_)) {}

  Status run() {
    const auto add = [this](int64_t, std::string_view record) { return add_to_piece(record); };
    while (true) {
      LLMB_RETURN_IF_ERROR(read_ahead());
      LLMB_RETURN_IF_ERROR(take_below(lowest_unloaded(), add));
      if (ahead_.empty()) return give_pieces();
      if (lacks_memory()) LLMB_RETURN_IF_ERROR(give_pieces());  // chunks that were taken whole are kept for them
      if (lacks_memory() && heads_.size() >= kLeastLoaded) LLMB_RETURN_IF_ERROR(spill());
      LLMB_RETURN_IF_ERROR(load());
    }
  }

 private:
  // That another thread reads, to look for its records.
  struct Ahead {
    Chunk chunk;
    std::unique_ptr<LoadedRecords> loaded;
    RecordParser parser;
    std::future<Status> found;  // destroyed first, which waits
  };
  struct Head {
    int64_t index;
    LoadedRecords* chunk;
    bool operator>(const Head& other) const { return index > other.index; }
  };
  struct Later {
    bool operator()(const Chunk& a, const Chunk& b) const { return a.lowest > b.lowest; }
  };

  // Records that follow each other, which another thread copies into one piece.
  struct Piece {
    std::vector<std::string_view> records;
    size_t num_bytes = 0;
    std::unique_ptr<char[]> bytes;
    size_t capacity = 0;
    std::vector<std::unique_ptr<LoadedRecords>> taken;  // chunks whose last records are among these
    std::future<void> gathered;                         // destroyed first, which waits

    void gather();
  };

  std::optional<int64_t> lowest_unloaded() const;
  bool lacks_memory() const { return in_memory_ + ahead_.front()->chunk.size > runs_.max_in_memory_; }
  // take(index, record)
  template <typename Take>
  Status take_below(std::optional<int64_t> bound, const Take& take);
  Status add_to_piece(std::string_view record);
  Status give(Piece* piece);
  Status give_pieces();
  void forget(std::vector<std::unique_ptr<LoadedRecords>>* taken);
  Status read_ahead();
  Status read(const Chunk& chunk, LoadedRecords* loaded);
  Status read_bytes(int fd, const std::string& path, const Chunk& chunk, char* bytes);
  Status load();
  Status spill();
  Status open_temporary();
  Status changed(const Chunk& chunk) const {
    return io_error((chunk.file ? chunk.file->path : runs_.temporary_) + ": was changed while it was read");
  }
  RecordRuns& runs_;
  const OnRecords& on_records_;
  std::priority_queue<Chunk, std::vector<Chunk>, Later> unread_;
  Descriptor spilled_;  // read by those ahead
  std::deque<std::unique_ptr<Ahead>> ahead_;
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads_;  // one for each chunk that has records left
  std::vector<std::unique_ptr<LoadedRecords>> loaded_, free_;
  std::vector<std::unique_ptr<LoadedRecords>> taken_;  // whole, since a record was last added to a piece
  size_t num_taken_ = 0;                               // these and those that pieces keep
  Piece pieces_[kPieces];
  size_t piece_ = 0;  // that records are added to; the others are gathered
  size_t in_memory_ = 0;
  int64_t spilled_bytes_ = 0;
};

std::optional<int64_t> RecordRuns::Merging::lowest_unloaded() const {
  std::optional<int64_t> lowest;
  if (!unread_.empty()) lowest = unread_.top().lowest;
  for (const auto& ahead : ahead_) lowest = std::min(lowest.value_or(ahead->chunk.lowest), ahead->chunk.lowest);
  return lowest;
}

// nullopt: all of them.
template <typename Take>
Status RecordRuns::Merging::take_below(std::optional<int64_t> bound, const Take& take) {
  while (!heads_.empty() && (!bound || heads_.top().index < *bound)) {
    LoadedRecords& chunk = *heads_.top().chunk;
    heads_.pop();
    int64_t index = 0;
    // A chunk's records often follow each other.
    do {
      LLMB_RETURN_IF_ERROR(take(chunk.places[chunk.next].index, chunk.record()));
      if (++chunk.next == chunk.places.size()) break;
      index = chunk.places[chunk.next].index;
    } while ((!bound || index < *bound) && (heads_.empty() || index < heads_.top().index));
    if (chunk.next < chunk.places.size()) {
      heads_.push({index, &chunk});
      continue;
    }
    const auto at = std::find_if(loaded_.begin(), loaded_.end(), [&](const auto& one) { return one.get() == &chunk; });
    taken_.push_back(std::move(*at));
    ++num_taken_;
    loaded_.erase(at);
  }
  return {};
}

// Chunks that overlap are much larger than a cache.
void RecordRuns::Merging::Piece::gather() {
  constexpr size_t kAhead = 8, kLine = 64, kMostPrefetched = 512;
  if (capacity < num_bytes) {
    bytes = std::make_unique_for_overwrite<char[]>(num_bytes);
    capacity = num_bytes;
  }
  char* to = bytes.get();
  for (size_t i = 0; i < records.size(); ++i) {
    if (i + kAhead < records.size()) {
      const std::string_view later = records[i + kAhead];
      for (size_t at = 0; at < std::min(later.size(), kMostPrefetched); at += kLine)
        __builtin_prefetch(later.data() + at);
    }
    to = std::copy(records[i].begin(), records[i].end(), to);
  }
}

// While one piece is gathered, the next is filled; while that is gathered, the one before is given.
Status RecordRuns::Merging::add_to_piece(std::string_view record) {
  Piece* piece = &pieces_[piece_];
  if (!piece->records.empty() && piece->num_bytes + record.size() > kPieceBytes) {
    piece->gathered = std::async([piece] { piece->gather(); });
    piece_ = (piece_ + 1) % kPieces;
    piece = &pieces_[piece_];
    LLMB_RETURN_IF_ERROR(give(piece));
  }
  piece->records.push_back(record);
  piece->num_bytes += record.size();
  std::move(taken_.begin(), taken_.end(), std::back_inserter(piece->taken));
  taken_.clear();
  return {};
}

Status RecordRuns::Merging::give(Piece* piece) {
  if (piece->records.empty()) return {};
  if (piece->gathered.valid()) piece->gathered.get();
  else piece->gather();
  LLMB_RETURN_IF_ERROR(on_records_({piece->bytes.get(), piece->num_bytes}));
  forget(&piece->taken);
  piece->records.clear();
  piece->num_bytes = 0;
  return {};
}

// All records that were taken so far.
Status RecordRuns::Merging::give_pieces() {
  for (size_t i = 1; i <= kPieces; ++i) LLMB_RETURN_IF_ERROR(give(&pieces_[(piece_ + i) % kPieces]));
  forget(&taken_);
  return {};
}

// Nothing points into them any more.
void RecordRuns::Merging::forget(std::vector<std::unique_ptr<LoadedRecords>>* taken) {
  for (std::unique_ptr<LoadedRecords>& chunk : *taken) {
    in_memory_ -= chunk->memory();
    if (chunk->capacity <= 2 * runs_.chunk_bytes_) free_.push_back(std::move(chunk));
  }
  num_taken_ -= taken->size();
  taken->clear();
}

Status RecordRuns::Merging::read_ahead() {
  while (ahead_.size() < kMostAhead && !unread_.empty()) {
    if (free_.empty() && num_taken_ > kMostTaken) LLMB_RETURN_IF_ERROR(give_pieces());  // where many end together
    auto next = std::make_unique<Ahead>();
    next->chunk = unread_.top();
    unread_.pop();
    if (free_.empty()) free_.push_back(std::make_unique<LoadedRecords>());
    next->loaded = std::move(free_.back());
    free_.pop_back();
    const bool is_alone = ahead_.empty() && unread_.empty();
    // Without a policy, a system that has no thread left is none the worse for it.
    const auto find = [this, to = next.get()]() -> Status {
      LoadedRecords& loaded = *to->loaded;
      LLMB_RETURN_IF_ERROR(read(to->chunk, &loaded));
      if (!loaded.find_records(&to->parser) || loaded.places[0].index != to->chunk.lowest) return changed(to->chunk);
      if (to->chunk.file != nullptr && to->chunk.file->change) loaded.apply(to->chunk.file->change);
      return {};
    };
    next->found = is_alone ? std::async(std::launch::deferred, find) : std::async(find);
    ahead_.push_back(std::move(next));
  }
  return {};
}

Status RecordRuns::Merging::read(const Chunk& chunk, LoadedRecords* loaded) {
  loaded->reserve(std::max(chunk.size, runs_.chunk_bytes_) + RecordParser::kPadding);
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
  LLMB_RETURN_IF_ERROR(next->found.get());
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
  forget(&taken_);
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

Status RecordRuns::for_each(const OnRecords& on_records) { return Merging(*this, on_records).run(); }

}  // namespace llmb
