// The decompressed bytes of one input: a file or stdin, plain, gzip or zstd, told apart by its first bytes.
// Several gzip members or zstd frames in a row are one stream, as in the tools of those names.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// Shared by a source with its reader and, through it, with other threads.
struct ByteSourceContext {
  FileOps& ops;
  std::atomic<int64_t>& bytes_read;  // as stored, over all inputs
  const std::atomic<bool>& stopped;
};

// Not thread-safe.
class ByteSource {
 public:
  // `input`: a path, or "-" for stdin. Reads the first bytes.
  static Result<std::unique_ptr<ByteSource>> open(const std::string& input, ByteSourceContext context);
  virtual ~ByteSource() = default;

  // At least one byte, or 0 at the end. kIoError: cannot be read; kDataLoss: compressed data is damaged or cut short;
  // kCancelled: stopped while waiting. All name the input.
  virtual Result<size_t> read(char* buffer, size_t size) = 0;
};

// An input's name in messages.
std::string input_name(const std::string& input);

}  // namespace llmb
