// A fixture's model with a vocabulary twice as large, which four ranks can divide: the further tokens are the first ones
// with the opposite signs.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/process.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

// The checkpoint is of one file and in bfloat16. golden.jsonl goes along for its prompts; answers are others.
inline void write_twice_the_tokens(const std::string& fixture, const TempDir& dir) {
  const std::string from = source_dir() + "/data/fixtures/models/" + fixture;
  std::string config = read_file(from + "/config.json");  // which may have Infinity, so no parser takes it
  const std::string field = "\"vocab_size\": ";
  const size_t at = config.find(field) + field.size(), end_of_number = config.find_first_not_of("0123456789", at);
  const int64_t vocab_size = std::stoll(config.substr(at));
  config.replace(at, end_of_number - at, std::to_string(2 * vocab_size));
  write_file(dir / "config.json", config);
  write_file(dir / "golden.jsonl", read_file(from + "/golden.jsonl"));

  const std::string stored = read_file(from + "/model.safetensors");
  uint64_t header_size = 0;
  std::memcpy(&header_size, stored.data(), sizeof(header_size));
  auto header = nlohmann::json::parse(stored.substr(8, header_size));
  std::string data;
  for (auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const int64_t begin = tensor.at("data_offsets").at(0), end = tensor.at("data_offsets").at(1);
    std::string bytes = stored.substr(8 + header_size + begin, end - begin);
    if (tensor.at("shape").at(0) == vocab_size && tensor.at("shape").size() == 2) {
      std::string more = bytes;
      for (size_t i = 1; i < more.size(); i += 2) more[i] = static_cast<char>(more[i] ^ '\x80');
      bytes += more;
      tensor["shape"][0] = 2 * vocab_size;
    }
    tensor["data_offsets"] = {data.size(), data.size() + bytes.size()};
    data += bytes;
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  write_file(dir / "model.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + text + data);
}

}  // namespace llmb::test
