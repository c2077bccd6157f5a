#include "engine/stop_matcher.h"

namespace llmb {

std::optional<StopMatch> find_stop(std::string_view text, size_t old_size, const std::vector<std::string>& stops) {
  std::optional<StopMatch> best;
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string& stop = stops[i];
    if (stop.empty()) continue;
    const size_t from = old_size + 1 > stop.size() ? old_size + 1 - stop.size() : 0;
    const size_t begin = text.find(stop, from);
    if (begin == std::string_view::npos) continue;
    const StopMatch match{begin, begin + stop.size(), i};
    if (!best || match.end < best->end || (match.end == best->end && match.begin < best->begin)) best = match;
  }
  return best;
}

}  // namespace llmb
