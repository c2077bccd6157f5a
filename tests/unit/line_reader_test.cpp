// Physical lines from files, pipes and compressed streams: FAULTS rows 15 to 17.
#include "io/line_reader.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <fstream>
#include <thread>

#include "tests/support/faulty_file_ops.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb {

using test::FaultyFileOps;
using test::FileCall;
using test::TempDir;
using test::write_file;

namespace {

struct ReadAll {
  std::vector<InputLine> lines;
  Status status;
};

ReadAll read_all(LineReader& reader) {
  ReadAll result;
  while (true) {
    auto line = reader.next();
    if (!line.ok()) {
      result.status = line.status();
      return result;
    }
    if (!line->has_value()) return result;
    result.lines.push_back(std::move(**line));
  }
}

ReadAll read_all(std::vector<std::string> inputs, size_t max_line_bytes = kDefaultMaxLineBytes,
                 FileOps& ops = real_file_ops()) {
  LineReader reader(std::move(inputs), max_line_bytes, ops);
  return read_all(reader);
}

// "index:line_number@offset=bytes" of each line.
std::string describe(const ReadAll& all) {
  std::string out;
  for (const InputLine& l : all.lines)
    out += std::to_string(l.line.index) + ":" + std::to_string(l.line.line_number) + "@" +
           std::to_string(l.line.byte_offset) + "=" + (l.too_long ? "<too long>" : l.bytes) + "|";
  return out;
}

std::string describe_text(const std::string& text) {
  TempDir dir;
  write_file(dir / "in.jsonl", text);
  const ReadAll all = read_all({dir / "in.jsonl"});
  CHECK(all.status.ok());
  return describe(all);
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// stdin is the read end of a pipe for as long as this lives.
class PipedStdin {
 public:
  PipedStdin() : saved_(dup(STDIN_FILENO)) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    write_end_ = ends[1];
  }
  ~PipedStdin() {
    close_write_end();
    dup2(saved_, STDIN_FILENO);
    close(saved_);
  }
  void write(const std::string& text) {
    REQUIRE(::write(write_end_, text.data(), text.size()) == ssize_t(text.size()));
  }
  void close_write_end() {
    if (write_end_ >= 0) close(write_end_);
    write_end_ = -1;
  }

 private:
  int saved_;
  int write_end_ = -1;
};

}  // namespace

TEST_CASE("line endings, blank lines, byte order mark and a missing last newline") {
  CHECK(describe_text("").empty());
  CHECK(describe_text("\n\n").empty());
  CHECK(describe_text("a") == "0:1@0=a|");
  CHECK(describe_text("a\n") == "0:1@0=a|");
  CHECK(describe_text("a\r\nb\r\n") == "0:1@0=a|1:2@3=b|");
  CHECK(describe_text("a\r") == "0:1@0=a|");
  CHECK(describe_text("a\rb\r\r\n") == "0:1@0=a\rb\r|");
  CHECK(describe_text("\n \t\r\na\n\nb") == "2:3@5=a|4:5@8=b|");
  CHECK(describe_text("\xEF\xBB\xBF"
                      "a\nb") == "0:1@3=a|1:2@5=b|");
  CHECK(describe_text("\xEF\xBB\xBF").empty());
  CHECK(describe_text("\xEF\xBB") == "0:1@0=\xEF\xBB|");
  CHECK(describe_text("a\n\xEF\xBB\xBF"
                      "b") ==
        "0:1@0=a|1:2@2=\xEF\xBB\xBF"
        "b|");
  CHECK(describe_text("a\xE2\x80\xA8"
                      "b\xC2\x85"
                      "c\x0B\x0C\n") ==
        "0:1@0=a\xE2\x80\xA8"
        "b\xC2\x85"
        "c\x0B\x0C|");
  CHECK(describe_text(std::string("a\0b\n", 4)) == "0:1@0=" + std::string("a\0b|", 4));
}

TEST_CASE("a line says whether its newline was there") {
  TempDir dir;
  write_file(dir / "a.jsonl", "one\ntwo\r");
  write_file(dir / "b.jsonl", "three\r\n\n four");
  write_file(dir / "c.jsonl", "123456789\n123456789");
  const ReadAll all = read_all({dir / "a.jsonl", dir / "b.jsonl", dir / "c.jsonl"}, 8);
  REQUIRE(all.lines.size() == 6);
  const bool expected[] = {true, false, true, false, true, false};
  for (size_t i = 0; i < 6; ++i) CHECK(all.lines[i].has_newline == expected[i]);
  CHECK(all.lines[5].too_long);
}

