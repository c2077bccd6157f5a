// Reads safetensors checkpoints (one file, or shards listed by model.safetensors.index.json), trusting nothing in them.
//
// Invariants of a checkpoint that opened:
//  1. Every tensor's bytes lie inside its mapped file and number exactly shape x dtype.
//  2. In each file the tensors cover the data section without holes, overlaps or trailing bytes.
//  3. Every name is there exactly once, over all shards, in the shard that the index names.
// Format: https://github.com/huggingface/safetensors. Immutable once opened, so reading is thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "core/tensor_view.h"

namespace llmb {

// One entry of a file's header.
struct TensorEntry {
  std::string name;
  std::string dtype;  // as spelled: "F32", "BF16", "I64", …
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // byte range from the start of the file
};

// The header of a whole file, checked against invariants 1 to 3, in order of `begin`.
Result<std::vector<TensorEntry>> parse_safetensors(std::span<const uint8_t> file);

// The (tensor, shard file name) pairs of an index; each tensor once, each shard a plain file name.
Result<std::vector<std::pair<std::string, std::string>>> parse_safetensors_index(std::string_view json);

// "[4, 64]"
std::string shape_string(std::span<const int64_t> shape);

// A tensor as it stands in its file.
struct StoredTensor {
  std::string_view dtype;
  std::span<const int64_t> shape;
  const uint8_t* data = nullptr;  // may be unaligned
  int64_t bytes = 0;
  std::string where;  // file and name, for messages
};

Status check_shape(const StoredTensor& stored, std::span<const int64_t> shape);

class Checkpoint {
 public:
  // Opens model.safetensors or, where there is none, the shards of model.safetensors.index.json. Only headers are read.
  // kNotFound, kUnsupported (pickle), kDataLoss.
  static Result<Checkpoint> open(const std::string& model_dir);

  // One file of another name.
  static Result<Checkpoint> open_file(const std::string& dir, const std::string& file_name);

  // The tensor's bytes, valid as long as the checkpoint. Its shape must be `shape` and its dtype F32, F16 or BF16; the
  // message names tensor, file, expected and found. All dimensions but the last are rows; a vector is one row.
  Result<TensorView> tensor(const std::string& name, std::span<const int64_t> shape) const;

  // The same for a tensor of dtype U8.
  Result<const uint8_t*> bytes(const std::string& name, std::span<const int64_t> shape) const;

  std::optional<StoredTensor> find(const std::string& name) const;

  // The files, in the order in which they were opened. Mapped pages that are read stay in memory beside what is made of
  // them: whoever is done with some says so there.
  const std::vector<MappedFile>& files() const { return files_; }

  std::vector<std::string> names() const;  // sorted
  size_t num_tensors() const { return tensors_.size(); }

 private:
  struct Location {
    size_t file;
    TensorEntry entry;  // its name is the key
  };
  Status add_file(const std::string& model_dir, const std::string& file_name);
  static Result<Checkpoint> open_sharded(const std::string& model_dir);

  std::vector<std::string> file_names_;
  std::vector<MappedFile> files_;
  std::unordered_map<std::string, Location> tensors_;
};

}  // namespace llmb
