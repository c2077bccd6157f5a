// Inputs given to a LineReader, and its lines as one text.
#pragma once

#include <doctest/doctest.h>
#include <zlib.h>
#include <zstd.h>

#include <string>
#include <utility>
#include <vector>

#include "io/line_reader.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

struct ReadAll {
  std::vector<InputLine> lines;
  Status status;
};

inline ReadAll read_all(LineReader& reader) {
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

inline ReadAll read_all(std::vector<std::string> inputs, size_t max_line_bytes = kDefaultMaxLineBytes,
                 FileOps& ops = real_file_ops()) {
  LineReader reader(std::move(inputs), max_line_bytes, ops);
  return read_all(reader);
}

// "index:line_number@offset=bytes" of each line.
inline std::string describe(const ReadAll& all) {
  std::string out;
  for (const InputLine& l : all.lines)
    out += std::to_string(l.line.index) + ":" + std::to_string(l.line.line_number) + "@" +
           std::to_string(l.line.byte_offset) + "=" + (l.too_long ? "<too long>" : l.bytes) + "|";
  return out;
}

inline std::string describe_text(const std::string& text) {
  TempDir dir;
  write_file(dir / "in.jsonl", text);
  const ReadAll all = read_all({dir / "in.jsonl"});
  CHECK(all.status.ok());
  return describe(all);
}

inline std::string gzip(const std::string& text) {
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

inline std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

}  // namespace llmb::test
