// Models with known answers: directories under data/fixtures/models, and lines of JSON files.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/source_dir.h"

namespace llmb::test {

// Sorted.
inline std::vector<std::string> golden_model_dirs() {
  namespace fs = std::filesystem;
  std::vector<std::string> dirs;
  for (const auto& entry : fs::directory_iterator(source_dir() + "/data/fixtures/models"))
    if (fs::exists(entry.path() / "golden.jsonl")) dirs.push_back(entry.path().string());
  std::sort(dirs.begin(), dirs.end());
  return dirs;
}

inline std::vector<nlohmann::json> read_json_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace llmb::test
