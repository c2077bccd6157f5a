#include "base/mapped_file.h"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace llmb {

TEST_CASE("pages of a mapped file that are given up leave the process, and can be read again") {
  const auto resident_kib = [] {  // of mapped files
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("RssFile:")) return std::stol(line.substr(8));
    return 0L;
  };
  const test::TempDir dir;
  std::string bytes(8 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 4096);
  std::ofstream(dir / "f", std::ios::binary) << bytes;
  const auto file = MappedFile::open(dir / "f");
  REQUIRE(file.ok());
  const auto is_same = [&] { return std::memcmp(file->data(), bytes.data(), bytes.size()) == 0; };
  CHECK(file->contains(file->data()));
  CHECK(file->contains(file->data() + bytes.size() - 1));
  CHECK(!file->contains(file->data() + bytes.size()));
  CHECK(is_same());
  const long before = resident_kib();
  file->release_pages(file->data() + 1, 4096);  // no whole page
  file->release_pages(file->data() + 1, bytes.size() - 1);
  CHECK(resident_kib() <= before - (7 << 10));
  CHECK(is_same());
}

}  // namespace llmb
