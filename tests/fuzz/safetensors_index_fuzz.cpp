// Any bytes as model.safetensors.index.json: refused, or plain file names, each tensor once.
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "formats/safetensors.h"
#include "io/json_scan.h"
#include "tests/fuzz/fuzz_target.h"

LLMB_FUZZ_TARGET(safetensors_index) {
  const auto pairs = llmb::parse_safetensors_index(input);
  if (!pairs.ok()) return;
  const auto fault = llmb::find_json_fault(input);
  if (fault && fault->is_number_range) return;  // somewhere in what we do not read
  const auto weight_map = nlohmann::json::parse(input).at("weight_map");
  LLMB_CHECK(weight_map.size() == pairs->size());
  std::set<std::string> names;
  for (const auto& [tensor, shard] : *pairs) {
    LLMB_CHECK(names.insert(tensor).second);
    LLMB_CHECK(weight_map.at(tensor) == shard);
    LLMB_CHECK(!shard.empty() && shard != "." && shard != ".." &&
               shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos);
  }
}
