// Any bytes as an input file: the lines do not depend on how the bytes arrive, and those of an uncompressed file are
// the ones that a simple split gives.
#include "io/line_reader.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace llmb::test {

namespace {

constexpr size_t kMaxLineBytes = 64;
constexpr size_t kMaxLines = 100000;  // a few bytes of gzip can hold millions

// One file in memory, given out in pieces.
class MemoryFile final : public FileOps {
 public:
  MemoryFile(std::string_view bytes, size_t max_read_bytes) : bytes_(bytes), max_read_bytes_(max_read_bytes) {}
  int open(const char*, int, mode_t) override { return 3; }
  ssize_t read(int, void* buffer, size_t size) override {
    size = std::min({size, max_read_bytes_, bytes_.size() - at_});
    std::memcpy(buffer, bytes_.data() + at_, size);
    at_ += size;
    return static_cast<ssize_t>(size);
  }
  ssize_t pread(int, void* buffer, size_t size, off_t offset) override {
    const size_t at = std::min(static_cast<size_t>(offset), bytes_.size());
    size = std::min({size, max_read_bytes_, bytes_.size() - at});
    std::memcpy(buffer, bytes_.data() + at, size);
    return static_cast<ssize_t>(size);
  }
  int fstat(int, struct stat* st) override {
    *st = {};
    st->st_mode = S_IFREG | 0600;
    st->st_size = static_cast<off_t>(bytes_.size());
    return 0;
  }
  int stat(const char*, struct stat* st) override { return fstat(3, st); }
  int poll(int, short, int) override { return 1; }
  int close(int) override { return 0; }
  ssize_t write(int, const void*, size_t) override { return -1; }
  int fsync(int) override { return -1; }
  int fdatasync(int) override { return -1; }
  int ftruncate(int, off_t) override { return -1; }
  int rename(const char*, const char*) override { return -1; }
  int rename_new(const char*, const char*) override { return -1; }
  int unlink(const char*) override { return -1; }
  int flock(int, int) override { return -1; }

 private:
  std::string_view bytes_;
  size_t max_read_bytes_;
  size_t at_ = 0;
};

struct Lines {
  std::vector<InputLine> lines;
  bool ok = true;
};

Lines read_lines(std::string_view bytes, size_t max_read_bytes) {
  MemoryFile file(bytes, max_read_bytes);
  LineReader reader({"in.jsonl"}, kMaxLineBytes, file);
  Lines all;
  while (all.lines.size() < kMaxLines) {
    auto line = reader.next();
    all.ok = line.ok();
    if (!line.ok() || !line->has_value()) break;
    all.lines.push_back(std::move(**line));
  }
  return all;
}

bool same(const InputLine& a, const InputLine& b) {
  return a.line.index == b.line.index && a.line.byte_offset == b.line.byte_offset &&
         a.line.content_hash == b.line.content_hash && a.bytes == b.bytes && a.too_long == b.too_long;
}

// The lines of an uncompressed file by rules 1 to 4 of line_reader.h.
std::vector<InputLine> split(std::string_view bytes) {
  std::vector<InputLine> lines;
  size_t begin = bytes.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  for (int64_t index = 0; begin < bytes.size(); ++index) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    std::string_view text = bytes.substr(begin, end - begin);
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.find_first_not_of(" \t\r") != std::string_view::npos) {
      InputLine line;
      line.line.index = index;
      line.line.byte_offset = static_cast<int64_t>(begin);
      line.line.content_hash = content_hash(text);
      line.too_long = text.size() > kMaxLineBytes;
      if (!line.too_long) line.bytes = text;
      lines.push_back(std::move(line));
    }
    begin = end + 1;
  }
  return lines;
}

}  // namespace

}  // namespace llmb::test

LLMB_FUZZ_TARGET(line_reader) {
  const Lines whole = read_lines(input, SIZE_MAX);
  const Lines pieces = read_lines(input, 1 + input.size() % 7);
  LLMB_CHECK(whole.ok == pieces.ok);
  // How much comes out before damage is seen depends on the decompressor.
  if (whole.ok) LLMB_CHECK(whole.lines.size() == pieces.lines.size());
  for (size_t i = 0; i < std::min(whole.lines.size(), pieces.lines.size()); ++i)
    LLMB_CHECK(same(whole.lines[i], pieces.lines[i]));

  if (input.starts_with("\x1F\x8B") || input.starts_with("\x28\xB5\x2F\xFD")) return;
  if (input.size() >= 4 && input.substr(1, 3) == "\x2A\x4D\x18") return;  // a skippable frame of zstd
  LLMB_CHECK(whole.ok);
  const std::vector<InputLine> expected = split(input);
  LLMB_CHECK(whole.lines.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) LLMB_CHECK(same(whole.lines[i], expected[i]));
}
