// A file that holds a model's packed weights, so that later runs map it instead of packing again.
//
// 1. What is mapped has the bytes that packing would make: the file names what they were made of (its key), and every
//    byte of it is checked when it is opened. No number in it is trusted: sizes come from the model.
// 2. The file under the name is complete: it is written under another name, synced and renamed. Where several processes
//    would write it, one does.
// 3. A file that was mapped stays as it is; a newer one takes its name, not its place.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file_ops.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "core/types.h"

namespace llmb {

// Raised with every change to the bytes that are made of a checkpoint: their layout (kernels/cpu/linear_pack.cpp), how
// they are rounded, the order in which load_model_weights asks for them.
inline constexpr uint32_t kWeightCacheVersion = 2;

// Where the packed weights of a model lie in a directory. Nothing else of the model is in the name, so that a changed
// model takes the place of the old one.
std::string weight_cache_path(const std::string& dir, const std::string& model_path, Quantization quantization);

// The sections of a file, in order, each from a cache line on.
class CachedWeights {
 public:
  // kNotFound: there is none, or one of another model or version. kDataLoss: it is damaged.
  static Result<CachedWeights> open(const std::string& path, const std::string& key, ThreadPool& pool);

  // The next section, which is expected to have so many bytes; null where the file has fewer left, now and from then
  // on.
  const uint8_t* take(int64_t bytes);
  // All sections were taken, and there were no fewer.
  bool is_used_up() const { return next_ == end_ && !is_short_; }
  std::shared_ptr<const MappedFile> file() const { return file_; }  // keeps sections mapped

 private:
  std::shared_ptr<const MappedFile> file_;
  uint64_t next_ = 0, end_ = 0;  // bytes of the file
  bool is_short_ = false;
};

// Ok also where another process is writing the file just now. An error leaves what was there.
Status write_weight_cache(const std::string& path, const std::string& key,
                          const std::vector<std::span<const uint8_t>>& sections, FileOps& ops);

}  // namespace llmb
