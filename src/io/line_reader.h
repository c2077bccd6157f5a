// Streams the lines of several inputs in order, in bounded memory. An input is a file, "-" (stdin), or either of them
// compressed with gzip or zstd, recognised by its first bytes.
//
// Rules:
//  1. A line ends with LF, the last line of an input needs none; a CR at the line's end is dropped. Nothing else ends a
//     line.
//  2. LineRef::index counts every physical line of all inputs, blank ones included; blank lines (nothing but spaces,
//     tabs and CR) are not returned. A UTF-8 byte order mark at the start of an input is not part of its first line.
//  3. A line longer than max_line_bytes is returned without its bytes (too_long) and costs no memory.
//  4. LineRef::content_hash is XXH64 (content_hash.h) of the line's bytes: after the byte order mark, before CR LF.
//  5. A row of CSV or TSV is returned as one line, whatever line breaks it quotes: its index is that of its first physical
//     line. The first row of each such input names the columns and is not returned; a row's hash is of the header's bytes,
//     LF and its own, as it means something else under another header.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/content_hash.h"
#include "base/file_ops.h"
#include "base/status.h"
#include "core/request.h"
#include "io/csv.h"
#include "io/input_format.h"
#include "io/input_tally.h"
#include "io/line_filter.h"

namespace llmb {

inline constexpr size_t kDefaultMaxLineBytes = size_t{64} << 20;

struct InputLine {
  LineRef line;
  std::string bytes;  // empty where too_long
  bool too_long = false;
  bool has_newline = true;  // false: the input ended first, and may be in the middle of being written
  InputFormat format = InputFormat::kJsonLines;
  std::shared_ptr<const CsvColumns> columns = {};  // of kCsv and kTsv
};

class ByteSource;

// next() belongs to one thread; bytes_read(), total_bytes() and stop() may be called from any.
class LineReader {
 public:
  // Opens nothing yet. `ops` outlives the reader. format: of all inputs; nullopt: by each one's name.
  LineReader(std::vector<std::string> inputs, size_t max_line_bytes = kDefaultMaxLineBytes,
             FileOps& ops = real_file_ops(), std::optional<InputFormat> format = std::nullopt);
  ~LineReader();

  // next() returns only lines that the filter takes. Before the first next().
  void keep_only(std::shared_ptr<const LineFilter> filter) { filter_ = std::move(filter); }

  // Ok where every input exists and can be opened, so that a job fails before the model loads and not hours later.
  Status check_inputs();

  // nullopt: end of all inputs, or stop(). Any error (unreadable, damaged compression) ends the job: exit code 5.
  Result<std::optional<InputLine>> next();

  // Makes next() return nullopt from now on, also where it waits for stdin (within a tenth of a second).
  void stop() { stopped_.store(true, std::memory_order_relaxed); }

  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }  // as stored: compressed
  // The bytes_read() of the lines returned so far; with compression an estimate. Belongs to next()'s thread.
  int64_t bytes_consumed() const;
  // Over all lines so far, those that the filter did not take included. Belongs to next()'s thread.
  const InputTally& tally() const { return tally_; }
  std::optional<int64_t> total_bytes() const { return total_bytes_; }  // as stored; nullopt where an input is no file

 private:
  Result<bool> open_next_input();                // false: no more inputs
  Result<bool> fill();                           // reads a chunk of the current input; false: its end
  Result<std::optional<InputLine>> read_line();  // of the current input; nullopt: its end
  Status take_header(const InputLine& row);
  void take(const char* data, size_t size);      // appends a piece of a line
  void grow_to(size_t size);
  InputLine finish_line(int64_t size_with_ending, bool has_newline);

  const std::vector<std::string> inputs_;
  const size_t max_line_bytes_;
  const std::optional<InputFormat> given_format_;
  FileOps& ops_;
  std::shared_ptr<const LineFilter> filter_;  // null: takes all
  InputTally tally_;
  std::optional<int64_t> total_bytes_;
  std::atomic<int64_t> bytes_read_{0};
  std::atomic<bool> stopped_{false};

  size_t next_input_ = 0;
  std::unique_ptr<ByteSource> source_;  // of the current input
  InputFormat format_ = InputFormat::kJsonLines;
  std::optional<CsvQuotes> quotes_;            // of kCsv and kTsv
  std::shared_ptr<const CsvColumns> columns_;  // null: the header is still to come
  std::vector<char> chunk_;             // decompressed bytes not yet split: [chunk_begin_, chunk_end_)
  size_t chunk_begin_ = 0, chunk_end_ = 0;
  int64_t decompressed_bytes_ = 0;                         // of all inputs, split or not
  int64_t index_ = 0, line_number_ = 0, byte_offset_ = 0;  // of the next line

  // The line being put together.
  std::string pending_;
  bool pending_too_long_ = false;
  bool pending_cr_ = false;  // a CR that may belong to the line's ending is held back
  bool pending_blank_ = true;
  int64_t num_line_breaks_ = 0;  // that it quotes
  ContentHash pending_hash_;
  ContentHash first_hash_;  // of a line that has no bytes yet
};

}  // namespace llmb
