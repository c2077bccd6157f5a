// The file: magic (8 bytes), version (32 bits), length of the key (32), bytes of payload (64), the key, a hash of each
// mebibyte of payload (64 each), a hash of all this (64); zeros up to a page; payload: sections, zeros between them.
#include "backend/cpu/weight_cache.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/content_hash.h"
#include "base/durable_file.h"

namespace llmb {

namespace {

constexpr std::string_view kMagic = "LLMBPACK";
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kChunkBytes = 1 << 20;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kFixedBytes = 24;
constexpr char kZeros[kPageBytes] = {};

uint64_t round_up(uint64_t size, uint64_t unit) { return (size + unit - 1) / unit * unit; }

template <typename T>
void append(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
T number_at(std::string_view bytes, uint64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string_view chunk_of(std::string_view payload, uint64_t index) {
  return payload.substr(index * kChunkBytes, kChunkBytes);
}

std::string error_text() { return std::strerror(errno); }

// An open file; closed with this.
class Descriptor {
 public:
  Descriptor(FileOps& ops, int fd) : ops_(ops), fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ops_.close(fd_);
  }
  int get() const { return fd_; }

 private:
  FileOps& ops_;
  const int fd_;
};

// The bytes of all sections as they will stand in the file, in pieces: visit(bytes) returns a Status.
template <typename Visit>
Status for_each_piece(const std::vector<std::span<const uint8_t>>& sections, const Visit& visit) {
  for (const std::span<const uint8_t> section : sections) {
    LLMB_RETURN_IF_ERROR(visit(std::string_view(reinterpret_cast<const char*>(section.data()), section.size())));
    LLMB_RETURN_IF_ERROR(visit(std::string_view(kZeros, round_up(section.size(), kAlignment) - section.size())));
  }
  return {};
}

std::string make_header(const std::string& key, const std::vector<std::span<const uint8_t>>& sections) {
  std::string hashes;
  uint64_t payload_bytes = 0;
  ContentHash chunk;
  const Status status = for_each_piece(sections, [&](std::string_view piece) -> Status {
    while (!piece.empty()) {
      const uint64_t count = std::min<uint64_t>(piece.size(), kChunkBytes - payload_bytes % kChunkBytes);
      chunk.update(piece.substr(0, count));
      payload_bytes += count;
      piece.remove_prefix(count);
      if (payload_bytes % kChunkBytes != 0) continue;
      append(chunk.digest(), &hashes);
      chunk = ContentHash();
    }
    return {};
  });
  if (payload_bytes % kChunkBytes != 0) append(chunk.digest(), &hashes);
  std::string header(kMagic);
  append(kWeightCacheVersion, &header);
  append(static_cast<uint32_t>(key.size()), &header);
  append(payload_bytes, &header);
  header += key + hashes;
  append(content_hash(header), &header);
  header.resize(round_up(header.size(), kPageBytes));
  return header;
}

}  // namespace

std::string weight_cache_path(const std::string& dir, const std::string& model_path, Quantization quantization) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::weakly_canonical(model_path, error);
  if (error) path = model_path;
  std::string name = path.filename().string().substr(0, 64);
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '_';
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(content_hash(path.string())));
  return dir + "/" + name + "-" + quantization_name(quantization) + "-" + hash + ".packed";
}

