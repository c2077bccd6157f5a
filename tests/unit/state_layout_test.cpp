#include "core/state_layout.h"

#include <doctest/doctest.h>

#include "model/config_loader.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

TEST_CASE("a row of Qwen 3.5 0.8B takes its states and one chunk's inputs and not a byte more") {
  const auto config = load_model_config(source_dir() + "/data/shapes/qwen3.5-0.8b");
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  constexpr int64_t kLayers = 18, kHeads = 16, kDim = 128, kChunk = 16;
  constexpr int64_t kMatrices = kHeads * kDim * kDim;
  constexpr int64_t kInputs = kChunk * kHeads * (kDim + kDim + 1);  // keys, what is added to them, decays
  constexpr int64_t kConvolution = 3 * 3 * kHeads * kDim;           // q, k and v of three tokens
  const StateLayout plain = state_layout(*config, 4);
  CHECK(plain.num_layers == kLayers);
  CHECK(plain.slot_bytes() == kLayers * (kMatrices + kInputs + kConvolution) * 4);
  CHECK(plain.num_slots == 3 * 4 + plain.num_snapshots);
  CHECK(plain.num_snapshots * plain.slot_bytes() <= kSnapshotBytes);
  CHECK((plain.num_snapshots + 1) * plain.slot_bytes() > kSnapshotBytes);

  // Room for eight drafts.
  const StateLayout drafted = state_layout(*config, 4, 100);
  CHECK(drafted.max_drafts == kMaxStateDrafts);
  CHECK(drafted.slot_bytes() - plain.slot_bytes() ==
        kLayers * (kInputs + kMaxStateDrafts * 3 * kHeads * kDim) * 4);
}

TEST_CASE("the border of a state is that of the chunk of its newest known token, or of the first draft") {
  CHECK(state_border(1, 0) == 0);
  CHECK(state_border(16, 0) == 0);  // the next token closes the chunk
  CHECK(state_border(17, 0) == 16);
  CHECK(state_border(17, 1) == 16);
  CHECK(state_border(18, 3) == 0);
  CHECK(state_border(24, 8) == 16);
}

TEST_CASE("models without states have no slots") {
  const StateLayout layout = state_layout(ModelConfig(), 4, 8);
  CHECK(layout.num_slots == 0);
  CHECK(layout.num_snapshots == 0);
}

}  // namespace llmb::test
