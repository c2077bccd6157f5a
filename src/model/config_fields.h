// Checked access to the fields of a small JSON object. Private to src/model.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/types.h"

namespace llmb {

// The largest values that are believed.
inline constexpr int64_t kMaxIntermediate = 1 << 20, kMaxPositions = 1 << 27, kMaxHeads = 4096, kMaxHeadDim = 1024;

// Remembers the first field that was wrong: read all fields, then look at status(). A field that is absent or null
// yields the fallback. Not thread-safe. REQUIRES: `object` is a JSON object that outlives this.
class ConfigFields {
 public:
  explicit ConfigFields(const nlohmann::json& object) : object_(object) {}

  bool has(const char* name) const { return find(name) != nullptr; }
  const nlohmann::json* find(const char* name) const;  // nullptr where absent or null
  // Whether the name is there with the value null, which for some fields is not the same as absent.
  bool is_null(const char* name) const;
  // `names` lists aliases ("a|b"): returns the first one present, or the first of all if none is.
  std::string pick(std::string_view names) const;

  int64_t integer(const char* name, std::optional<int64_t> fallback, int64_t min,
                  int64_t max);                                              // no fallback: required
  double number(const char* name, double fallback, double min, double max);  // finite
  bool boolean(const char* name, bool fallback);
  std::string text(const char* name, const std::string& fallback);
  std::vector<TokenId> token_ids(const char* name);  // an integer or a list of integers
  std::vector<double> numbers(const char* name, size_t size, double min, double max);  // required

  const Status& status() const { return status_; }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  const nlohmann::json& object_;
  Status status_;
};

// A JSON object of at most 1 MiB and 64 levels.
Result<nlohmann::json> parse_config_object(std::string_view text);

// A JSON value for a message: compact and short.
std::string brief(const nlohmann::json& value);

}  // namespace llmb