Result<CachedWeights> CachedWeights::open(const std::string& path, const std::string& key, ThreadPool& pool) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok()) return mapped.status();
  const std::string_view bytes(reinterpret_cast<const char*>(mapped->data()), mapped->size());
  const auto damaged = [&](const char* why) { return data_loss(path + ": " + why); };
  if (bytes.size() < kFixedBytes || !bytes.starts_with(kMagic)) return damaged("not a file of packed weights");
  if (number_at<uint32_t>(bytes, 8) != kWeightCacheVersion || number_at<uint32_t>(bytes, 12) != key.size() ||
      bytes.substr(kFixedBytes, key.size()) != key)
    return not_found(path + ": of another model or version");
  const auto payload_bytes = number_at<uint64_t>(bytes, 16);
  if (payload_bytes > bytes.size()) return damaged("cut short");
  const uint64_t num_chunks = (payload_bytes + kChunkBytes - 1) / kChunkBytes;
  const uint64_t hashes = kFixedBytes + key.size(), header_hash = hashes + num_chunks * 8;
  const uint64_t payload = round_up(header_hash + 8, kPageBytes);
  if (payload + payload_bytes != bytes.size()) return damaged("cut short, or longer than it says");
  if (number_at<uint64_t>(bytes, header_hash) != content_hash(bytes.substr(0, header_hash)))
    return damaged("its header is damaged");
  mapped->will_read_all();
  std::atomic<bool> is_whole{true};
  pool.parallel_for(static_cast<int64_t>(num_chunks), [&](int64_t chunk, int) {
    const auto i = static_cast<uint64_t>(chunk);
    if (content_hash(chunk_of(bytes.substr(payload), i)) != number_at<uint64_t>(bytes, hashes + i * 8))
      is_whole.store(false, std::memory_order_relaxed);
  });
  if (!is_whole) return damaged("its weights are damaged");
  CachedWeights weights;
  weights.next_ = payload;
  weights.end_ = bytes.size();
  weights.file_ = std::make_shared<const MappedFile>(std::move(*mapped));
  return weights;
}

const uint8_t* CachedWeights::take(int64_t bytes) {
  const uint64_t size = round_up(static_cast<uint64_t>(bytes), kAlignment);
  if (is_short_ || size > end_ - next_) {
    is_short_ = true;
    return nullptr;
  }
  const uint8_t* section = file_->data() + next_;
  next_ += size;
  return section;
}

// The temporary file has one name, and who writes it holds its lock: so nobody else writes it meanwhile, and one that
// was left by a process that was killed is used again.
Status write_weight_cache(const std::string& path, const std::string& key,
                          const std::vector<std::span<const uint8_t>>& sections, FileOps& ops) {
  std::error_code error;
  std::filesystem::create_directories(directory_of(path), error);
  if (error) return io_error(directory_of(path) + ": cannot create: " + error.message());
  const std::string temporary = path + ".tmp";
  const Descriptor file(ops, open_retrying(ops, temporary, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (file.get() < 0) return io_error(temporary + ": cannot create: " + error_text());
  if (uninterrupted([&] { return ops.flock(file.get(), LOCK_EX | LOCK_NB); }) != 0) {
    if (errno == EWOULDBLOCK) return {};
    return io_error(temporary + ": cannot lock: " + error_text());
  }
  // Renamed or removed by its writer before the lock was free: then the name leads elsewhere.
  struct stat mine {
  }, named{};
  if (ops.fstat(file.get(), &mine) != 0 || ops.stat(temporary.c_str(), &named) != 0 || mine.st_ino != named.st_ino ||
      mine.st_dev != named.st_dev)
    return {};
  const auto write = [&]() -> Status {
    if (uninterrupted([&] { return ops.ftruncate(file.get(), 0); }) != 0)
      return io_error(temporary + ": cannot truncate: " + error_text());
    LLMB_RETURN_IF_ERROR(write_fully(ops, file.get(), make_header(key, sections), temporary));
    LLMB_RETURN_IF_ERROR(for_each_piece(sections, [&](std::string_view piece) {
      return piece.empty() ? Status() : write_fully(ops, file.get(), piece, temporary);
    }));
    if (uninterrupted([&] { return ops.fsync(file.get()); }) != 0)
      return io_error(temporary + ": cannot make it durable: " + error_text());
    return rename_durably(ops, temporary, path);
  };
  const Status status = write();
  if (!status.ok()) ops.unlink(temporary.c_str());
  return status;
}

}  // namespace llmb
