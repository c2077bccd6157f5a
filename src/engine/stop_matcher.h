// Stop strings in a growing text. Stateless: the caller keeps the text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmb {

struct StopMatch {
  size_t begin = 0, end = 0;  // bytes of the text
  size_t which = 0;           // index into `stops`
};

// The stop string that is complete first once `text` has grown beyond its first `old_size` bytes: smallest end, then
// the longest. Does not depend on how the text was cut into tokens. Costs the new bytes plus the longest stop string.
std::optional<StopMatch> find_stop(std::string_view text, size_t old_size, const std::vector<std::string>& stops);

}  // namespace llmb
