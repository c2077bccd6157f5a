// The file: magic (8 bytes), version (32 bits), length of the key (32), bytes of payload (64), the key, a hash of each
// mebibyte of payload (64 each), a hash of all this (64); zeros up to a page; payload: sections, zeros between them.
#include "backend/cpu/weight_cache.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/content_hash.h"
#include "base/durable_file.h"
#include "base/whole_file.h"
#include "kernels/cpu/aligned_buffer.h"

namespace llmb {

namespace {

constexpr std::string_view kMagic = "LLMBPACK";
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kChunkBytes = 1 << 20;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kFixedBytes = 24;
constexpr char kZeros[kPageBytes] = {};

uint64_t ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
uint64_t round_up(uint64_t size, uint64_t unit) { return ceil_div(size, unit) * unit; }

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

std::string error_text() { return std::strerror(errno); }

// False: an error, or the file's end.
bool read_fully(int fd, void* to, uint64_t size, uint64_t at) {
  for (uint64_t done = 0; done < size;) {
    const auto count = uninterrupted([&] {
      return real_file_ops().pread(fd, static_cast<uint8_t*>(to) + done, size - done, static_cast<off_t>(at + done));
    });
    if (count <= 0) return false;
    done += static_cast<uint64_t>(count);
  }
  return true;
}

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

std::string weight_cache_path(const std::string& dir, const std::string& model_path, Quantization quantization,
                              const RankPart* part) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::weakly_canonical(model_path, error);
  if (error) path = model_path;
  std::string name = path.filename().string().substr(0, 64);
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '_';
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(content_hash(path.string())));
  name += std::string("-") + quantization_name(quantization) + "-" + hash;
  const auto add = [&](const char* kind, int32_t index, int32_t size) {
    if (size > 1) name += std::string("-") + kind + std::to_string(index) + "of" + std::to_string(size);
  };
  if (part != nullptr) add("part", part->tensor_rank(), part->tensor_size), add("stage", part->stage(), part->num_stages);
  return dir + "/" + name + ".packed";
}

Status CachedWeights::damaged(const char* why) const { return data_loss(path_ + ": " + why); }

Result<FileIdentity> CachedWeights::look() const {
  struct stat st {};
  if (real_file_ops().fstat(file_.get(), &st) != 0) return io_error(path_ + ": cannot stat it: " + error_text());
  return identity_of(st);
}

// By reading, so that what is parsed stays as it was read.
Status CachedWeights::read_header(const std::string& key) {
  const auto file_bytes = static_cast<uint64_t>(identity_.size);
  std::string header(kFixedBytes, '\0');
  if (!read_fully(file_.get(), header.data(), header.size(), 0) || !header.starts_with(kMagic))
    return damaged("not a file of packed weights");
  payload_bytes_ = number_at<uint64_t>(header, 16);
  if (number_at<uint32_t>(header, 8) != kWeightCacheVersion || number_at<uint32_t>(header, 12) != key.size())
    return not_found(path_ + ": of another model or version");
  if (payload_bytes_ > file_bytes) return damaged("cut short");
  const uint64_t num_chunks = ceil_div(payload_bytes_, kChunkBytes);
  const uint64_t hashes = kFixedBytes + key.size(), header_hash = hashes + num_chunks * 8;
  payload_at_ = round_up(header_hash + 8, kPageBytes);
  if (payload_at_ > file_bytes) return damaged("cut short");
  header.resize(header_hash + 8);
  if (!read_fully(file_.get(), header.data(), header.size(), 0)) return damaged("cut short");
  if (header.compare(kFixedBytes, key.size(), key) != 0) return not_found(path_ + ": of another model or version");
  if (payload_at_ + payload_bytes_ != file_bytes) return damaged("cut short, or longer than it says");
  if (number_at<uint64_t>(header, header_hash) != content_hash(std::string_view(header).substr(0, header_hash)))
    return damaged("its header is damaged");
  hashes_.resize(num_chunks);
  std::memcpy(hashes_.data(), header.data() + hashes, num_chunks * 8);
  return {};
}

