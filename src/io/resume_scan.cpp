#include "io/resume_scan.h"

#include <fcntl.h>
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <future>
#include <iterator>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/durable_file.h"
#include "io/field_values.h"

namespace llmb {

namespace dom = simdjson::dom;

namespace {

constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kMaxPieces = 3;  // that are parsed at a time
// Each record without an error has one of these members, whatever the task (io/result_writer.h).
constexpr std::string_view kAnswers[] = {"text",    "response", "outputs", "embedding", "embeddings", "options",
                                         "logprob", "score",    "scores",  "classes",   "results",    "row",   "rows"};
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

// A part of the file that ends with a line, and what its lines say.
struct Piece {
  std::unique_ptr<char[]> bytes;
  size_t size = 0, capacity = 0;
  int64_t dropped = 0;  // bytes before these, of a first line that is too long to be kept
  bool is_last = false;

  struct Record {
    int64_t index;
    uint64_t content_hash;
    uint32_t size;
    int32_t error;  // its place in error_codes; -1: none
  };
  std::vector<Record> records;  // up to the first line that is none
  std::vector<std::string> error_codes;
  int64_t bad_size = 0;  // of that line; 0: there is none
  bool has_more = false;  // behind it

  void parse(RecordParser* parser);
};

void Piece::parse(RecordParser* parser) {
  records.clear();
  error_codes.clear();
  bad_size = 0;
  for (size_t at = 0; at < size || (at == 0 && dropped > 0);) {
    const char* const begin = bytes.get() + at;
    const void* const newline = at < size ? std::memchr(begin, '\n', size - at) : nullptr;
    const size_t length = newline ? static_cast<size_t>(static_cast<const char*>(newline) - begin) + 1 : size - at;
    const bool is_whole = newline != nullptr && (at > 0 || dropped == 0);
    auto record = is_whole ? parser->parse({begin, length}) : std::nullopt;
    if (!record) {
      bad_size = static_cast<int64_t>(length) + (at == 0 ? dropped : 0);
      has_more = at + length < size;
      return;
    }
    records.push_back({record->index, record->content_hash, static_cast<uint32_t>(length), -1});
    if (record->error_code) {
      records.back().error = static_cast<int32_t>(error_codes.size());
      error_codes.emplace_back(*record->error_code);
    }
    at += length;
  }
}

// The file piece by piece, in bounded memory.
class PieceReader {
 public:
  PieceReader(int fd, const std::string& path, FileOps& ops) : fd_(fd), path_(path), ops_(ops) {}

  // Whether the next piece takes more memory than others do.
  bool is_long() const { return rest_.size() + RecordParser::kPadding >= kPieceBytes; }

  // The next piece; the last one may be empty. REQUIRES: the one before was not the last.
  Status next(Piece* piece) {
    piece->size = 0;
    piece->dropped = 0;
    reserve(piece, std::max(kPieceBytes, rest_.size() + 2 * RecordParser::kPadding));
    std::memcpy(piece->bytes.get(), rest_.data(), rest_.size());
    piece->size = rest_.size();
    rest_.clear();
    for (size_t searched = piece->size;;) {
      LLMB_RETURN_IF_ERROR(fill(piece));
      const char* const begin = piece->bytes.get();
      const void* const newline =
          piece->size > searched ? memrchr(begin + searched, '\n', piece->size - searched) : nullptr;
      if (newline != nullptr && !piece->is_last) {
        const size_t end = static_cast<size_t>(static_cast<const char*>(newline) - begin) + 1;
        rest_.assign(begin + end, begin + piece->size);
        piece->size = end;
      }
      if (newline != nullptr || piece->is_last) return {};
      searched = piece->size;
      if (piece->size >= kMaxRecordBytes || piece->dropped > 0) {
        piece->dropped += static_cast<int64_t>(piece->size);
        piece->size = searched = 0;
      } else {
        reserve(piece, 2 * piece->capacity);
      }
    }
  }

 private:
  static void reserve(Piece* piece, size_t capacity) {
    if (piece->capacity >= capacity) return;
    auto bytes = std::make_unique_for_overwrite<char[]>(capacity);
    if (piece->size > 0) std::memcpy(bytes.get(), piece->bytes.get(), piece->size);
    piece->bytes = std::move(bytes);
    piece->capacity = capacity;
  }