TEST_CASE("several inputs: the index runs on, line numbers start again, lines do not join") {
  TempDir dir;
  write_file(dir / "a",
             "\xEF\xBB\xBF"
             "1\n\n2");
  write_file(dir / "b", "");
  write_file(dir / "c",
             "\xEF\xBB\xBF"
             "3\n");
  const ReadAll all = read_all({dir / "a", dir / "b", dir / "c"});
  CHECK(all.status.ok());
  CHECK(describe(all) == "0:1@3=1|2:3@6=2|3:1@3=3|");
  CHECK(all.lines[0].line.source == dir / "a");
  CHECK(all.lines[2].line.source == dir / "c");
}

TEST_CASE("the hash is of the line's own bytes: not of its ending, its place or its file's byte order mark") {
  TempDir dir;
  write_file(dir / "a",
             "\xEF\xBB\xBF"
             "{\"x\":1}\r\n{\"x\":1}\n{\"x\":2}\n{\"x\":1}");
  const auto lines = read_all({dir / "a"}).lines;
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].line.content_hash == content_hash("{\"x\":1}"));
  CHECK(lines[1].line.content_hash == lines[0].line.content_hash);
  CHECK(lines[2].line.content_hash != lines[0].line.content_hash);
  CHECK(lines[3].line.content_hash == lines[0].line.content_hash);
}

TEST_CASE("one byte a read, interrupts and any chunk border give the same lines") {
  TempDir dir;
  const std::string text =
      "\xEF\xBB\xBF"
      "first\r\n\n second \r\r\nthird \xE2\x80\xA8\nlast";
  write_file(dir / "plain", text);
  write_file(dir / "gz", gzip(text));
  write_file(dir / "zst", zstd(text));
  const std::string expected = describe(read_all({dir / "plain"}));
  for (const char* name : {"plain", "gz", "zst"}) {
    CAPTURE(name);
    FaultyFileOps ops;
    ops.max_io_bytes = 1;
    ops.num_interrupts = 2;
    const ReadAll all = read_all({dir / name}, kDefaultMaxLineBytes, ops);
    CHECK(all.status.ok());
    CHECK(describe(all) == expected);
  }
}

TEST_CASE("lines around the reader's chunk size arrive whole") {
  TempDir dir;
  constexpr size_t kChunk = 256 << 10;
  for (const size_t size : {kChunk - 2, kChunk - 1, kChunk, kChunk + 1, 3 * kChunk}) {
    CAPTURE(size);
    const std::string line(size, 'x');
    write_file(dir / "a", line + "\r\n" + line + "\nshort\n");
    const auto lines = read_all({dir / "a"}).lines;
    REQUIRE(lines.size() == 3);
    CHECK(lines[0].bytes == line);
    CHECK(lines[1].bytes == line);
    CHECK(lines[1].line.content_hash == content_hash(line));
    CHECK(lines[2].line.byte_offset == static_cast<int64_t>(2 * size + 3));
  }
}

TEST_CASE("a line at the limit is returned, one byte more is too long, and its neighbours do not notice") {
  TempDir dir;
  for (const char* ending : {"\n", "\r\n", ""}) {
    CAPTURE(ending);
    write_file(dir / "a", std::string("before\n") + "12345678" + ending);
    CHECK(describe(read_all({dir / "a"}, 8)) == "0:1@0=before|1:2@7=12345678|");
    write_file(dir / "a", std::string("before\n") + "123456789" + ending + (*ending ? "after" : ""));
    const ReadAll all = read_all({dir / "a"}, 8);
    REQUIRE(all.lines.size() == (*ending ? 3 : 2));
    CHECK(all.lines[1].too_long);
    CHECK(all.lines[1].bytes.empty());
    CHECK(all.lines[1].line.content_hash == content_hash("123456789"));
    if (*ending) CHECK(all.lines[2].bytes == "after");
  }
}

TEST_CASE("a quarter of a gigabyte without a newline is skipped in bounded memory") {
  TempDir dir;
  {
    std::ofstream out(dir / "huge", std::ios::binary);
    out << "before\n";
    out.seekp((int64_t{1} << 28) + 6);  // a hole of NULs
    out << "\nafter\n";
  }
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const ReadAll all = read_all({dir / "huge"}, 8 << 20);
  getrusage(RUSAGE_SELF, &after);
  REQUIRE(all.lines.size() == 3);
  CHECK(all.lines[1].too_long);
  CHECK(all.lines[2].bytes == "after");
  const long grown_kib = after.ru_maxrss - before.ru_maxrss;
  CHECK(grown_kib <= (8 + 64) << 10);
}

