// Which layers share block tables, and how many blocks windows leave.
#include "core/layer_groups.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/kv_layout.h"
#include "core/types.h"

namespace llmb::test {
namespace {

// `windows`: of the layers in turn.
ModelConfig config_with(const std::vector<int32_t>& windows) {
  ModelConfig config;
  config.num_hidden_layers = static_cast<int32_t>(windows.size());
  for (const int32_t window : windows) config.layers.emplace_back().window = window;
  return config;
}

// Every period-th layer sees everything, the last of each period.
ModelConfig alternating(int32_t num_layers, int32_t period, int32_t window) {
  std::vector<int32_t> windows;
  for (int32_t i = 0; i < num_layers; ++i) windows.push_back((i + 1) % period == 0 ? 0 : window);
  return config_with(windows);
}

void check_groups(const ModelConfig& config, int32_t max_model_len, const LayerGroups& groups) {
  REQUIRE(groups.num_groups() <= kMaxLayerGroups);
  const bool is_one = groups.windows == std::vector<int32_t>{0};  // of all layers
  std::set<std::tuple<int32_t, int32_t, int32_t>> places;
  for (int32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int32_t source = config.kv_layer_of(layer);
    CHECK(groups.layers_of_plane(layer) == groups.layers_of_plane(source));
    if (source != layer) {
      CHECK((groups.group(layer) == groups.group(source) && groups.plane(layer) == groups.plane(source) &&
             groups.part(layer) == groups.part(source)));
      continue;
    }
    const int32_t window = config.layer(layer).window;
    CHECK(groups.windows.at(groups.group(layer)) == (window < max_model_len && !is_one ? window : 0));
    CHECK(groups.plane(layer) < groups.num_planes);
    CHECK(groups.part(layer) < groups.layers_of_plane(layer));
    CHECK(places.insert({groups.group(layer), groups.plane(layer), groups.part(layer)}).second);
  }
}

TEST_CASE("models without windows, or with windows that no sequence outgrows, have one group") {
  for (const LayerGroups& groups : {group_layers(ModelConfig{.num_hidden_layers = 24}, 4096),
                                    group_layers(config_with({0, 0, 0}), 100), group_layers(config_with({64, 0}), 64),
                                    group_layers(config_with({100, 65}), 64)}) {
    CHECK(groups.windows == std::vector<int32_t>{0});
    CHECK(groups.groups.empty());
    CHECK(groups.plane(2) == 2);
  }
}

TEST_CASE("groups of the published models' shapes") {
  const auto check = [](const ModelConfig& config, int32_t max_model_len, int32_t num_planes,
                        const std::vector<int32_t>& windows) {
    const LayerGroups groups = group_layers(config, max_model_len);
    CHECK(groups.num_planes == num_planes);
    CHECK(groups.windows == windows);
    check_groups(config, max_model_len, groups);
  };
  check(config_with(std::vector<int32_t>(32, 4096)), 32768, 32, {4096});                 // Mistral 7B
  check(alternating(26, 2, 4096), 8192, 13, {0, 4096});                                  // Gemma 2 2B
  check(alternating(24, 2, 128), 131072, 12, {0, 128});                                  // gpt-oss 20B
  check(alternating(26, 6, 512), 32768, 4, {0, 512, 512, 512, 512, 512, 512});           // Gemma 3 1B: 4 and 22 layers
  check(alternating(62, 6, 1024), 131072, 10, {0, 1024, 1024, 1024, 1024, 1024, 1024});  // Gemma 3 27B: 10 and 52
  check(alternating(26, 2, 4096), 4097, 13, {0, 4096});  // one token less is enough to save some
}

// Every period-th layer sees everything, with heads of its own size; the last num_shared use earlier layers' keys.
ModelConfig gemma4(int32_t num_layers, int32_t period, int32_t num_shared, KvHeads sliding, KvHeads full) {
  ModelConfig config = alternating(num_layers, period, 512);
  config.num_key_value_heads = sliding.num_heads;
  config.head_dim = sliding.head_dim;
  for (int32_t i = 0; i < num_layers; ++i) {
    LayerConfig& layer = config.layers[i];
    if (layer.window == 0) layer.num_key_value_heads = full.num_heads, layer.head_dim = full.head_dim;
    for (int32_t j = 0; i >= num_layers - num_shared && j < num_layers - num_shared; ++j)
      if (config.layers[j].window == layer.window) layer.kv_layer = j;
  }
  return config;
}

TEST_CASE("a plane holds several smaller layers, and layers that share keys and values have none") {
  // Gemma 4 E2B: 12 sliding layers, of which two fit a plane, and 3 twice as large ones; 20 layers have none.
  const ModelConfig small = gemma4(35, 5, 20, {1, 256}, {1, 512});
  const LayerGroups groups = group_layers(small, 32768);
  check_groups(small, 32768, groups);
  CHECK(groups.num_planes == 3);
  CHECK(groups.windows == std::vector<int32_t>{0, 512, 512});
  const KvLayout layout = make_kv_layout(small, 16, DType::kBF16, groups);
  CHECK(layout.bytes_per_token() == 4 * (12 * 256 + 3 * 512));
  CHECK(layout.bytes_per_block() == 16 * 4 * 3 * 512);
  // With scales, a plane of two small layers is larger than one of a large layer.
  CHECK(make_kv_layout(small, 16, DType::kI8, groups).bytes_per_block() == 16 * 3 * 2 * 2 * (256 + 4));
  const LayerGroups one = group_layers(small, 0);
  check_groups(small, 0, one);
  CHECK((one.windows == std::vector<int32_t>{0} && one.num_planes == 9));
  // Gemma 4 31B: the layers that see everything are the smaller ones.
  const ModelConfig large = gemma4(60, 6, 0, {16, 256}, {4, 512});
  const LayerGroups of_large = group_layers(large, 32768);
  check_groups(large, 32768, of_large);
  CHECK(of_large.windows[0] == 0);
  CHECK(make_kv_layout(large, 16, DType::kBF16, of_large).bytes_per_token() == 4 * (50 * 16 * 256 + 10 * 4 * 512));
  CHECK(of_large.num_planes == 8);
}

TEST_CASE("layers of random windows: each has a plane of its own in a group of its window") {
  uint64_t state = 7;
  const auto below = [&](uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((state >> 33) % n);
  };
  int32_t num_grouped = 0;
  for (int32_t i = 0; i < 2000; ++i) {
    std::vector<int32_t> windows(1 + below(40)), sizes(1 + below(10));
    for (int32_t& size : sizes) size = below(3) == 0 ? 0 : 1 + below(300);
    for (int32_t& window : windows) window = sizes[below(static_cast<uint32_t>(sizes.size()))];
    ModelConfig config = config_with(windows);
    config.num_key_value_heads = config.head_dim = 4;
    const auto num_layers = static_cast<int32_t>(windows.size());
    for (int32_t j = 0; i % 2 == 1 && j < num_layers; ++j) {
      config.layers[j].head_dim = 2 * (1 + below(4));
      const int32_t source = j == 0 ? 0 : below(static_cast<uint32_t>(j));
      if (j > 0 && below(4) == 0 && config.has_own_kv(source))
        config.layers[j] = config.layers[source], config.layers[j].kv_layer = source;
    }
    const LayerGroups groups = group_layers(config, 200);
    if (groups.groups.empty()) {
      CHECK(groups.windows == std::vector<int32_t>{0});
      continue;
    }
    check_groups(config, 200, groups);
    ++num_grouped;
  }
  CHECK(num_grouped > 1000);
}

TEST_CASE("live blocks: exactly those that rows and their windows touch, at the worst place") {
  for (const int32_t block_size : {1, 2, 5, 16})
    for (const int32_t window : {0, 1, 2, 5, 15, 16, 17, 33})
      for (const int32_t num_rows : {1, 2, 16, 40}) {
        const int32_t num_blocks = 40 / block_size + 4;
        int64_t most = 0;
        for (int32_t begin = 0; begin + num_rows <= num_blocks * block_size; ++begin) {
          const int64_t first_block = window == 0 ? 0 : first_seen(window, begin) / block_size;
          most = std::max(most, ceil_div(begin + num_rows, block_size) - first_block);
        }
        CAPTURE(block_size);
        CAPTURE(window);
        CAPTURE(num_rows);
        const std::vector<int32_t> windows = {window};
        CHECK(max_live_blocks(windows, num_blocks, num_rows, block_size) >= most);
        CHECK(max_live_blocks(windows, num_blocks, num_rows, block_size) <= most + (window == 0 ? num_blocks : 1));
        const std::vector<int32_t> both = {0, window};
        CHECK(max_live_blocks(both, num_blocks, num_rows, block_size) ==
              num_blocks + max_live_blocks(windows, num_blocks, num_rows, block_size));
      }
}

}  // namespace
}  // namespace llmb::test