  // Until it is full or the file ends.
  Status fill(Piece* piece) {
    while (piece->size + RecordParser::kPadding < piece->capacity) {
      const auto count = uninterrupted([&] {
        return ops_.read(fd_, piece->bytes.get() + piece->size,
                         piece->capacity - RecordParser::kPadding - piece->size);
      });
      if (count < 0) return io_error(path_ + ": cannot read: " + std::strerror(errno));
      piece->is_last = count == 0;
      if (piece->is_last) return {};
      piece->size += static_cast<size_t>(count);
    }
    return {};
  }

  const int fd_;
  const std::string& path_;
  FileOps& ops_;
  std::string rest_;  // read, and not yet in a piece
};

// Other threads parse the next pieces while the caller deals with the records of one.
class RecordScan {
 public:
  RecordScan(int fd, const std::string& path, const OnRecord& on_record, FileOps& ops)
      : reader_(fd, path, ops), path_(path), on_record_(on_record) {}

  Result<ScanResult> run() {
    bool is_read = false;
    while (!is_read || !parsing_.empty()) {
      if (is_read || !has_room()) {
        LLMB_RETURN_IF_ERROR(deal_with_first());
        continue;
      }
      LLMB_ASSIGN_OR_RETURN(is_read, read());
    }
    return result_;
  }

 private:
  struct Parsing {
    Piece piece;
    RecordParser parser;
    std::future<void> done;  // the first member that is destroyed: it waits
  };

  // A long record is parsed alone: it takes many times its size.
  bool has_room() const {
    if (parsing_.empty()) return true;
    return parsing_.size() < kMaxPieces && !reader_.is_long() && !is_long(parsing_.back()->piece);
  }
  static bool is_long(const Piece& piece) { return piece.capacity > 2 * kPieceBytes; }

  // Whether it was the last.
  Result<bool> read() {
    std::unique_ptr<Parsing> next = free_ ? std::move(free_) : std::make_unique<Parsing>();
    LLMB_RETURN_IF_ERROR(reader_.next(&next->piece));
    const bool is_last = next->piece.is_last;
    const auto parse = [to = next.get()] { to->piece.parse(&to->parser); };
    // A thread takes longer to start than few records take. Without a policy, a system that has no thread left is none
    // the worse for it.
    next->done = is_last && parsing_.empty() ? std::async(std::launch::deferred, parse) : std::async(parse);
    parsing_.push_back(std::move(next));
    return is_last;
  }

  Status deal_with_first() {
    std::unique_ptr<Parsing> first = std::move(parsing_.front());
    parsing_.pop_front();
    first->done.get();
    const Piece& piece = first->piece;
    const bool is_empty = piece.size == 0 && piece.dropped == 0;
    if (result_.torn_bytes > 0 && !is_empty) return damaged(path_, line_number_, "not a result record");
    const char* begin = piece.bytes.get();
    for (const Piece::Record& record : piece.records) {
      ++line_number_;
      RecordSummary summary = {record.index, record.content_hash, {}};
      if (record.error >= 0) summary.error_code = piece.error_codes[static_cast<size_t>(record.error)];
      Status status = on_record_(summary, {begin, record.size});
      if (status.code() == StatusCode::kDataLoss) return damaged(path_, line_number_, status.message());
      LLMB_RETURN_IF_ERROR(std::move(status));
      result_.whole_bytes += static_cast<int64_t>(record.size);
      begin += record.size;
    }
    if (piece.bad_size > 0) {
      ++line_number_;
      if (piece.has_more) return damaged(path_, line_number_, "not a result record");
      result_.torn_bytes = piece.bad_size;
    }
    if (!is_long(piece)) free_ = std::move(first);
    return {};
  }

  PieceReader reader_;
  const std::string& path_;
  const OnRecord& on_record_;
  std::deque<std::unique_ptr<Parsing>> parsing_;  // in the file's order
  std::unique_ptr<Parsing> free_;                 // to be used again
  int64_t line_number_ = 0;
  ScanResult result_;
};

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
  else if (std::none_of(std::begin(kAnswers), std::end(kAnswers),
                        [&](std::string_view name) { return object[name].error() == simdjson::SUCCESS; }))
    return std::nullopt;
  return summary;
}

Result<ScanResult> scan_records(const std::string& path, const OnRecord& on_record, FileOps& ops) {
  const int fd = open_retrying(ops, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return io_error(path + ": cannot open: " + std::strerror(errno));
  Result<ScanResult> result = RecordScan(fd, path, on_record, ops).run();
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
