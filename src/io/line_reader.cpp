#include "io/line_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/durable_file.h"
#include "base/open_file.h"
#include "base/process_start.h"
#include "io/byte_source.h"

namespace llmb {

namespace {

constexpr size_t kChunk = 256 << 10;
constexpr size_t kParserPadding = 64;  // spare capacity with which the JSON parser need not copy the line
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

int stat_input(FileOps& ops, const std::string& input, struct stat* st) {
  return input == "-" ? ops.fstat(STDIN_FILENO, st) : ops.stat(input.c_str(), st);
}

}  // namespace

LineReader::LineReader(std::vector<std::string> inputs, size_t max_line_bytes, FileOps& ops,
                       std::optional<InputFormat> format)
    : inputs_(std::move(inputs)),
      max_line_bytes_(max_line_bytes),
      given_format_(format),
      ops_(ops),
      chunk_(kChunk) {
  int64_t total = 0;
  for (const std::string& input : inputs_) {
    struct stat st {};
    if (stat_input(ops_, input, &st) != 0 || !S_ISREG(st.st_mode)) return;
    total += st.st_size;
  }
  total_bytes_ = total;
}

LineReader::~LineReader() = default;

Status LineReader::check_inputs() {
  if (std::count(inputs_.begin(), inputs_.end(), "-") > 1)
    return invalid_argument("standard input (-) is named more than once");
  for (const std::string& input : inputs_) {
    if (input == "-") LLMB_RETURN_IF_ERROR(check_standard_descriptor(STDIN_FILENO, /*for_writing=*/false));
    struct stat st {};
    if (stat_input(ops_, input, &st) != 0)
      return io_error(input_name(input) + ": cannot open: " + std::strerror(errno));
    if (S_ISDIR(st.st_mode)) return io_error(input_name(input) + ": cannot read: " + std::strerror(EISDIR));
    if (input == "-" || !S_ISREG(st.st_mode)) continue;  // to open a named pipe and close it would end its writer
    const int fd = open_retrying(ops_, input, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return open_error(input, errno);
    ops_.close(fd);
  }
  return {};
}

Result<std::optional<InputLine>> LineReader::next() {
  while (!stopped_.load(std::memory_order_relaxed)) {
    if (!source_) {
      Result<bool> opened = open_next_input();
      if (!opened.ok() && opened.status().code() == StatusCode::kCancelled) break;
      LLMB_RETURN_IF_ERROR(opened.status());
      if (!*opened) break;
    }
    Result<std::optional<InputLine>> line = read_line();
    if (!line.ok() && line.status().code() == StatusCode::kCancelled) break;
    LLMB_RETURN_IF_ERROR(line.status());
    if (!line->has_value()) {
      source_.reset();
      continue;
    }
    const LineRef& ref = (*line)->line;
    tally_.add(ref.index, ref.content_hash);
    if (!filter_) return line;
    LLMB_ASSIGN_OR_RETURN(const bool is_taken, filter_->takes(ref));
    if (is_taken) return line;
  }
  return std::optional<InputLine>();
}

Result<bool> LineReader::open_next_input() {
  if (next_input_ == inputs_.size()) return false;
  LLMB_ASSIGN_OR_RETURN(source_, ByteSource::open(inputs_[next_input_], {ops_, bytes_read_, stopped_}));
  format_ = given_format_.value_or(input_format_of(inputs_[next_input_]));
  quotes_.reset();
  if (format_ == InputFormat::kCsv || format_ == InputFormat::kTsv) quotes_.emplace(csv_separator(format_));
  columns_ = nullptr;
  pending_hash_ = first_hash_ = {};
  ++next_input_;
  line_number_ = 1;
  byte_offset_ = 0;
  chunk_begin_ = chunk_end_ = 0;
  while (chunk_end_ < kByteOrderMark.size() &&
         kByteOrderMark.starts_with(std::string_view(chunk_.data(), chunk_end_))) {
    LLMB_ASSIGN_OR_RETURN(bool more, fill());
    if (!more) break;
  }
  if (std::string_view(chunk_.data(), chunk_end_).starts_with(kByteOrderMark))
    chunk_begin_ = byte_offset_ = kByteOrderMark.size();
  return true;
}

Result<bool> LineReader::fill() {
  if (chunk_begin_ == chunk_end_) chunk_begin_ = chunk_end_ = 0;
  LLMB_ASSIGN_OR_RETURN(size_t count, source_->read(chunk_.data() + chunk_end_, chunk_.size() - chunk_end_));
  chunk_end_ += count;
  decompressed_bytes_ += static_cast<int64_t>(count);
  return count > 0;
}

Result<std::optional<InputLine>> LineReader::read_line() {
  int64_t size_with_ending = 0;
  while (true) {
    bool at_end = false;
    if (chunk_begin_ == chunk_end_) {
      LLMB_ASSIGN_OR_RETURN(bool more, fill());
      at_end = !more;
    }
    if (at_end && size_with_ending == 0) return std::optional<InputLine>();
    const char* const data = chunk_.data() + chunk_begin_;
    const size_t size = chunk_end_ - chunk_begin_;
    const void* const newline = size > 0 ? std::memchr(data, '\n', size) : nullptr;
    const size_t piece = newline ? static_cast<size_t>(static_cast<const char*>(newline) - data) : size;
    take(data, piece);
    if (quotes_) quotes_->read(std::string_view(data, piece));
    const size_t consumed = piece + (newline ? 1 : 0);
    chunk_begin_ += consumed;
    size_with_ending += static_cast<int64_t>(consumed);
    if (!newline && !at_end) continue;
    if (newline && quotes_ && quotes_->is_open()) {
      take("\n", 1);
      ++num_line_breaks_;
      continue;
    }
    const bool blank = pending_blank_;
    InputLine line = finish_line(size_with_ending, newline != nullptr);
    size_with_ending = 0;
    const bool is_header = !blank && quotes_ && !columns_;
    if (is_header) LLMB_RETURN_IF_ERROR(take_header(line));
    if (!blank && !is_header) return std::optional<InputLine>(std::move(line));
    if (stopped_.load(std::memory_order_relaxed)) return cancelled("stopped");
  }
}

Status LineReader::take_header(const InputLine& row) {
  Result<std::shared_ptr<const CsvColumns>> columns =
      row.too_long ? invalid_argument("longer than the limit on lines")
                   : parse_csv_header(row.bytes, csv_separator(format_));
  if (!columns.ok())
    return io_error(input_name(row.line.source) + ":" + std::to_string(row.line.line_number) +
                    ": the first row must name the columns: " + columns.status().message());
  columns_ = *columns;
  first_hash_.update(row.bytes);
  first_hash_.update("\n");
  pending_hash_ = first_hash_;
  return {};
}

void LineReader::take(const char* data, size_t size) {
  if (size == 0) return;
  const bool ends_with_cr = data[size - 1] == '\r';
  std::string_view parts[] = {pending_cr_ ? std::string_view("\r") : std::string_view(),
                              std::string_view(data, size - (ends_with_cr ? 1 : 0))};
  pending_cr_ = ends_with_cr;
  for (const std::string_view part : parts) {
    if (part.empty()) continue;
    pending_hash_.update(part);
    if (pending_blank_) pending_blank_ = part.find_first_not_of(" \t\r") == part.npos;
    if (pending_too_long_ || part.size() > max_line_bytes_ - pending_.size()) {
      pending_too_long_ = true;
      pending_ = std::string();  // gives the memory back
      continue;
    }
    grow_to(pending_.size() + part.size());
    pending_ += part;
  }
}

void LineReader::grow_to(size_t size) {
  if (pending_.capacity() >= size + kParserPadding) return;
  // From an eighth of the limit at once to all of it: pages not yet written cost nothing, a second copy of a long line
  // would.
  const size_t limit = max_line_bytes_ + kParserPadding;
  const size_t doubled = pending_.capacity() > limit / 8 ? limit : 2 * pending_.capacity();
  pending_.reserve(pending_.empty() ? size + kParserPadding : std::max(size + kParserPadding, doubled));
}

InputLine LineReader::finish_line(int64_t size_with_ending, bool has_newline) {
  InputLine result;
  if (!pending_blank_) {
    result.line = {index_, inputs_[next_input_ - 1], line_number_, byte_offset_, pending_hash_.digest()};
    result.too_long = pending_too_long_;
    result.has_newline = has_newline;
    result.bytes = std::move(pending_);
    result.format = format_;
    result.columns = columns_;
  }
  index_ += 1 + num_line_breaks_;
  line_number_ += 1 + num_line_breaks_;
  num_line_breaks_ = 0;
  if (quotes_) quotes_->end_row();
  byte_offset_ += size_with_ending;
  pending_ = std::string();
  pending_too_long_ = pending_cr_ = false;
  pending_blank_ = true;
  pending_hash_ = first_hash_;
  return result;
}

int64_t LineReader::bytes_consumed() const {
  if (decompressed_bytes_ == 0) return 0;
  const double unsplit = static_cast<double>(chunk_end_ - chunk_begin_) / static_cast<double>(decompressed_bytes_);
  return static_cast<int64_t>(static_cast<double>(bytes_read()) * (1 - unsplit) + 0.5);
}

}  // namespace llmb
