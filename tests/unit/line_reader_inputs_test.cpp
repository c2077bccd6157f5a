// Where lines come from: compressed files, stdin, files that cannot be read or that change.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <thread>

#include "io/line_reader.h"
#include "tests/support/faulty_file_ops.h"
#include "tests/unit/read_lines.h"

namespace llmb::test {

namespace {

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

}  // namespace llmb::test
