// Reads rows of the input a second time, so that a plan need not hold them: by their place, compared by their hash.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/descriptor.h"
#include "base/file_ops.h"
#include "base/status.h"
#include "core/request.h"
#include "engine/request_preparer.h"
#include "io/input_format.h"
#include "io/request_parser.h"

namespace llmb {

// read() belongs to one thread, can_read() to another.
class RowReader {
 public:
  // format: of all inputs; nullopt: by each one's name. `ops` outlives the reader.
  RowReader(std::unique_ptr<RequestParser> parser, std::shared_ptr<const ModelContext> model, uint64_t seed,
            std::optional<InputFormat> format, FileOps& ops = real_file_ops());

  // Rows of this input: a regular file that is not compressed, with a row in each line.
  bool can_read(const std::string& source);
  // The request that the line made when it was first read. kDataLoss: the line is not what it was then; kIoError.
  // packed_input: becomes WorkItem's, unless it is null.
  // REQUIRES: can_read(line.source), and the line made a request.
  Result<std::shared_ptr<Request>> read(const LineRef& line, std::string* packed_input = nullptr);

 private:
  Result<InputLine> read_line(const LineRef& line);

  const std::unique_ptr<RequestParser> parser_;
  const std::shared_ptr<const ModelContext> model_;
  const uint64_t seed_;
  const std::optional<InputFormat> format_;
  FileOps& ops_;
  std::map<std::string, bool> can_read_;      // of can_read()
  std::map<std::string, Descriptor> opened_;  // of read()
};

}  // namespace llmb
