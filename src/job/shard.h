// The rows of the input that a shard answers. Pure: the same on every machine, whatever is measured there.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace llmb {

enum class ShardBy { kRows, kPrefix };

struct Shard {
  int64_t index = 0, count = 1;  // 0 <= index < count
  ShardBy by = ShardBy::kRows;

  bool operator==(const Shard&) const = default;
};

inline constexpr int64_t kMaxShards = 1 << 20;

constexpr const char* shard_by_name(ShardBy by) { return by == ShardBy::kRows ? "rows" : "prefix"; }

// "2/7". kInvalidArgument: something else, or a shard that there is not.
Result<Shard> parse_shard(const std::string& text);
std::string shard_text(const Shard& shard);

// By rows: of each `count` successive lines every shard has one. Which of them is drawn from the place in the file and
// from `count`, so that no pattern in the file goes to one shard, and what one shard of N leaves is divided evenly among
// any other number of shards.
int64_t shard_of_row(int64_t line_index, int64_t count);

}  // namespace llmb
