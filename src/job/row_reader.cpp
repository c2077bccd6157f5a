#include "job/row_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <variant>

#include "base/content_hash.h"
#include "base/open_file.h"
#include "job/packed_request.h"

namespace llmb {

namespace {

constexpr size_t kChunkBytes = 64 << 10;
// Spare capacity with which the JSON parser need not copy the line.
constexpr size_t kParserPadding = 64;

ssize_t pread_retrying(FileOps& ops, int fd, char* buffer, size_t size, int64_t offset) {
  ssize_t count = 0;
  do count = ops.pread(fd, buffer, size, offset);
  while (count < 0 && errno == EINTR);
  return count;
}

bool is_plain_file(FileOps& ops, const std::string& path) {
  const Descriptor file(ops, ops.open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0));
  struct stat st;
  if (file.get() < 0 || ops.fstat(file.get(), &st) != 0 || !S_ISREG(st.st_mode)) return false;
  std::array<char, 4> begin{};
  const ssize_t count = pread_retrying(ops, file.get(), begin.data(), begin.size(), 0);
  const std::string_view bytes(begin.data(), count < 0 ? 0 : static_cast<size_t>(count));
  return count >= 0 && !bytes.starts_with("\x1f\x8b") && bytes != "\x28\xb5\x2f\xfd";
}

Status changed(const LineRef& line) {
  return data_loss(line.source + ":" + std::to_string(line.line_number) +
                   ": the line has changed since it was first read; run again with an input that stays as it is");
}

}  // namespace

RowReader::RowReader(std::unique_ptr<RequestParser> parser, std::shared_ptr<const ModelContext> model, uint64_t seed,
                     std::optional<InputFormat> format, FileOps& ops)
    : parser_(std::move(parser)), model_(std::move(model)), seed_(seed), format_(format), ops_(ops) {}

bool RowReader::can_read(const std::string& source) {
  const auto [at, is_new] = can_read_.try_emplace(source, false);
  if (!is_new) return at->second;
  const InputFormat format = format_.value_or(input_format_of(source));
  const bool has_row_in_line = format == InputFormat::kJsonLines || format == InputFormat::kText;
  return at->second = source != "-" && has_row_in_line && is_plain_file(ops_, source);
}

Result<InputLine> RowReader::read_line(const LineRef& line) {
  auto at = opened_.find(line.source);
  if (at == opened_.end()) {
    Descriptor file(ops_, ops_.open(line.source.c_str(), O_RDONLY | O_CLOEXEC, 0));
    if (file.get() < 0) return open_error(line.source, errno);
    at = opened_.emplace(line.source, std::move(file)).first;
  }
  InputLine read;
  read.line = line;
  read.format = format_.value_or(input_format_of(line.source));
  for (size_t end = std::string::npos; end == std::string::npos && read.has_newline;) {
    const size_t begin = read.bytes.size();
    read.bytes.resize(begin + kChunkBytes);
    const ssize_t count = pread_retrying(ops_, at->second.get(), read.bytes.data() + begin, kChunkBytes,
                                         line.byte_offset + static_cast<int64_t>(begin));
    if (count < 0) return io_error(line.source + ": cannot read: " + std::strerror(errno));
    read.bytes.resize(begin + static_cast<size_t>(count));
    end = read.bytes.find('\n', begin);
    read.has_newline = count > 0;
    if (end != std::string::npos) read.bytes.resize(end);
    if (read.bytes.size() > kDefaultMaxLineBytes) return changed(line);
  }
  if (read.bytes.ends_with('\r')) read.bytes.pop_back();
  read.bytes.reserve(read.bytes.size() + kParserPadding);
  return read;
}

Result<std::shared_ptr<Request>> RowReader::read(const LineRef& line, std::string* packed_input) {
  LLMB_ASSIGN_OR_RETURN(const InputLine read, read_line(line));
  if (content_hash(read.bytes) != line.content_hash) return changed(line);
  auto parsed = parser_->parse(read);
  auto* input = std::get_if<InputRequest>(&parsed);
  if (input == nullptr) return changed(line);
  if (packed_input != nullptr) *packed_input = pack_request(*input);
  auto prepared = prepare_request(std::move(*input), *model_, seed_);
  auto* request = std::get_if<std::shared_ptr<Request>>(&prepared);
  if (request == nullptr) return changed(line);
  return std::move(*request);
}

}  // namespace llmb
