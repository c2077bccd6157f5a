// Adapters by the names that input lines give them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace llmb {

inline constexpr int32_t kNoAdapter = -1;  // the base model alone

struct AdapterFolder {
  std::string name, dir;
};

// Thread-safe. An adapter's id is a number from 0.
class AdapterNames {
 public:
  virtual ~AdapterNames() = default;
  // nullopt: nothing has this name.
  virtual std::optional<int32_t> find(std::string_view name) const = 0;
  // Makes sure that the adapter can be computed; the same answer each time.
  virtual Status prepare(int32_t id) = 0;
};

}  // namespace llmb
