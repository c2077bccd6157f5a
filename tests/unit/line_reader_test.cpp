// Physical lines, whatever way their bytes arrive: FAULTS rows 15 to 17.
#include "io/line_reader.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>

#include "tests/support/faulty_file_ops.h"
#include "tests/unit/read_lines.h"

namespace llmb::test {

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

}  // namespace llmb::test
