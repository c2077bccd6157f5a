// Which adapters are merged: by rows, ranks and sizes alone.
#include "job/merge_cost.h"

#include <doctest/doctest.h>

#include "tests/support/adapted_models.h"

namespace llmb::test {
namespace {

const LoraAdapter& adapter_of(const AdaptedModel& model, const std::string& name, std::optional<LoraAdapter>* opened) {
  opened->emplace(model.library->open(*model.library->find(name)).value());
  return **opened;
}

AdapterRowTotals rows_of(int64_t count, int64_t prompt = 30, int64_t answer = 10) {
  return {count, count, count * prompt, count * answer};
}

// The fewest rows of which an adapter is merged.
int64_t least_rows(const LoraAdapter& adapter, const ModelConfig& model, bool has_others) {
  int64_t low = 0, high = int64_t{1} << 40;  // not merged, merged
  REQUIRE(merge_cost(adapter, model, rows_of(high), has_others).merges());
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (merge_cost(adapter, model, rows_of(middle), has_others).merges() ? high : low) = middle;
  }
  return high;
}

}  // namespace

TEST_CASE("from some number of rows on an adapter is merged: fewer for larger ranks, and where no others run beside") {
  const AdaptedModel model = adapted_model("llama-gqa");
  std::optional<LoraAdapter> eight, sixteen, one;
  adapter_of(model, "rank-8", &eight), adapter_of(model, "rank-16-stabilised", &sixteen);
  adapter_of(model, "rank-1", &one);
  for (const bool has_others : {false, true}) {
    const int64_t of_one = least_rows(*one, model.config, has_others);
    const int64_t of_eight = least_rows(*eight, model.config, has_others);
    const int64_t of_sixteen = least_rows(*sixteen, model.config, has_others);
    CHECK(of_sixteen <= of_eight);
    CHECK(of_eight < of_one);
    for (const int64_t rows : {int64_t{0}, of_eight - 1, of_eight, of_eight + 1, 1000 * of_eight}) {
      CAPTURE(rows);
      CHECK(merge_cost(*eight, model.config, rows_of(rows), has_others).merges() == (rows >= of_eight));
    }
  }
  CHECK(least_rows(*eight, model.config, false) < least_rows(*eight, model.config, true));
}

TEST_CASE("twice the tokens cost twice beside the weights, and nothing more to merge where no others run beside") {
  const AdaptedModel model = adapted_model("llama-gqa");
  std::optional<LoraAdapter> adapter;
  adapter_of(model, "rank-8", &adapter);
  const MergeCost once = merge_cost(*adapter, model.config, rows_of(100), false);
  const MergeCost twice = merge_cost(*adapter, model.config, rows_of(200), false);
  CHECK(twice.beside == doctest::Approx(2 * once.beside));
  CHECK(twice.merged == once.merged);
  CHECK(merge_cost(*adapter, model.config, rows_of(100), true).merged > once.merged);
  CHECK(merge_cost(*adapter, model.config, {}, true).beside == 0);
  CHECK(!merge_cost(*adapter, model.config, {}, true).merges());
}

TEST_CASE("merged weights take the memory of whole products, and matrices that stay beside theirs") {
  const AdaptedModel model = adapted_model("llama-gqa");
  std::optional<LoraAdapter> all, some, vocabulary;
  adapter_of(model, "rank-8", &all), adapter_of(model, "rank-1", &some), adapter_of(model, "vocabulary", &vocabulary);
  // hidden 32, q 32, k and v 16, wide 64, 2 layers, 128 tokens, fp32
  CHECK(merged_bytes(*all, model.config) == 4 * 2 * (32 * 64 + 32 * 32 + 32 * 128 + 64 * 32));
  CHECK(merged_bytes(*some, model.config) == 4 * 2 * 32 * 64);
  CHECK(merged_bytes(*vocabulary, model.config) == 4 * 2 * 32 * 64 + 4 * 3 * (32 + 128) + 4 * 8 * (128 + 32));
}

TEST_CASE("an adapter of the embeddings and the head alone is never merged") {
  const AdaptedModel model = adapted_model("gpt_neox");
  std::optional<LoraAdapter> adapter;
  adapter_of(model, "vocabulary", &adapter);
  CHECK(!merge_cost(*adapter, model.config, rows_of(int64_t{1} << 40), false).merges());
}

}  // namespace llmb::test
