// A file that holds a model's packed weights, so that later runs map it instead of packing again.
//
// 1. What is taken of it has the bytes that packing would make: the file names what they were made of (its key), and
//    every byte of it is checked when it is opened. No number in it is trusted: sizes come from the model.
// 2. The file under the name is complete: it is written under another name, synced and renamed. Where several processes
//    would write it, one does.
// 3. Nobody of ours writes into a file that has the name: it is read-only, and a newer one takes its name, not its
//    place. Others may write into it, and what is mapped changes with it. So what was computed counts only after
//    check(), which the backend asks after each step. check() looks at the file's times (one fstat, 0.3 us): a file is
//    mapped only where its change time is set before its bytes change (ChangeTimes::kAtOnce), where that time is old
//    enough to differ from any later one, and after its pages were synced, so that a write through another process's
//    mapping sets it, too. Elsewhere the bytes are copied and checked in the copy; then processes do not share them.
// 4. A mapped file that is cut short does not end the process (base/mapping_guard.h): check() says so.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/file_identity.h"
#include "base/file_ops.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "core/rank_part.h"
#include "core/types.h"

namespace llmb {

// Raised with every change to the bytes that are made of a checkpoint: their layout (kernels/cpu/linear_pack.cpp), how
// they are rounded, the order in which load_model_weights asks for them.
inline constexpr uint32_t kWeightCacheVersion = 4;

// Where the packed weights of a model lie in a directory, or those of a rank's part of it. Nothing else of the model is
// in the name, so that a changed model takes the place of the old one. part: null: the whole model
std::string weight_cache_path(const std::string& dir, const std::string& model_path, Quantization quantization,
                              const RankPart* part = nullptr);

// The sections of a file, in order, each from a cache line on. Move-only.
class CachedWeights {
 public:
  // kNotFound: there is none, or one of another model or version. kDataLoss: it is damaged.
  static Result<CachedWeights> open(const std::string& path, const std::string& key, ThreadPool& pool);

  // The next section, which is expected to have so many bytes; null where the file has fewer left, now and from then
  // on.
  const uint8_t* take(int64_t bytes);
  // All sections were taken, and there were no fewer.
  bool is_used_up() const { return next_ == payload_bytes_ && !is_short_; }
  std::shared_ptr<const void> memory() const { return memory_; }  // keeps sections where they are
  bool is_mapped() const { return mapped_ != nullptr; }           // false: copied

  // Ok: all that was read of sections since they were opened was what was checked then. kDataLoss: it may not have
  // been; kIoError.
  Status check(ThreadPool& pool);

 private:
  Status read_header(const std::string& key);
  Status open_payload(ThreadPool& pool);
  bool verify(ThreadPool& pool, uint8_t* copy_to);
  Status damaged(const char* why) const;
  Result<FileIdentity> look() const;

  std::string path_;
  Descriptor file_;
  FileIdentity identity_;
  std::vector<uint64_t> hashes_;  // of each chunk of the payload
  uint64_t payload_at_ = 0, payload_bytes_ = 0;
  std::shared_ptr<const void> memory_;
  std::shared_ptr<const MappedFile> mapped_;  // the same, or null
  const uint8_t* payload_ = nullptr;
  uint64_t next_ = 0;
  bool is_short_ = false;
};

// Ok also where another process is writing the file just now. An error leaves what was there.
Status write_weight_cache(const std::string& path, const std::string& key,
                          const std::vector<std::span<const uint8_t>>& sections, FileOps& ops);

}  // namespace llmb
