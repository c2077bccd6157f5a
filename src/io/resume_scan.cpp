#include "io/resume_scan.h"

#include <fcntl.h>
#include <simdjson.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/durable_file.h"
#include "io/field_values.h"

namespace llmb {

namespace dom = simdjson::dom;

namespace {

constexpr size_t kReadBytes = 256 << 10;
static_assert(RecordParser::kPadding >= simdjson::SIMDJSON_PADDING);

std::optional<uint64_t> parse_hash(std::string_view text) {
  uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return hash;
}

Status damaged(const std::string& path, int64_t line_number, const std::string& what) {
  return data_loss(path + ":" + std::to_string(line_number) + ": " + what +
                   "; the file was changed or damaged after it was written. Nothing was touched: repair that line, or "
                   "start over with --restart");
}

// The file's lines, each with its "\n", in bounded memory.
class RecordLines {
 public:
  RecordLines(int fd, const std::string& path, FileOps& ops) : fd_(fd), path_(path), ops_(ops), buffer_(kReadBytes) {}

  struct Line {
    std::string_view bytes;  // valid until the next call; empty where too long
    int64_t size = 0;
    bool has_newline = false;
  };

  // nullopt: the end of the file.
  Result<std::optional<Line>> next() {
    size_t searched = 0;
    int64_t dropped = 0;  // bytes of a line that is too long to be kept
    while (true) {
      const char* const begin = buffer_.data() + begin_;
      const void* const newline =
          end_ - begin_ > searched ? std::memchr(begin + searched, '\n', end_ - begin_ - searched) : nullptr;
      if (newline != nullptr || at_end_) {
        const size_t size =
            newline ? static_cast<size_t>(static_cast<const char*>(newline) - begin) + 1 : end_ - begin_;
        if (size == 0 && dropped == 0) return std::optional<Line>();
        begin_ += size;
        return std::optional<Line>({dropped > 0 ? std::string_view() : std::string_view(begin, size),
                                    dropped + static_cast<int64_t>(size), newline != nullptr});
      }
      searched = end_ - begin_;
      if (searched >= kMaxRecordBytes || dropped > 0) {
        dropped += static_cast<int64_t>(searched);
        begin_ = end_ = searched = 0;
      }
      LLMB_RETURN_IF_ERROR(fill());
    }
  }

 private:
  Status fill() {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    if (end_ + RecordParser::kPadding >= buffer_.size()) buffer_.resize(2 * buffer_.size());
    const auto count = uninterrupted(
        [&] { return ops_.read(fd_, buffer_.data() + end_, buffer_.size() - RecordParser::kPadding - end_); });
    if (count < 0) return io_error(path_ + ": cannot read: " + std::strerror(errno));
    at_end_ = count == 0;
    end_ += static_cast<size_t>(count);
    return {};
  }

  const int fd_;
  const std::string& path_;
  FileOps& ops_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool at_end_ = false;
};

Result<ScanResult> scan_open_file(int fd, const std::string& path, const OnRecord& on_record, FileOps& ops) {
  RecordLines lines(fd, path, ops);
  RecordParser parser;
  ScanResult result;
  int64_t line_number = 0;
  std::optional<int64_t> bad_line;  // is it the last one?
  while (true) {
    LLMB_ASSIGN_OR_RETURN(auto line, lines.next());
    if (!line.has_value()) break;
    if (bad_line) return damaged(path, *bad_line, "not a result record");
    ++line_number;
    std::optional<RecordSummary> record;
    if (line->has_newline && !line->bytes.empty()) record = parser.parse(line->bytes);
    if (!record) {
      bad_line = line_number;
      result.torn_bytes = line->size;
      continue;
    }
    Status status = on_record(*record, line->bytes);
    if (status.code() == StatusCode::kDataLoss) return damaged(path, line_number, status.message());
    LLMB_RETURN_IF_ERROR(std::move(status));
    result.whole_bytes += line->size;
  }
  return result;
}

}  // namespace

struct RecordParser::State {
  dom::parser parser;
};

RecordParser::RecordParser() : state_(std::make_unique<State>()) {}
RecordParser::~RecordParser() = default;

std::optional<RecordSummary> RecordParser::parse(std::string_view record) {
  dom::object object;
  simdjson::error_code parsed =
      state_->parser.parse(record.data(), record.size(), /*realloc_if_needed=*/false).get(object);
  if (parsed == simdjson::NUMBER_ERROR)
    if (const auto marked = mark_large_integers(record)) parsed = state_->parser.parse(*marked).get(object);
  throw_if_out_of_memory(parsed);
  if (parsed != simdjson::SUCCESS) return std::nullopt;
  RecordSummary summary;
  std::string_view hash;
  if (object["index"].get(summary.index) != simdjson::SUCCESS || summary.index < 0) return std::nullopt;
  if (object["hash"].get(hash) != simdjson::SUCCESS) return std::nullopt;
  const std::optional<uint64_t> content_hash = parse_hash(hash);
  if (!content_hash) return std::nullopt;
  summary.content_hash = *content_hash;
  dom::element error;
  int64_t status_code = 0;
  bool has_error = object["error"].get(error) == simdjson::SUCCESS && !error.is_null();  // native, or of older builds
  if (!has_error && object["response"]["status_code"].get(status_code) == simdjson::SUCCESS && status_code >= 400) {
    has_error = true;
    if (object["response"]["body"]["error"].get(error) != simdjson::SUCCESS) return std::nullopt;
  }
  std::string_view code;
  if (has_error && error["code"].get(code) != simdjson::SUCCESS) return std::nullopt;
  if (has_error) summary.error_code = code;
  else if (object["text"].error() != simdjson::SUCCESS && object["outputs"].error() != simdjson::SUCCESS &&
           object["response"].error() != simdjson::SUCCESS)
    return std::nullopt;
  return summary;
}

Result<ScanResult> scan_records(const std::string& path, const OnRecord& on_record, FileOps& ops) {
  const int fd = open_retrying(ops, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return io_error(path + ": cannot open: " + std::strerror(errno));
  Result<ScanResult> result = scan_open_file(fd, path, on_record, ops);
  ops.close(fd);
  return result;
}

Status rewrite_records(const std::string& path, const std::string& temporary,
                       const std::function<bool(const RecordSummary&)>& keep, FileOps& ops) {
  AtomicFileWriter writer(path, temporary, ops);
  LLMB_RETURN_IF_ERROR(writer.open());
  const auto append = [&](const RecordSummary& summary, std::string_view record) {
    return keep(summary) ? writer.append(record) : Status();
  };
  LLMB_RETURN_IF_ERROR(scan_records(path, append, ops).status());
  return writer.commit();
}

}  // namespace llmb
