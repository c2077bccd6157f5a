// Ranks that were given other settings than rank 0 say which one differs.
#include <doctest/doctest.h>

#include <string>

#include "job/rank_team.h"

namespace llmb::test {

namespace {

ModelConfig config() {
  ModelConfig c;
  c.model_type = "llama";
  c.vocab_size = 100, c.hidden_size = 64, c.num_hidden_layers = 2, c.num_attention_heads = 4;
  return c;
}

}  // namespace

TEST_CASE("equal settings agree, and every one that differs is named") {
  LoadOptions load;
  load.model_dir = "m";
  const RankSettings first = rank_settings("1", config(), load);
  CHECK(check_settings(rank_settings("1", config(), load), first).ok());
  const auto difference = [&](const std::string& build, const ModelConfig& model, const LoadOptions& options) {
    const Status status = check_settings(rank_settings(build, model, options), first);
    CHECK(status.code() == StatusCode::kConflict);
    return status.message();
  };
  CHECK(difference("2", config(), load).starts_with("build is 2"));
  ModelConfig other = config();
  other.vocab_size = 101;
  CHECK(difference("1", other, load) == "vocab_size is 101, on rank 0 vocab_size is 100");
  LoadOptions options = load;
  options.max_model_len = 7;
  CHECK(difference("1", config(), options) == "max_model_len is 7, on rank 0 max_model_len is 0");
  options = load;
  options.dtype = DType::kBF16;
  CHECK(difference("1", config(), options) == "dtype is bfloat16, on rank 0 dtype is auto");
  options = load;
  options.num_threads = 3;  // each rank's own
  CHECK(check_settings(rank_settings("1", config(), options), first).ok());
}

TEST_CASE("an order comes through as it was") {
  RankOrder order;
  order.order.device = "cpu";
  order.order.num_threads = 3;
  order.settings = {{"a", "1"}, {"b", ""}};
  order.num_blocks = 17;
  const RankOrder got = unpack_rank_order(pack_rank_order(order));
  CHECK(got.order.device == "cpu");
  CHECK(got.order.num_threads == 3);
  CHECK(got.settings == order.settings);
  CHECK(got.num_blocks == 17);
}

}  // namespace llmb::test