TEST_CASE("gzip and zstd are known by their first bytes, whatever the name; members and frames follow each other") {
  TempDir dir;
  write_file(dir / "plain.gz", "a\nb\n");
  write_file(dir / "gz.jsonl", gzip("a\n") + gzip("") + gzip("b\nc") + gzip("d\n") + std::string(512, '\0'));
  write_file(dir / "zst.jsonl",
             zstd("a\n") + std::string("\x50\x2a\x4d\x18\x03\0\0\0xyz", 11) + zstd("b\nc") + zstd("d\n"));
  write_file(dir / "skip.jsonl", std::string("\x5f\x2a\x4d\x18\0\0\0\0", 8) + zstd("a\n"));
  CHECK(describe(read_all({dir / "plain.gz"})) == "0:1@0=a|1:2@2=b|");
  const std::string expected = "0:1@0=a|1:2@2=b|2:3@4=cd|";
  for (const char* name : {"gz.jsonl", "zst.jsonl"}) {
    const ReadAll all = read_all({dir / name});
    CHECK(all.status.ok());
    CHECK(describe(all) == expected);
  }
  CHECK(describe(read_all({dir / "skip.jsonl"})) == "0:1@0=a|");
  for (const char* text : {"\x1f", "\x28", "\x28\xb5\x2f", "\x50", "\x50\x2a", "Plain"})
    CHECK(describe_text(text) == "0:1@0=" + std::string(text) + "|");
}

TEST_CASE("compressed lines longer than any buffer") {
  TempDir dir;
  const std::string line(3 << 20, 'z');
  for (const std::string& bytes : {gzip(line + "\n" + line), zstd(line + "\n" + line)}) {
    write_file(dir / "a", bytes);
    LineReader reader({dir / "a"});
    CHECK(reader.total_bytes() == static_cast<int64_t>(bytes.size()));
    const ReadAll all = read_all(reader);
    REQUIRE(all.lines.size() == 2);
    CHECK(all.lines[0].bytes == line);
    CHECK(all.lines[1].bytes == line);
    CHECK(reader.bytes_read() == static_cast<int64_t>(bytes.size()));
  }
}

TEST_CASE("bytes_consumed is the place of the last line, though the reader has read ahead") {
  TempDir dir;
  write_file(dir / "a", "12345\n\n123\n");
  write_file(dir / "b", "1\n");
  LineReader reader({dir / "a", dir / "b"});
  CHECK(reader.bytes_consumed() == 0);
  for (const int64_t place : {6, 11, 13}) {
    REQUIRE(reader.next().value().has_value());
    CHECK(reader.bytes_consumed() == place);
  }
}

TEST_CASE("a line of compressed stdin is returned when its bytes are there, though they overflow the reader's buffer") {
  constexpr size_t kBlock = 100'000;
  constexpr int kBlocks = 3;  // more than 256 KiB, and no border of a block is one of the buffer
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  std::string bytes(ZSTD_compressBound(kBlocks * kBlock), '\0');
  ZSTD_outBuffer out{bytes.data(), bytes.size(), 0};
  for (int i = 1; i <= kBlocks; ++i) {
    const std::string block = std::string(kBlock - 1, 'z') + (i == kBlocks ? "\n" : "z");
    ZSTD_inBuffer in{block.data(), block.size(), 0};
    REQUIRE(ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush) == 0);
  }
  ZSTD_freeCCtx(context);
  PipedStdin piped;
  piped.write(bytes.substr(0, out.pos));
  FaultyFileOps ops;
  ops.before_call = [&](FileCall call) {  // a reader that wants more sees the frame cut off
    if (call == FileCall::kPoll && ops.count(FileCall::kRead) > 0) piped.close_write_end();
  };
  LineReader reader({"-"}, kDefaultMaxLineBytes, ops);
  auto line = reader.next();
  REQUIRE(line.ok());
  CHECK((*line)->bytes.size() == kBlocks * kBlock - 1);
}

TEST_CASE("a compressed stream cut at any byte, or damaged, is an error that names the file") {
  TempDir dir;
  std::string text;
  for (int i = 0; i < 50; ++i) text += "{\"prompt\":\"" + std::to_string(i * 7919) + "\"}\n";
  for (const std::string& whole : {gzip(text), zstd(text)}) {
    for (size_t size = 5; size < whole.size(); ++size) {
      CAPTURE(size);
      write_file(dir / "cut", whole.substr(0, size));
      const ReadAll all = read_all({dir / "cut"});
      CHECK(all.status.code() == StatusCode::kDataLoss);
      CHECK(all.status.message().find(dir / "cut") == 0);
    }
  }
  write_file(dir / "garbage.gz", gzip("a\n") + "garbage");
  CHECK(read_all({dir / "garbage.gz"}).status.code() == StatusCode::kDataLoss);
  std::string flipped = gzip(text);
  flipped[flipped.size() - 6] ^= 1;  // in the checksum
  write_file(dir / "flipped", flipped);
  CHECK(read_all({dir / "flipped"}).status.code() == StatusCode::kDataLoss);
  write_file(dir / "empty.gz", "");
  write_file(dir / "empty.zst", "");
  CHECK(read_all({dir / "empty.gz"}).status.code() == StatusCode::kDataLoss);
  CHECK(read_all({dir / "empty.zst"}).status.code() == StatusCode::kDataLoss);
}