// Whether the payload has the bytes that the header says, after taking them to `copy_to` where that is not null.
bool CachedWeights::verify(ThreadPool& pool, uint8_t* copy_to) {
  std::atomic<bool> is_whole{true};
  pool.parallel_for(static_cast<int64_t>(hashes_.size()), [&](int64_t chunk, int) {
    const uint64_t at = static_cast<uint64_t>(chunk) * kChunkBytes;
    const uint64_t size = std::min(kChunkBytes, payload_bytes_ - at);
    const bool is_there = copy_to == nullptr || read_fully(file_.get(), copy_to + at, size, payload_at_ + at);
    const auto* bytes = reinterpret_cast<const char*>(payload_ + at);
    if (!is_there || content_hash({bytes, size}) != hashes_[static_cast<size_t>(chunk)])
      is_whole.store(false, std::memory_order_relaxed);
  });
  return is_whole && (mapped_ == nullptr || mapped_->still_readable().ok());
}

Status CachedWeights::open_payload(ThreadPool& pool) {
  // The times are known already: what is written from now on changes them.
  const bool can_map = change_times_of(file_.get()) == ChangeTimes::kAtOnce &&
                       !is_young(identity_, ChangeTimes::kAtOnce) && real_file_ops().fsync(file_.get()) == 0;
  uint8_t* copy = nullptr;
  if (can_map) {
    struct stat st {};
    if (real_file_ops().fstat(file_.get(), &st) != 0 || identity_of(st) != identity_)
      return damaged("it is written to");
    LLMB_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::map(file_.get(), st, path_));
    mapped_ = std::make_shared<const MappedFile>(std::move(mapped));
    mapped_->will_read_all();
    memory_ = mapped_;
    payload_ = mapped_->data() + payload_at_;
  } else {
    auto buffer = std::make_shared<cpu::AlignedBuffer>(static_cast<int64_t>(payload_bytes_));
    payload_ = copy = buffer->data();
    memory_ = std::move(buffer);
  }
  return verify(pool, copy) ? Status() : damaged("its weights are damaged");
}

Result<CachedWeights> CachedWeights::open(const std::string& path, const std::string& key, ThreadPool& pool) {
  struct stat st {};
  LLMB_ASSIGN_OR_RETURN(Descriptor file, open_regular_file(path, &st));
  CachedWeights weights;
  weights.path_ = path;
  weights.file_ = std::move(file);
  weights.identity_ = identity_of(st);
  LLMB_RETURN_IF_ERROR(weights.read_header(key));
  LLMB_RETURN_IF_ERROR(weights.open_payload(pool));
  return weights;
}

const uint8_t* CachedWeights::take(int64_t bytes) {
  const uint64_t size = round_up(static_cast<uint64_t>(bytes), kAlignment);
  if (is_short_ || size > payload_bytes_ - next_) {
    is_short_ = true;
    return nullptr;
  }
  const uint8_t* section = payload_ + next_;
  next_ += size;
  return section;
}

// The change time is new also where the file has lost its name to a newer one, or got another mode or owner. Then all
// of it is hashed again, and the new times count from then on. A write of wrong bytes and another of the right ones,
// with the time of both put back, all within the step before, would go unnoticed.
Status CachedWeights::check(ThreadPool& pool) {
  constexpr const char* kChanged = "its bytes were changed while they were in use";
  if (mapped_ == nullptr) return {};
  LLMB_RETURN_IF_ERROR(mapped_->still_readable());
  Result<FileIdentity> now = look();
  LLMB_RETURN_IF_ERROR(now.status());
  if (*now == identity_) return {};
  if (now->size != identity_.size || now->mtime_ns != identity_.mtime_ns) return damaged(kChanged);
  while (is_young(*now, ChangeTimes::kAtOnce)) {  // a write just now would not show
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    now = look();
    LLMB_RETURN_IF_ERROR(now.status());
  }
  if (!verify(pool, nullptr)) return damaged(kChanged);
  identity_ = *now;
  return {};
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
    fchmod(file.get(), mine.st_mode & 0444);  // so that nobody writes into it by mistake; without it nothing is lost
    if (uninterrupted([&] { return ops.fsync(file.get()); }) != 0)
      return io_error(temporary + ": cannot make it durable: " + error_text());
    return rename_durably(ops, temporary, path);
  };
  const Status status = write();
  if (!status.ok()) ops.unlink(temporary.c_str());
  return status;
}

}  // namespace llmb
