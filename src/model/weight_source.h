// Where the tensors of a model come from: its files (weight_files.h), or a generator for measurements without weights.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "core/tensor_view.h"

namespace llmb {

// Whether a load checks only that tensors are there, in the right shapes, or reads their values too.
enum class WeightAccess { kShapes, kValues };

// Whether matrices that files hold in blocks (core/block_format.h) come as numbers or as they are; or as they are only
// those in BlockFormat::kMXFP4, and integers with scales in fp16, or in bf16, whose groups are of multiples of 32
// columns, wherever these are.
enum class WeightForm { kNumbers, kBlocks, kIntegersF16, kIntegersBF16 };

// Rows and columns of a matrix.
struct MatrixPart {
  int64_t first_row = 0, num_rows = 0, first_col = 0, num_cols = 0;
};

// Not thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // The loader asks which name or form of a tensor is there, where there may be several.
  virtual bool has(const std::string&) const { return true; }
  // A tensor of exactly this shape. All dimensions but the last are rows; a vector is one row. The view is valid until
  // release().
  virtual Result<TensorView> tensor(const std::string& name, std::span<const int64_t> shape) = 0;
  // The view that tensor() would give of a matrix, without its data, where tensor() reads all of it at once to convert
  // or check it; nullopt where it does not, as with numbers that are taken as they are stored.
  virtual Result<std::optional<TensorView>> outline(const std::string&, std::span<const int64_t>) {
    return std::optional<TensorView>();
  }
  // Rows and columns of a matrix that outline() describes. Nothing else of it is read, but for what its rows or columns
  // share. In the outline's form, or as numbers where columns cut blocks of a format that rounds its numbers, or are of
  // indexed blocks.
  virtual Result<TensorView> part(const std::string& name, std::span<const int64_t>, const MatrixPart&) {
    return unsupported("\"" + name + "\" is not read in parts");
  }
  // The bytes of a tensor of exactly this shape that are no numbers by themselves, such as blocks of codes: dtype U8.
  virtual Result<const uint8_t*> bytes(const std::string& name, std::span<const int64_t>) {
    return unsupported("\"" + name + "\": blocks of codes are read from safetensors only");
  }
  // Whether matrices that bytes() has in MXFP4 are to come in blocks.
  virtual bool keeps_mxfp4() const { return false; }
  // Projections are [out, in], q, k and v stacked, experts one by one, and gate and up of the one for all tokens apart,
  // whatever the architecture's own checkpoints do.
  virtual bool has_common_layout() const { return false; }
  virtual void release() {}
};

// Memory for the tensors that are in use at one time, used again for later ones: fresh pages cost more than what is
// written to them.
class WeightBuffers {
 public:
  void* take(int64_t bytes);  // uninitialised; valid until release()
  void release() { num_in_use_ = 0; }

 private:
  struct Buffer {
    std::unique_ptr<uint8_t[]> bytes;
    int64_t capacity = 0;
  };
  std::vector<Buffer> buffers_;
  size_t num_in_use_ = 0;
};

// Bytes of mapped files that are in use at one time. Their pages are given up with them, so that no more of a
// checkpoint is in memory than what is being read.
class MappedReads {
 public:
  explicit MappedReads(const std::vector<MappedFile>& files) : files_(files) {}
  void add(const uint8_t* data, int64_t bytes) { reads_.emplace_back(data, bytes); }
  void release();

 private:
  const std::vector<MappedFile>& files_;
  std::vector<std::span<const uint8_t>> reads_;
};

// Any tensor that is asked for as numbers, filled with normal random ones, none of them zero: standard deviation 0.02,
// and norm weights 1 + that, so that activations keep the size they have in a trained model. The values depend on
// (seed, name, index) alone, not on threads or on the order of calls.
class RandomSource final : public WeightSource {
 public:
  RandomSource(uint64_t seed, DType dtype, ThreadPool& pool);
  bool has(const std::string& name) const override { return !name.ends_with("_blocks"); }
  Result<TensorView> tensor(const std::string& name, std::span<const int64_t> shape) override;
  void release() override { buffers_.release(); }

 private:
  template <typename Word>
  void fill(Word* out, int64_t size, uint64_t stream, float mean);

  const uint64_t seed_;
  const DType dtype_;
  ThreadPool& pool_;
  std::vector<float> quantiles_;  // of the standard normal, at the middles of 2^16 equal slices
  WeightBuffers buffers_;
};

}  // namespace llmb