TEST_CASE("what cannot be read is named: missing file, directory, failing read") {
  TempDir dir;
  write_file(dir / "a", "1\n");
  const ReadAll missing = read_all({dir / "a", dir / "missing"});
  CHECK(missing.lines.size() == 1);
  CHECK(missing.status.code() == StatusCode::kNotFound);
  CHECK(missing.status.message() == dir / "missing" + ": cannot open: No such file or directory");
  CHECK(read_all({dir.path()}).status.code() == StatusCode::kIoError);
  FaultyFileOps ops;
  ops.faults = {{FileCall::kRead, 1, EIO}};
  CHECK(read_all({dir / "a"}, kDefaultMaxLineBytes, ops).status.message() ==
        dir / "a" + ": cannot read: Input/output error");

  CHECK(LineReader({dir / "a"}).check_inputs().ok());
  CHECK(LineReader({dir / "a", dir / "missing"}).check_inputs().code() == StatusCode::kIoError);
  CHECK(LineReader({dir.path()}).check_inputs().code() == StatusCode::kIoError);
  CHECK(LineReader({"-", "-"}).check_inputs().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("sizes are known for files only") {
  TempDir dir;
  write_file(dir / "a", "1\n");
  write_file(dir / "b", "22\n");
  CHECK(LineReader({dir / "a", dir / "b"}).total_bytes() == 5);
  PipedStdin piped;
  CHECK(!LineReader({dir / "a", "-"}).total_bytes().has_value());
}

TEST_CASE("a line on stdin is returned when its newline comes, not when more does") {
  PipedStdin piped;
  LineReader reader({"-"});
  piped.write("1\n2");
  auto line = reader.next();
  REQUIRE(line.ok());
  CHECK((*line)->bytes == "1");
  CHECK((*line)->line.source == "-");
  piped.write("2\n");
  line = reader.next();
  REQUIRE(line.ok());
  CHECK((*line)->bytes == "22");
  piped.close_write_end();
  line = reader.next();
  REQUIRE(line.ok());
  CHECK(!line->has_value());
}

TEST_CASE("compressed stdin") {
  for (const std::string& bytes : {gzip("1\n2\n"), zstd("1\n2\n")}) {
    PipedStdin piped;
    piped.write(bytes);
    piped.close_write_end();
    CHECK(describe(read_all({"-"})) == "0:1@0=1|1:2@2=2|");
  }
}

TEST_CASE("stop ends a reader that waits for stdin") {
  PipedStdin piped;
  LineReader reader({"-"});
  std::optional<bool> ended;
  std::thread waiting([&] {
    auto line = reader.next();
    ended = line.ok() && !line->has_value();
  });
  reader.stop();
  waiting.join();
  CHECK(ended == true);
}

TEST_CASE("FAULTS 43: a file that became shorter while it was read is no end of the input; one that grew is read on") {
  const TempDir dir;
  const std::string line = std::string(99, 'x') + "\n";
  std::string text;
  for (int i = 0; i < 10000; ++i) text += line;  // more than is read at a time
  const auto count_lines = [&](int64_t new_size) {
    write_file(dir / "in", text);
    LineReader reader({dir / "in"});
    int64_t num_lines = 0;
    while (true) {
      const auto next = reader.next();
      if (!next.ok()) CHECK(next.status().code() == StatusCode::kIoError);
      if (!next.ok()) CHECK(next.status().message().find(dir / "in: became shorter") == 0);
      if (!next.ok()) return -num_lines;
      if (!next->has_value()) return num_lines;
      if (++num_lines == 1) std::filesystem::resize_file(dir / "in", static_cast<size_t>(new_size));
    }
  };
  const auto size = static_cast<int64_t>(text.size());
  CHECK(count_lines(size) == 10000);
  CHECK(count_lines(size + 100) == 10001);
  for (const int64_t shorter : {int64_t{0}, size / 2, size - 1}) CHECK(count_lines(shorter) < 0);
}

}  // namespace llmb
