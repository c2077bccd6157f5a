// Any bytes as a safetensors file: refused, or tensors that tile the data section and that another JSON reader finds
// in the header too.
#include "formats/safetensors.h"

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"

LLMB_FUZZ_TARGET(safetensors) {
  const auto entries = llmb::parse_safetensors({reinterpret_cast<const uint8_t*>(input.data()), input.size()});
  if (!entries.ok()) {
    LLMB_CHECK(!entries.status().message().empty());
    return;
  }
  static const std::map<std::string, uint64_t> kBytes = {
      {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}, {"I64", 8},     {"U64", 8},     {"I32", 4}, {"U32", 4},
      {"I16", 2}, {"U16", 2}, {"I8", 1},   {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1}};
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, input.data(), sizeof(header_bytes));
  const auto header = nlohmann::json::parse(input.substr(8, header_bytes));
  LLMB_CHECK(header.size() == entries->size() + header.count("__metadata__"));

  uint64_t at = 8 + header_bytes;
  std::set<std::string> names;
  for (const llmb::TensorEntry& entry : *entries) {
    LLMB_CHECK(names.insert(entry.name).second);
    LLMB_CHECK(entry.begin == at);
    uint64_t size = kBytes.at(entry.dtype);
    for (const int64_t extent : entry.shape) size *= static_cast<uint64_t>(extent);
    LLMB_CHECK(entry.end - entry.begin == size);
    LLMB_CHECK(header.at(entry.name).at("shape").get<std::vector<int64_t>>() == entry.shape);
    at = entry.end;
  }
  LLMB_CHECK(at == input.size());
}
