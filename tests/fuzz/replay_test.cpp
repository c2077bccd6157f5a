// Every file of the fuzz corpora, and prefixes of it, through the same functions that libFuzzer runs.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "tests/fuzz/fuzz_target.h"
#include "tests/support/process.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

const fs::path kFolder = source_dir() + "/tests/fuzz";

std::map<std::string, FuzzFunction>& targets() {
  static std::map<std::string, FuzzFunction> all;
  return all;
}

}  // namespace

bool register_fuzz_target(const char* name, FuzzFunction function) { return targets().emplace(name, function).second; }

TEST_CASE("every fuzz target and its corpus are replayed") {
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with("_fuzz.cpp")) continue;
    CHECK_MESSAGE(targets().contains(name.substr(0, name.size() - std::string("_fuzz.cpp").size())), name);
  }
  for (const auto& entry : fs::directory_iterator(kFolder / "corpus"))
    CHECK_MESSAGE(targets().contains(entry.path().filename().string()), entry.path().string());
}

TEST_CASE("no input of the corpora breaks a promise") {
  constexpr size_t kNumPrefixes = 16;
  for (const auto& target : targets()) {
    const auto& name = target.first;
    const auto& run = target.second;
    CAPTURE(name);
    run("");
    size_t num_files = 0;
    for (const auto& entry : fs::directory_iterator(kFolder / "corpus" / name)) {
      num_files++;
      const std::string file = entry.path().filename().string();
      CAPTURE(file);
      const std::string bytes = read_file(entry.path().string());
      CHECK_NOTHROW(run(bytes));
      for (size_t i = 1; i < kNumPrefixes; ++i)
        CHECK_NOTHROW(run(std::string_view(bytes).substr(0, bytes.size() * i / kNumPrefixes)));
    }
    CHECK(num_files > 0);
  }
}

}  // namespace llmb::test
