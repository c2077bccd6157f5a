// Golden lines of a layer behind a model's last one, over ranks of the CPU backend.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "core/rank_part.h"
#include "tests/support/draft_layer_trial.h"
#include "tests/support/thread_ranks.h"

namespace llmb::test {

// Grids that the model can be divided by.
inline std::vector<RankPart> draft_layer_grids(const ModelConfig& config) {
  const std::vector<RankPart> all = {{.tensor_size = 2},
                                     {.num_stages = 2},
                                     {.context_size = 2},
                                     {.context_size = 2, .divides_kv = true},
                                     {.tensor_size = 2, .num_stages = 2},
                                     {.num_stages = 2, .context_size = 2},
                                     {.num_stages = 3}};
  std::vector<RankPart> grids;
  for (const RankPart& grid : all)
    if (check_ranks(config, grid.tensor_size, grid.num_stages, grid.context_size).ok()) grids.push_back(grid);
  return grids;
}

inline void check_draft_layer_over_ranks(const ModelConfig& config, LoadOptions options,
                                         const std::vector<nlohmann::json>& lines) {
  options.num_threads = 1;
  for (const RankPart& grid : draft_layer_grids(config)) {
    CAPTURE(grid.tensor_size);
    CAPTURE(grid.num_stages);
    CAPTURE(grid.context_size);
    CAPTURE(grid.divides_kv);
    if (grid.divides_kv) options.block_size = kSliceTokens * grid.context_size;
    const auto backend = loaded(make_thread_ranks(grid.tensor_size, grid.num_stages, 0, nullptr, grid.context_size,
                                                  grid.divides_kv),
                                config, options);
    check_draft_layer(*backend, lines);
  }
}

}  // namespace llmb::test
