// adapter_config.json of a LoRA adapter: ranks and scales of its modules. Private to src/model.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace llmb {

class LoraConfig {
 public:
  LoraConfig() = default;
  // Reads that of a folder. kUnsupported names the field that asks for another computation.
  static Result<LoraConfig> read(const std::string& dir);

  // The rank of a module, by its path in the model. kInvalidArgument: it is 0.
  Result<int64_t> rank_of(std::string_view module) const;
  double alpha_of(std::string_view module) const;
  float scale_of(std::string_view module, int64_t rank) const;

 private:
  struct Pattern {
    std::string name;
    double value;
  };

  Status parse(const nlohmann::json& json);
  static Status refuse_others(const nlohmann::json& json);
  static Status read_patterns(const nlohmann::json& json, const char* field, double max, std::vector<Pattern>* out);
  static const Pattern* find_pattern(const std::vector<Pattern>& patterns, std::string_view module);

  int64_t rank_ = 8;
  double alpha_ = 8;
  bool is_rank_stabilised_ = false;
  std::vector<Pattern> ranks_, alphas_;
};

}  // namespace llmb
