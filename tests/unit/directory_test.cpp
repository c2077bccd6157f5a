#include "base/directory.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"

namespace llmb::test {

TEST_CASE("names of files and folders come sorted, and what is no folder is an error that names it") {
  const TempDir dir;
  CHECK(directory_names(dir.path()).value().empty());
  for (const char* name : {"b", "a.txt", ".hidden"}) std::ofstream(dir / name) << "x";
  std::filesystem::create_directory(dir / "c");
  CHECK(directory_names(dir.path()).value() == std::vector<std::string>{".hidden", "a.txt", "b", "c"});
  for (const std::string& wrong : {dir / "none", dir / "b"}) {
    const auto names = directory_names(wrong);
    REQUIRE(!names.ok());
    CHECK(names.status().message().find(wrong) != std::string::npos);
  }
}

}  // namespace llmb::test
